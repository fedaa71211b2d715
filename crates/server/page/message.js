// How one message looks.

import { copy } from "./clipboard.js";
import { icon, iconButton, make } from "./elements.js";
import { GrowingMarkdown } from "./markdown/growing.js";
import { splitReasoning } from "./reasoning.js";

/** Longest time between two drawings of a growing answer, in milliseconds. */
const DRAW_INTERVAL_MAX_MS = 1000;

/** What the user wrote, with a button to write it anew where `edit` is given. */
export function userMessage(message, edit) {
  const text = make("div", { class: "bubble" }, message.content);
  const actions = make("div", { class: "actions" }, edit ? iconButton("edit", "Edit", edit) : null, copyButton(() => message.content));
  return make("article", { class: "message user", "aria-label": "You" }, text, actions);
}

/** What a tool has answered. */
export function toolMessage({ name, content }) {
  const summary = make("summary", {}, "Result of ", make("b", {}, name));
  const result = make("details", { class: "call" }, summary, make("pre", { tabindex: "0" }, make("code", {}, content)));
  return make("article", { class: "message tool", "aria-label": "Result of a tool" }, result);
}

/** An answer, complete or still growing. */
export class AnswerView {
  /** Where they are given, `regenerate()` asks anew for this answer and `respond(results)` answers its tool calls. */
  constructor(message, { regenerate, respond }) {
    this.message = message;
    this.regenerate = regenerate;
    this.respond = respond;
    this.answer = make("div", { class: "prose" });
    this.markdown = new GrowingMarkdown(this.answer);
    this.calls = make("div", { class: "calls" });
    this.error = make("div", { class: "failure", role: "group", "aria-label": "Error", hidden: true });
    this.waiting = make("div", { class: "waiting", "aria-hidden": "true" }, make("span"), make("span"), make("span"));
    this.foot = make("div", { class: "actions" });
    this.element = make("article", { class: "message assistant", "aria-label": "Answer" }, this.waiting, this.answer, this.calls, this.error, this.foot);
    this.drawing = 0;
    this.drawn = { at: 0, took: 0 };
  }

  /** Draws soon: once per frame at most, and less often where drawing takes long, so that the page stays quick. */
  drawSoon() {
    if (this.drawing) return;
    const pause = Math.min(DRAW_INTERVAL_MAX_MS, this.drawn.took * 4) - (performance.now() - this.drawn.at);
    const draw = () => {
      this.drawing = 0;
      this.draw(false);
    };
    this.drawing = pause > 16 ? setTimeout(() => requestAnimationFrame(draw), pause) : requestAnimationFrame(draw);
  }

  /** Shows the message as it is now. */
  draw(complete) {
    // A drawing that is still to come finds nothing new, which costs nothing.
    if (this.complete) return;
    this.complete = complete;
    const started = performance.now();
    const { message } = this;
    const { reasoning, answer, thinking } = splitReasoning(message.content, complete);
    this.drawReasoning([message.reasoning, reasoning].filter(Boolean).join("\n\n"), !complete && (thinking || !answer));
    this.drawAnswer(answer);
    this.drawCalls(complete);
    this.waiting.hidden = complete || Boolean(answer || reasoning || message.reasoning || message.toolCalls.length);
    this.element.classList.toggle("growing", !complete);
    this.element.setAttribute("aria-busy", String(!complete));
    if (complete) this.drawEnd();
    this.drawn = { at: performance.now(), took: performance.now() - started };
    this.onDraw?.();
  }

  drawAnswer(answer) {
    // Once the end of the reasoning shows that what came before was no answer, the answer begins anew.
    if (!answer.startsWith(this.shown ?? "")) {
      this.answer.replaceChildren();
      this.markdown = new GrowingMarkdown(this.answer);
    }
    if (answer !== this.shown) this.markdown.update(answer);
    this.shown = answer;
  }

  drawReasoning(text, thinking) {
    if (!text) return;
    if (!this.reasoning) {
      this.reasoningText = make("div", { class: "prose" });
      this.reasoningLabel = make("summary");
      this.reasoning = make("details", { class: "reasoning" }, this.reasoningLabel, this.reasoningText);
      this.reasoningMarkdown = new GrowingMarkdown(this.reasoningText);
      this.element.prepend(this.reasoning);
    }
    this.reasoningLabel.textContent = thinking ? "Thinking…" : "Reasoning";
    this.reasoning.classList.toggle("thinking", thinking);
    if (!text.startsWith(this.shownReasoning ?? "")) {
      this.reasoningText.replaceChildren();
      this.reasoningMarkdown = new GrowingMarkdown(this.reasoningText);
    }
    if (text !== this.shownReasoning) this.reasoningMarkdown.update(text);
    this.shownReasoning = text;
  }

  drawCalls(complete) {
    const { toolCalls } = this.message;
    for (let index = 0; index < toolCalls.length; index += 1) {
      const view = this.calls.children[index] ?? this.calls.appendChild(callView());
      const { name, arguments: given } = toolCalls[index];
      view.querySelector("b").textContent = name || "…";
      view.querySelector("code").textContent = complete ? pretty(given) : given;
    }
  }

  resultForm() {
    const fields = resultFields(this.message.toolCalls);
    const send = make("button", { type: "submit", class: "button" }, "Send results");
    const submit = (event) => {
      event.preventDefault();
      this.respond(fields.map((field) => field.querySelector("textarea").value));
    };
    return make("form", { class: "results", on: { submit } }, ...fields, send);
  }

  drawEnd() {
    const { message } = this;
    if (message.error) {
      this.error.hidden = false;
      this.error.replaceChildren(make("p", {}, message.error));
      if (this.regenerate) this.error.append(make("button", { type: "button", class: "button", on: { click: this.regenerate } }, icon("again"), "Try again"));
    }
    if (this.respond && message.toolCalls.length && !message.error) this.calls.append(this.resultForm());
    const note = [figures(message.figures), ending(message)].filter(Boolean).join(" · ");
    this.foot.replaceChildren(
      ...(message.content ? [copyButton(() => splitReasoning(message.content, true).answer)] : []),
      ...(this.regenerate ? [iconButton("again", "Regenerate", this.regenerate)] : []),
      make("span", { class: "figures", title: details(message.figures) }, note),
    );
  }
}

/** Asks the user for what the tools answer. */
function resultFields(toolCalls) {
  return toolCalls.map(({ name }) => make("label", { class: "field" }, `Result of ${name}`, make("textarea", { rows: "2" })));
}

function callView() {
  const summary = make("summary", {}, "Tool call: ", make("b"));
  return make("details", { class: "call", open: true }, summary, make("pre", { tabindex: "0" }, make("code")));
}

/** Arguments as indented JSON, or as they came where they are none. */
function pretty(given) {
  try {
    return JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    return given;
  }
}

/** How an answer ended, where that is worth a word. */
function ending({ finish, error, content, reasoning, toolCalls }) {
  if (finish === "length") return "cut at the token limit";
  if (finish === "stopped") return "stopped";
  if (error) return "";
  // The page was left while the answer was under way.
  if (!finish) return "not finished";
  return content || reasoning || toolCalls.length ? "" : "an empty answer";
}

/** Tokens, speed and wait of an answer in words. */
function figures(figures) {
  if (!figures?.tokens) return "";
  const parts = [figures.tokens === 1 ? "1 token" : `${figures.tokens.toLocaleString("en")} tokens`];
  if (figures.perSecond > 0) parts.push(`${figures.perSecond.toFixed(figures.perSecond < 10 ? 2 : 1)} tokens/s`);
  if (figures.firstSeconds >= 0) parts.push(`first after ${figures.firstSeconds.toFixed(2)} s`);
  return parts.join(" · ");
}

function details(figures) {
  if (!figures?.promptTokens) return null;
  const cached = figures.cachedTokens ? `, of which ${figures.cachedTokens} were still known` : "";
  return `Prompt of ${figures.promptTokens} tokens${cached}`;
}

function copyButton(text) {
  const button = iconButton("copy", "Copy", () => copy(text(), button));
  return button;
}
