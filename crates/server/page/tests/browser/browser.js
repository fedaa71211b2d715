// A headless Chromium, driven over its debugging protocol through a pair of pipes: nothing to install but the browser.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** No wait of these tests is meant to take longer. */
const PATIENCE_MS = 60_000;

/** Starts a browser and gives its only page. */
export async function startBrowser(program) {
  const profile = await mkdtemp(join(tmpdir(), "check-page-"));
  const flags = ["--headless=new", "--remote-debugging-pipe", `--user-data-dir=${profile}`, "--no-first-run", "--disable-gpu"];
  // Its sandbox needs rights that containers and root do not have; all that it opens here is our own page.
  flags.push("--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars", "about:blank");
  const process = spawn(program, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  const ended = new Promise((resolve) => process.once("exit", resolve));
  const connection = new Connection(process.stdio[3], process.stdio[4]);
  process.once("exit", () => connection.fail(new Error("the browser has ended")));
  const { targetInfos } = await connection.call("Target.getTargets");
  const { targetId } = targetInfos.find(({ type }) => type === "page");
  const { sessionId } = await connection.call("Target.attachToTarget", { targetId, flatten: true });
  const page = new Page(connection, sessionId);
  for (const domain of ["Page", "Runtime", "Log", "Network"]) await page.call(`${domain}.enable`);
  const close = async () => {
    process.kill();
    await ended;
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  };
  return { page, close };
}

/** Messages of the protocol: JSON, each ended by a null byte. */
class Connection {
  constructor(input, output) {
    this.input = input;
    this.calls = new Map();
    this.listeners = [];
    this.last = 0;
    let rest = "";
    output.setEncoding("utf8").on("data", (piece) => {
      const messages = (rest + piece).split("\0");
      rest = messages.pop();
      for (const message of messages) this.take(JSON.parse(message));
    });
    input.on("error", (error) => this.fail(error));
  }

  call(method, params = {}, sessionId) {
    const id = (this.last += 1);
    this.input.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${method} took too long`)), PATIENCE_MS);
      this.calls.set(id, { resolve, reject, timer, method });
    });
  }

  take(message) {
    if (message.id === undefined) {
      for (const listener of this.listeners) listener(message);
      return;
    }
    const { resolve, reject, timer, method } = this.calls.get(message.id);
    this.calls.delete(message.id);
    clearTimeout(timer);
    if (message.error) reject(new Error(`${method}: ${message.error.message}`));
    else resolve(message.result);
  }

  fail(error) {
    for (const { reject, timer } of this.calls.values()) {
      clearTimeout(timer);
      reject(error);
    }
    this.calls.clear();
  }
}

/** What a person can do with a page, and see of it. */
export class Page {
  constructor(connection, session) {
    this.connection = connection;
    this.session = session;
    /** Everything that the page logged or the browser complained about. */
    this.complaints = [];
    /** Addresses of all requests. */
    this.requests = [];
    /** Dialogs that opened: no page of ours opens any. */
    this.dialogs = [];
    connection.listeners.push(({ method, params }) => this.hear(method, params));
  }

  hear(method, params) {
    if (method === "Runtime.exceptionThrown") this.complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled") this.complaints.push(params.args.map(({ value }) => value).join(" "));
    if (method === "Log.entryAdded") this.complaints.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    if (method === "Page.javascriptDialogOpening") {
      this.dialogs.push(params.message);
      this.call("Page.handleJavaScriptDialog", { accept: false }).catch(() => {});
    }
  }

  /** Complaints since the last time. */
  takeComplaints() {
    return this.complaints.splice(0);
  }

  /** Forgives complaints of this kind, of which there must be one. */
  expectComplaint(pattern) {
    const others = this.complaints.filter((text) => !pattern.test(text));
    if (others.length === this.complaints.length) throw new Error(`nothing complained about ${pattern}`);
    this.complaints = others;
  }

  call(method, params) {
    return this.connection.call(method, params, this.session);
  }

  async open(address) {
    await this.call("Page.navigate", { url: address });
    await this.until("the page is loaded", "document.readyState === 'complete' && location.href !== 'about:blank'");
  }

  /** The value of an expression in the page. */
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.call("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  /** Waits until an expression holds, and gives its value. */
  async until(what, expression) {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
      const value = await this.evaluate(expression).catch(() => null);
      if (value) return value;
      if (Date.now() > deadline) throw new Error(`waited in vain until ${what}: ${expression}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  text(selector) {
    return this.evaluate(`document.querySelector(${JSON.stringify(selector)})?.innerText ?? ""`);
  }

  count(selector) {
    return this.evaluate(`document.querySelectorAll(${JSON.stringify(selector)}).length`);
  }

  /** Presses the mouse in the middle of an element, which must be there to be hit. */
  async click(selector) {
    const [x, y] = await this.hover(selector);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.call("Input.dispatchMouseEvent", { type, x, y, button: "left", clickCount: 1 });
    }
  }

  /** Moves the mouse to the middle of an element. */
  async hover(selector) {
    const quoted = JSON.stringify(selector);
    const [x, y] = await this.until(
      `the mouse reaches ${selector}`,
      `(() => {
        const element = document.querySelector(${quoted});
        element.scrollIntoView({ block: "nearest" });
        const { x, y, width, height } = element.getBoundingClientRect();
        const [left, top] = [x + width / 2, y + height / 2];
        const hit = document.elementFromPoint(left, top);
        return (element === hit || element.contains(hit)) && [left, top];
      })()`,
    );
    await this.call("Input.dispatchMouseEvent", { type: "mouseMoved", x, y });
    return [x, y];
  }

  /** Types text where the focus is. */
  type(text) {
    return this.call("Input.insertText", { text });
  }

  async press(key, modifiers = 0) {
    const codes = { Enter: 13, Escape: 27, Tab: 9 };
    const text = key === "Enter" ? { text: "\r" } : {};
    const event = { key, code: key, windowsVirtualKeyCode: codes[key], modifiers };
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", ...event, ...text });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  /** Takes the size of a screen, and the theme of a system. */
  async screen(width, height, theme, touch = false) {
    await this.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: touch ? 2 : 1, mobile: touch });
    await this.call("Emulation.setTouchEmulationEnabled", { enabled: touch });
    const features = [{ name: "prefers-color-scheme", value: theme }, { name: "hover", value: touch ? "none" : "hover" }];
    await this.call("Emulation.setEmulatedMedia", { features });
  }

  async screenshot(path) {
    const { data } = await this.call("Page.captureScreenshot", { format: "png" });
    await writeFile(path, Buffer.from(data, "base64"));
  }
}
