// The official OpenAI client for JavaScript against a running server.
//
//     ROPEWALK_URL=http://127.0.0.1:8080 node openai_client.mjs
//
// Any model will do: nothing here depends on what it says.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.ROPEWALK_URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0].id;
const messages = [
  { role: "system", content: "You are brief." },
  { role: "user", content: "Name the planets." },
];
const request = { model, messages, max_tokens: 24, temperature: 0 };
const shape = {
  type: "object",
  properties: { size: { type: "string", enum: ["small", "large"] }, rings: { type: "boolean" } },
  required: ["size", "rings"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "planet", strict: true, schema: shape } };
const tool = { type: "function", function: { name: "describe", description: "Describes a planet.", parameters: shape } };

test("models are listed and retrieved", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("a chat stream adds up to the whole answer", async () => {
  const whole = await client.chat.completions.create(request);
  assert.ok(whole.usage.completion_tokens > 0);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
  const stream = client.chat.completions.stream(request);
  assert.equal((await stream.finalChatCompletion()).choices[0].message.content, text);
});

test("completions are streamed", async () => {
  const prompt = { model, prompt: "The planets are", max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create(prompt);
  let text = "";
  for await (const chunk of await client.completions.create({ ...prompt, stream: true })) text += chunk.choices[0]?.text ?? "";
  assert.equal(text, whole.choices[0].text);
});

test("responses are made, streamed, remembered and deleted", async () => {
  const body = { model, input: "Name the planets.", max_output_tokens: 24, temperature: 0 };
  const whole = await client.responses.create(body);
  assert.ok(whole.output_text.length > 0);
  let text = "";
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
  const next = await client.responses.create({ ...body, previous_response_id: whole.id, input: "And the moons?" });
  assert.ok(next.usage.input_tokens > whole.usage.input_tokens);
  await client.responses.delete(whole.id);
  await assert.rejects(client.responses.retrieve(whole.id), OpenAI.NotFoundError);
});

test("an answer is parsed by its schema", async () => {
  const answer = await client.chat.completions.parse({ ...request, max_tokens: 128, response_format: format });
  const planet = answer.choices[0].message.parsed;
  assert.ok(["small", "large"].includes(planet.size) && typeof planet.rings === "boolean");
});

test("a tool is called, whole and streamed", async () => {
  const body = { ...request, max_tokens: 128, tools: [tool], tool_choice: "required" };
  const whole = (await client.chat.completions.create(body)).choices[0].message.tool_calls[0];
  assert.equal(whole.function.name, "describe");
  assert.equal(typeof JSON.parse(whole.function.arguments).rings, "boolean");
  const streamed = (await client.chat.completions.stream(body).finalChatCompletion()).choices[0].message.tool_calls[0];
  assert.equal(streamed.function.arguments, whole.function.arguments);
});

test("a stream that is left ends", async () => {
  const stream = await client.chat.completions.create({ ...request, max_tokens: 512, stream: true });
  for await (const chunk of stream) if (chunk.choices[0]?.delta?.content) break;
  assert.ok(stream.controller.signal.aborted);
});

test("refusals keep their meaning", async () => {
  await assert.rejects(client.chat.completions.create({ ...request, model: "no-such-model" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...request, temperature: 5 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param, error.code], [400, "temperature", "invalid_value"]);
    return true;
  });
});
