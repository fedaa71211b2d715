import assert from "node:assert/strict";
import test from "node:test";

import { fetchModels } from "../api.js";
import { emptyAnswer, generate, requestBody } from "../generation.js";

/** A response that streams `text` in pieces of some bytes, and breaks off at the end if it is to. */
function stream(text, { size = 7, breaks = false } = {}) {
  const bytes = new TextEncoder().encode(text);
  let at = 0;
  const pull = (controller) => {
    if (at < bytes.length) controller.enqueue(bytes.slice(at, (at += size)));
    else if (breaks) controller.error(new TypeError("network error"));
    else controller.close();
  };
  return new Response(new ReadableStream({ pull }));
}

const events = (...values) => values.map((value) => `data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`).join("");
const delta = (fields, finish = null) => ({ choices: [{ index: 0, delta: fields, finish_reason: finish }] });

/** Lets `respond` answer the only request of a generation, and gives the message that comes of it. */
async function answer(respond, signal = new AbortController().signal) {
  globalThis.fetch = async (...request) => respond(...request);
  const message = emptyAnswer();
  await generate(requestBody("m", [{ role: "user", content: "Hi" }], {}), "", message, signal, () => {});
  return message;
}

async function failure(respond) {
  try {
    await answer(respond);
  } catch (error) {
    return error;
  }
  return assert.fail("it did not fail");
}

test("a request has what was chosen and nothing else", () => {
  const messages = [{ role: "user", content: "Hi" }];
  const plain = { model: "m", messages, stream: true, stream_options: { include_usage: true } };
  assert.deepEqual(requestBody("m", messages, {}), plain);
  const settings = { system: "Be brief.", temperature: 0, topP: 0.5, maxTokens: 9, seed: -1 };
  assert.deepEqual(requestBody("m", messages, settings), {
    ...plain,
    messages: [{ role: "system", content: "Be brief." }, ...messages],
    temperature: 0,
    top_p: 0.5,
    max_tokens: 9,
    seed: -1,
  });
  assert.deepEqual(requestBody("m", messages, { temperature: "hot", seed: NaN }), plain);
});

test("answers that failed and what models thought are not sent", () => {
  const messages = [
    { role: "user", content: "One" },
    { role: "assistant", content: "", error: "The server is busy." },
    { role: "user", content: "Two" },
    { role: "assistant", content: "<think>Hm.</think>\nYes", toolCalls: [{ id: "c", name: "f", arguments: "{}" }] },
    { role: "user", content: "Three" },
  ];
  assert.deepEqual(requestBody("m", messages, {}).messages, [
    { role: "user", content: "One\n\nTwo" },
    { role: "assistant", content: "Yes", tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "user", content: "Three" },
  ]);
});

test("text, reasoning, tool calls and figures are gathered", async () => {
  const call = (index, fields) => delta({ tool_calls: [{ index, ...fields }] });
  const message = await answer(() =>
    stream(
      events(
        delta({ role: "assistant", content: "" }),
        delta({ reasoning_content: "Hm" }),
        delta({ reasoning: "." }),
        delta({ content: "Grü" }),
        delta({ content: "ße" }),
        call(0, { id: "c0", function: { name: "f", arguments: '{"a"' } }),
        call(0, { function: { arguments: ":1}" } }),
        call(7, { id: "c7", function: { name: "g", arguments: "" } }),
        delta({}, "tool_calls"),
        { choices: [], usage: { prompt_tokens: 5, completion_tokens: 6, prompt_tokens_details: { cached_tokens: 2 } } },
        "[DONE]",
      ),
    ),
  );
  assert.deepEqual([message.content, message.reasoning, message.finish], ["Grüße", "Hm.", "tool_calls"]);
  assert.deepEqual(message.toolCalls, [{ id: "c0", name: "f", arguments: '{"a":1}' }]);
  const { tokens, promptTokens, cachedTokens } = message.figures;
  assert.deepEqual([tokens, promptTokens, cachedTokens], [6, 5, 2]);
});

test("an answer without its end is not complete", async () => {
  for (const breaks of [false, true]) {
    const error = await failure(() => stream(events(delta({ content: "Half" })), { breaks }));
    assert.equal(error.kind, "interrupted");
  }
});

test("errors say what they are", async () => {
  const refuse = (status, code, headers = {}) => () => new Response(JSON.stringify({ error: { message: "why", code } }), { status, headers });
  const table = [
    [refuse(429, "queue_full", { "retry-after": "3" }), "busy", 3],
    [refuse(429, "queue_full"), "busy", 1],
    [refuse(400, "context_length_exceeded"), "context", null],
    [refuse(401, "invalid_api_key"), "key", null],
    [refuse(400, "invalid_value"), "refused", null],
    [refuse(503, "engine_failed"), "failed", null],
    [() => new Response("<html>", { status: 502 }), "failed", null],
    [() => Promise.reject(new TypeError("fetch failed")), "unreachable", null],
    [() => stream(events({ error: { message: "the engine has failed", code: "engine_failed" } })), "failed", null],
    [() => stream(events("{")), "failed", null],
  ];
  for (const [respond, kind, seconds] of table) {
    const error = await failure(respond);
    assert.deepEqual([error.kind, error.retryAfterSeconds], [kind, seconds], error.message);
    assert.match(error.message, /[.!?]$/);
  }
});

test("stopping is no failure of the server", async () => {
  const controller = new AbortController();
  const respond = (_, { signal }) => {
    const start = (stream) => {
      stream.enqueue(new TextEncoder().encode(events(delta({ content: "Half" }))));
      signal.addEventListener("abort", () => stream.error(signal.reason));
      setTimeout(() => controller.abort());
    };
    return new Response(new ReadableStream({ start }));
  };
  await assert.rejects(answer(respond, controller.signal), { name: "AbortError" });
});

test("models", async () => {
  globalThis.fetch = async (_, { headers }) => Response.json({ data: [{ id: "a" }, { id: 1 }], ...headers });
  assert.deepEqual(await fetchModels("secret"), [{ id: "a" }]);
  globalThis.fetch = async () => new Response("nonsense");
  await assert.rejects(fetchModels(""), { kind: "failed" });
});
