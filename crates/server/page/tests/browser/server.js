// The real server, which can be killed and started again at the same address.

import { spawn } from "node:child_process";

/** Longest time that a model may take to load. */
const LOAD_MS = 120_000;

/** Starts `ropewalk serve` on a free port. */
export async function startServer(program, model) {
  const server = { process: null, host: "127.0.0.1:0", address: null };
  server.start = async () => {
    server.process = spawn(program, ["serve", model, "--listen", server.host], { stdio: ["ignore", "ignore", "pipe"] });
    server.host = await served(server.process);
    server.address = `http://${server.host}/`;
  };
  server.kill = async () => {
    if (server.process.exitCode !== null || server.process.signalCode !== null) return;
    const ended = new Promise((resolve) => server.process.once("exit", resolve));
    server.process.kill("SIGKILL");
    await ended;
  };
  await server.start();
  return server;
}

/** The address at which a server says that it serves. */
function served(process) {
  let log = "";
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`the server did not start: ${log}`)), LOAD_MS);
    process.once("exit", () => reject(new Error(`the server has ended: ${log}`)));
    process.stderr.setEncoding("utf8").on("data", (piece) => {
      log += piece;
      const found = /served at http:\/\/(\S+)\s/.exec(log);
      if (!found) return;
      clearTimeout(timer);
      resolve(found[1]);
    });
  });
}
