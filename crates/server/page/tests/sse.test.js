import assert from "node:assert/strict";
import test from "node:test";

import { EventParser } from "../sse.js";

/** The events of `text`, pushed in pieces of `size` characters. */
function parse(text, size = text.length) {
  const parser = new EventParser();
  const events = [];
  for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
  return events;
}

test("any line ends, in any pieces", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const text = ["data: one", "", ": keep-alive", "", "event: x", "data:two", "data: three", "id: 1", "", "data", "", ""].join(end);
    for (let size = 1; size <= text.length; size += 1) {
      // A carriage return at the very end may be half of a line break, so that its event waits.
      const expected = end === "\r" ? ["one", "two\nthree"] : ["one", "two\nthree", ""];
      assert.deepEqual(parse(text, size), expected, `${JSON.stringify(end)} ${size}`);
    }
  }
});

test("an unfinished event is not an event", () => {
  assert.deepEqual(parse("data: one\n\ndata: two\n"), ["one"]);
  assert.deepEqual(parse("data: one"), []);
});

test("only one space and a first byte-order mark are taken off", () => {
  assert.deepEqual(parse("\ufeffdata:  a: b\n\n"), [" a: b"]);
  assert.deepEqual(parse("\ufeffdata: a\n\n", 1), ["a"]);
});

test("an event cannot grow without bound", () => {
  const parser = new EventParser();
  const piece = "a".repeat(1 << 20);
  assert.throws(() => {
    for (let count = 0; count < 5; count += 1) parser.push(piece);
  }, /too long/);
  const lines = new EventParser();
  assert.throws(() => {
    for (let count = 0; count < 5; count += 1) lines.push(`data: ${piece}\n`);
  }, /too long/);
});
