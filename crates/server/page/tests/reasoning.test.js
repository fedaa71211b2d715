import assert from "node:assert/strict";
import test from "node:test";

import { splitReasoning } from "../reasoning.js";

test("reasoning is parted from the answer", () => {
  const parts = (text, complete = false) => Object.values(splitReasoning(text, complete));
  assert.deepEqual(parts("Hello"), ["", "Hello", false]);
  assert.deepEqual(parts("\n<thi"), ["", "", false]);
  assert.deepEqual(parts("<thi", true), ["", "<thi", false]);
  assert.deepEqual(parts("<b>"), ["", "<b>", false]);
  assert.deepEqual(parts("<think>Well"), ["Well", "", true]);
  assert.deepEqual(parts("<think>Well", true), ["Well", "", false]);
  assert.deepEqual(parts(" <think>\nWell\n</think>\n\nHello"), ["Well", "Hello", false]);
  assert.deepEqual(parts("<think></think>Hello"), ["", "Hello", false]);
  // Where the template has written the start.
  assert.deepEqual(parts("Well</think>Hello"), ["Well", "Hello", false]);
});
