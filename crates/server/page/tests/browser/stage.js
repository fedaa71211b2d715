// A server in front of the real one: it passes everything on, but answers chats by script where a test wants certain
// words. So the page and its headers are the real ones whatever is said.

import http from "node:http";

/** Starts a stage in front of the server at `upstream` (host:port). */
export async function startStage(upstream) {
  const [host, port] = upstream.split(":");
  const stage = { script: null, bodies: [] };
  const server = http.createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const body = Buffer.concat(pieces);
    if (request.method === "POST" && request.url === "/v1/chat/completions" && stage.script) {
      stage.bodies.push(JSON.parse(body));
      return stage.script(response);
    }
    const { method, url: path, headers } = request;
    const onward = http.request({ host, port, method, path, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    onward.end(body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  stage.address = `http://127.0.0.1:${server.address().port}/`;
  stage.close = () => {
    server.closeAllConnections();
    server.close();
  };
  return stage;
}

/** A script that streams these deltas, as fast as they are taken, and then ends. */
export function says(deltas, { finish = "stop", pauseMs = 0 } = {}) {
  return async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    const send = (value) => response.write(`data: ${JSON.stringify(value)}\n\n`);
    for (const delta of deltas) {
      if (response.destroyed) return;
      send({ choices: [{ index: 0, delta, finish_reason: null }] });
      if (pauseMs) await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
    send({ choices: [{ index: 0, delta: {}, finish_reason: finish }] });
    const usage = { prompt_tokens: 12, completion_tokens: deltas.length, prompt_tokens_details: { cached_tokens: 4 } };
    send({ choices: [], usage });
    response.end("data: [DONE]\n\n");
  };
}

/** A text in pieces of some characters. */
export function pieces(text, size = 4) {
  return Array.from({ length: Math.ceil(text.length / size) }, (_, index) => ({ content: text.slice(index * size, (index + 1) * size) }));
}

/** A script that refuses. */
export function refuses(status, code, message, headers = {}) {
  return (response) => {
    response.writeHead(status, { "content-type": "application/json", ...headers });
    response.end(JSON.stringify({ error: { message, type: "error", param: null, code } }));
  };
}

/** A script that breaks off in the middle. */
export function breaksOff(deltas) {
  return (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const delta of deltas) response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`);
    setTimeout(() => response.destroy(), 50);
  };
}
