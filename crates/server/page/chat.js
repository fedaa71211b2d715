// The open conversation: its messages on the screen, in the store, and the answer that is under way.

import { ApiFailure } from "./api.js";
import { announce, byId, make } from "./elements.js";
import { emptyAnswer, generate, requestBody } from "./generation.js";
import { AnswerView, toolMessage, userMessage } from "./message.js";
import { deleteConversation, loadMessages, saveConversation } from "./store.js";

/** Longest title of a conversation in characters. */
const TITLE_LENGTH_MAX = 60;
/** Time between two savings of an answer that grows, in milliseconds. */
const SAVE_INTERVAL_MS = 2000;
/** Longest answer that is read out at its end, in characters. */
const ANNOUNCED_LENGTH_MAX = 2000;

export class Chat {
  /** `model()` gives the chosen model, `stored()` is called when the list of conversations has changed. */
  constructor({ settings, scrolling, composer, model, stored }) {
    Object.assign(this, { settings, scrolling, composer, model, stored });
    this.messages = [];
    this.controller = null;
    this.open(null);
    // What has been said of an answer is kept when the page is left in the middle.
    addEventListener("pagehide", () => this.save());
  }

  /** Shows a stored conversation, or an empty one. */
  open(id) {
    if (this.controller) {
      this.stop();
      this.controller = null;
      this.composer.setBusy(false);
    }
    this.cancelEdit();
    this.messages = id ? loadMessages(id) : [];
    this.id = this.messages.length ? id : null;
    this.render();
    this.scrolling.toEnd();
  }

  remove(id) {
    if (id === this.id) {
      // An answer that is under way keeps its array, and what is empty is not stored.
      this.messages.length = 0;
      this.open(null);
    }
    deleteConversation(id);
    this.stored();
  }

  /** Adds a message, or puts it in place of the one that is being edited, and asks for the answer. */
  send(text) {
    if (this.editing !== null) this.messages.length = this.editing;
    this.cancelEdit();
    this.id ??= crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  /** Asks anew for the last answer. */
  regenerate() {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.answer();
  }

  /** Tells the model what the tools that it called have answered. */
  respond(results) {
    const calls = this.messages.at(-1).toolCalls;
    calls.forEach(({ id, name }, index) => this.messages.push({ role: "tool", toolCallId: id, name, content: results[index] }));
    this.answer();
  }

  /** Ends the answer that is under way. What has come of it stays. */
  stop() {
    this.controller?.abort();
  }

  edit() {
    this.editing = this.messages.findLastIndex(({ role }) => role === "user");
    byId("transcript").children[this.editing]?.classList.add("edited");
    this.composer.edit(this.messages[this.editing].content);
  }

  cancelEdit() {
    const edited = this.editing ?? null;
    this.editing = null;
    byId("transcript").querySelector(".edited")?.classList.remove("edited");
    if (edited !== null) this.composer.edit(null);
  }

  async answer() {
    const message = emptyAnswer();
    const body = requestBody(this.model(), this.messages, this.settings.values);
    const { id, messages } = this;
    messages.push(message);
    const controller = new AbortController();
    this.controller = controller;
    this.render();
    this.save();
    this.stored();
    this.scrolling.toEnd();
    this.composer.setBusy(true);
    announce("The answer is being written.");
    const view = this.view;
    let saved = performance.now();
    try {
      await generate(body, this.settings.key, message, controller.signal, () => {
        view.drawSoon();
        if (performance.now() - saved < SAVE_INTERVAL_MS) return;
        saved = performance.now();
        this.save();
      });
    } catch (error) {
      if (!controller.signal.aborted) message.error = errorText(error);
    }
    view.draw(true);
    this.finished(id, messages, message, controller);
  }

  finished(id, messages, message, controller) {
    store(id, messages);
    if (this.controller !== controller) return;
    this.controller = null;
    this.composer.setBusy(false);
    this.renderLastQuestion();
    this.scrolling.follow();
    this.stored();
    const spoken = this.view.answer.textContent.slice(0, ANNOUNCED_LENGTH_MAX);
    announce(message.error ?? (message.finish === "stopped" ? "Stopped." : `Answer: ${spoken}`));
  }

  save() {
    if (this.id && !store(this.id, this.messages)) this.onFull?.();
  }

  /** Shows all messages anew. While an answer grows, only its own view changes. */
  render() {
    const transcript = byId("transcript");
    const views = this.messages.map((message, index) => this.renderMessage(message, index === this.messages.length - 1));
    transcript.replaceChildren(...views);
    byId("welcome").hidden = this.messages.length > 0;
    document.title = this.messages.length ? `${title(this.messages)} · Ropewalk` : "Ropewalk";
    if (!this.controller) this.renderLastQuestion();
  }

  renderMessage(message, last) {
    if (message.role === "user") return userMessage(message, null);
    if (message.role === "tool") return toolMessage(message);
    const actions = { regenerate: () => this.regenerate(), respond: (results) => this.respond(results) };
    const view = new AnswerView(message, last ? actions : {});
    view.onDraw = () => this.scrolling.follow();
    view.draw(!(last && this.controller));
    this.view = view;
    return view.element;
  }

  /** The last question can be edited once its answer is there. */
  renderLastQuestion() {
    const index = this.messages.findLastIndex(({ role }) => role === "user");
    if (index < 0) return;
    const view = userMessage(this.messages[index], () => this.edit());
    byId("transcript").children[index].replaceWith(view);
    // A conversation that was left before its answer came can still be answered.
    if (this.messages.at(-1).role !== "assistant") {
      const ask = make("button", { type: "button", class: "button", on: { click: () => this.answer() } }, "Answer");
      byId("transcript").append(make("div", { class: "message" }, ask));
    }
  }
}

function store(id, messages) {
  return messages.length === 0 || saveConversation({ id, title: title(messages), messages });
}

function title(messages) {
  const line = messages[0].content.trim().split("\n")[0];
  return line.length > TITLE_LENGTH_MAX ? `${line.slice(0, TITLE_LENGTH_MAX - 1)}…` : line || "Conversation";
}

function errorText(error) {
  if (!(error instanceof ApiFailure)) return `Something went wrong in this page: ${error.message}`;
  if (error.kind === "context") return `${error.message} Begin a new conversation, or edit your last message.`;
  if (error.kind === "key") return `${error.message} It can be entered in the settings.`;
  if (error.kind === "busy") return `${error.message} Try again in ${error.retryAfterSeconds} s.`;
  return error.message;
}
