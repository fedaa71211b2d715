// Requests to the server, and what can become of them.

import { EventParser } from "./sse.js";

/** Longest wait for the first sign of an answer other than a stream, in milliseconds. */
const PATIENCE_MS = 20_000;

/** A request that got no answer, or not all of it. */
export class ApiFailure extends Error {
  /** `kind`: unreachable, interrupted, busy, context, key, refused or failed. */
  constructor(kind, message, retryAfterSeconds = null) {
    super(message);
    this.kind = kind;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/** The models that the server has. */
export async function fetchModels(key) {
  const response = await request("v1/models", { headers: headers(key), signal: AbortSignal.timeout(PATIENCE_MS) });
  const { data } = await response.json().catch(() => ({}));
  if (!Array.isArray(data)) throw new ApiFailure("failed", "The server's list of models cannot be read.");
  return data.filter(({ id }) => typeof id === "string");
}

/** Asks for an answer and gives its chunks as they come. Ends with a failure unless the answer is complete. */
export async function* streamChat(body, key, signal) {
  const options = { method: "POST", headers: { "content-type": "application/json", ...headers(key) }, body: JSON.stringify(body), signal };
  const response = await request("v1/chat/completions", options);
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw signal.aborted ? error : interrupted();
      });
      if (done) throw interrupted();
      for (const data of parser.push(decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") return;
        yield readChunk(data);
      }
    }
  } finally {
    // Leaving early tells the server, which stops computing.
    reader.cancel().catch(() => {});
  }
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

function interrupted() {
  return new ApiFailure("interrupted", "The connection to the server was lost in the middle of the answer.");
}

function readChunk(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiFailure("failed", "The server sent something that is not JSON.");
  }
  if (chunk?.error) throw failure(chunk.error, null);
  return chunk;
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted && error.name === "AbortError") throw error;
    throw new ApiFailure("unreachable", "The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw failure(body?.error ?? { message: `The server answered with status ${response.status}.` }, response);
}

/** What an error in OpenAI's shape means, with the status where there is one. */
function failure({ message, code }, response) {
  const text = sentence(String(message ?? "The server gave no reason."));
  const status = response?.status ?? 0;
  if (status === 429 || code === "queue_full") {
    const seconds = Number(response?.headers.get("retry-after"));
    return new ApiFailure("busy", `The server is busy: ${text}`, seconds > 0 ? seconds : 1);
  }
  if (status === 401 || status === 403) return new ApiFailure("key", `The server wants a valid API key: ${text}`);
  if (code === "context_length_exceeded") return new ApiFailure("context", `The conversation has become too long: ${text}`);
  return new ApiFailure(status >= 400 && status < 500 ? "refused" : "failed", text);
}

function sentence(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
