import assert from "node:assert/strict";
import test from "node:test";

import { GrowingMarkdown } from "../markdown/growing.js";
import { FakeDocument, html } from "./fake-dom.js";

/** Random numbers below `limit` that are the same in every run. */
function generator(seed) {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

const PIECES = [
  "a", "b ", " ", "  ", "\n", "\n", "\n\n", "\n\n", "# ", "## ", "- ", "\n- ", "  - ", "* ", "*", "**", "_", "1. ", "\n2. ", "> ", "\n> ",
  "`", "```", "\n```\n", "\n~~~\n", "|", "a|b", "\na|b\n", "-|-", "---", "===", "\n---\n", "[x](https://x.org/)", "![", "](", "http://x.org",
  "<br>", "<b>", "\\", "$$", "\\(", "\\)", "- [ ] ", "\t", "\r\n", "~~",
];

function whole(text) {
  const document = new FakeDocument();
  const target = document.createElement("div");
  new GrowingMarkdown(target, document).update(text);
  return html(target);
}

test("a text that grows looks at every step like the whole text at once", () => {
  for (let seed = 1; seed <= 1500; seed += 1) {
    const random = generator(seed);
    const document = new FakeDocument();
    const target = document.createElement("div");
    const growing = new GrowingMarkdown(target, document);
    let text = "";
    for (let step = 0; step < 4 + random(20); step += 1) {
      const piece = PIECES[random(PIECES.length)];
      text += piece.slice(0, 1 + random(piece.length));
      growing.update(text);
      assert.equal(html(target), whole(text), `seed ${seed}: ${JSON.stringify(text)}`);
    }
  }
});

test("what has been shown is not built again", () => {
  const document = new FakeDocument();
  const growing = new GrowingMarkdown(document.createElement("div"), document);
  let text = "";
  for (let step = 0; step < 2000; step += 1) {
    text += step % 50 === 49 ? `end.\n\n${step % 100 === 99 ? "```js\n" : "- item\n- item"}` : "more and more words ";
    growing.update(text);
  }
  // As many as the whole text has, and some for blocks that turned out to be of another kind.
  const once = new FakeDocument();
  new GrowingMarkdown(once.createElement("div"), once).update(text);
  assert.ok(document.created < 2 * once.created, `${document.created} nodes were made for ${once.created}`);
});

test("text nodes are appended to", () => {
  const document = new FakeDocument();
  const target = document.createElement("div");
  const growing = new GrowingMarkdown(target, document);
  growing.update("```\nline");
  const code = target.childNodes[0].childNodes[1].childNodes[0];
  const text = code.childNodes[0];
  growing.update("```\nline and more\nlines");
  assert.equal(code.childNodes[0], text);
  assert.equal(text.data, "line and more\nlines");
});
