// One answer under way: takes chunks in, keeps the message and its figures up to date.

import { streamChat } from "./api.js";
import { splitReasoning } from "./reasoning.js";

/** The body of the request for the answer to `messages`. */
export function requestBody(model, messages, settings) {
  const sent = [];
  for (const message of messages) {
    const last = sent.at(-1);
    // An answer that failed is left out, and many templates want the roles to alternate.
    if (message.role === "user" && last?.role === "user") last.content += `\n\n${message.content}`;
    else if (message.role !== "assistant" || message.content || message.toolCalls?.length) sent.push(sentMessage(message));
  }
  if (settings.system) sent.unshift({ role: "system", content: settings.system });
  const body = { model, messages: sent, stream: true, stream_options: { include_usage: true } };
  const fields = { temperature: "temperature", topP: "top_p", maxTokens: "max_tokens", seed: "seed" };
  for (const [name, field] of Object.entries(fields)) if (Number.isFinite(settings[name])) body[field] = settings[name];
  if (settings.tools?.length) body.tools = settings.tools;
  return body;
}

/** Models are not shown their reasoning about earlier turns. */
function sentMessage({ role, content, toolCalls, toolCallId }) {
  if (role === "user") return { role, content };
  if (role === "tool") return { role, tool_call_id: toolCallId, content };
  const answer = splitReasoning(content, true).answer;
  if (!toolCalls?.length) return { role, content: answer };
  const calls = toolCalls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  return { role, content: answer, tool_calls: calls };
}

/** An empty answer. */
export function emptyAnswer() {
  return { role: "assistant", content: "", reasoning: "", toolCalls: [], finish: null, error: null, figures: null };
}

/** Writes the answer to `body` into `message`, calling `changed` after each piece. Throws where no complete answer comes. */
export async function generate(body, key, message, signal, changed) {
  const clock = new Clock();
  try {
    for await (const chunk of streamChat(body, key, signal)) {
      if (take(chunk, message)) clock.tick();
      message.figures = clock.figures(chunk.usage);
      changed();
    }
  } finally {
    message.finish ??= signal.aborted ? "stopped" : null;
  }
}

/** Adds what a chunk brings to `message` and says whether that was any text. */
function take({ choices }, message) {
  const choice = choices?.[0];
  if (!choice) return false;
  const { content, tool_calls: calls, ...others } = choice.delta ?? {};
  // The field is called differently by different servers.
  const reasoning = others.reasoning_content ?? others.reasoning;
  if (typeof content === "string") message.content += content;
  if (typeof reasoning === "string") message.reasoning += reasoning;
  if (Array.isArray(calls)) for (const call of calls) takeCall(call, message.toolCalls);
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return Boolean(content || reasoning || calls?.length);
}

function takeCall({ index = 0, id, function: called }, calls) {
  // Calls are numbered without gaps; whatever else comes is not made room for.
  if (!Number.isInteger(index) || index < 0 || index > calls.length) return;
  calls[index] ??= { id: "", name: "", arguments: "" };
  if (typeof id === "string") calls[index].id = id;
  if (typeof called?.name === "string") calls[index].name += called.name;
  if (typeof called?.arguments === "string") calls[index].arguments += called.arguments;
}

/** Measures an answer. Until the server tells how many tokens there are, each piece of text counts as one. */
class Clock {
  started = performance.now();
  first = null;
  last = null;
  pieces = 0;

  tick() {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
  }

  figures(usage) {
    if (this.first === null) return null;
    const tokens = usage?.completion_tokens ?? this.pieces;
    const seconds = (this.last - this.first) / 1000;
    return {
      tokens,
      // The first token's time is the prompt's.
      perSecond: seconds > 0 ? (tokens - 1) / seconds : 0,
      firstSeconds: (this.first - this.started) / 1000,
      promptTokens: usage?.prompt_tokens ?? 0,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    };
  }
}
