// The field in which messages are written.

import { byId } from "./elements.js";

/** Most lines that the field grows to are set by its style; this is where browsers cannot do it themselves. */
const GROWS_BY_ITSELF = CSS.supports("field-sizing", "content");

export class Composer {
  /** `send(text)` takes a message, `stop()` ends an answer, `cancelEdit()` leaves the editing of a message. */
  constructor({ send, stop, cancelEdit }) {
    this.input = byId("input");
    this.send = send;
    this.cancelEdit = cancelEdit;
    this.busy = false;
    this.input.addEventListener("input", () => this.refresh());
    this.input.addEventListener("keydown", (event) => this.key(event));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    byId("stop").addEventListener("click", stop);
    byId("cancel-edit").addEventListener("click", cancelEdit);
    addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || byId("settings").open) return;
      if (this.busy) stop();
      else if (!byId("editing").hidden) cancelEdit();
    });
    this.refresh();
  }

  key(event) {
    // While a word is being composed, Enter chooses it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit();
  }

  submit() {
    const text = this.input.value.trim();
    if (!text || this.busy || this.unready) return;
    this.fill("");
    this.send(text);
  }

  fill(text) {
    this.input.value = text;
    this.refresh();
  }

  /** Shows that a message is being written anew, or that none is. */
  edit(text) {
    byId("editing").hidden = text === null;
    this.fill(text ?? "");
    this.input.focus();
  }

  /** While an answer is under way, sending becomes stopping. */
  setBusy(busy) {
    const focused = document.activeElement === byId("stop") || document.activeElement === byId("send");
    this.busy = busy;
    byId("stop").hidden = !busy;
    byId("send").hidden = busy;
    if (focused) (busy ? byId("stop") : this.input).focus();
    this.refresh();
  }

  /** Without a model there is nobody to send to. */
  setReady(ready) {
    this.unready = !ready;
    this.refresh();
  }

  refresh() {
    byId("send").disabled = this.busy || this.unready || !this.input.value.trim();
    if (GROWS_BY_ITSELF) return;
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }
}
