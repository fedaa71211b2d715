// The list of conversations.

import { byId, iconButton, make } from "./elements.js";
import { listConversations, loadMessages } from "./store.js";

export class Sidebar {
  /** `open(id)` shows a conversation, `create()` a new one, `remove(id)` deletes one. */
  constructor({ open, create, remove }) {
    this.open = open;
    this.remove = remove;
    byId("new-conversation").addEventListener("click", () => {
      this.show(false);
      create();
    });
    byId("open-sidebar").addEventListener("click", () => this.show(true));
    for (const id of ["close-sidebar", "scrim"]) byId(id).addEventListener("click", () => this.show(false));
    // On a wide screen the list covers nothing.
    matchMedia("(max-width: 760px)").addEventListener("change", () => this.show(false));
    byId("sidebar").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.shown) this.show(false);
    });
  }

  /** On a narrow screen the list covers the page while it is shown. */
  show(shown) {
    if (shown === Boolean(this.shown)) return;
    this.shown = shown;
    byId("sidebar").classList.toggle("shown", shown);
    byId("scrim").hidden = !shown;
    byId("open-sidebar").setAttribute("aria-expanded", String(shown));
    document.querySelector(".main").inert = shown;
    (shown ? byId("close-sidebar") : byId("open-sidebar")).focus();
  }

  /** Shows the stored conversations, of which `current` is open. */
  refresh(current) {
    const conversations = listConversations();
    // Building the list anew would take the focus from it.
    const state = JSON.stringify([current, conversations.map(({ id, title }) => [id, title])]);
    if (state === this.state) return;
    this.state = state;
    const items = conversations.map(({ id, title }) => {
      const open = make("button", { type: "button", class: "open", title, "aria-current": id === current ? "true" : null }, title);
      open.addEventListener("click", () => {
        this.show(false);
        this.open(id);
      });
      const save = iconButton("export", `Export “${title}”`, () => exportConversation(id, title));
      const remove = iconButton("trash", `Delete “${title}”`, () => this.confirmRemove(item, remove, id));
      const item = make("li", {}, open, save, remove);
      return item;
    });
    byId("conversations").replaceChildren(...items);
  }

  /** The first press asks, the second one deletes. */
  confirmRemove(item, button, id) {
    if (item.classList.contains("confirming")) {
      this.remove(id);
      (byId("conversations").querySelector("button") ?? byId("new-conversation")).focus();
      return;
    }
    item.classList.add("confirming");
    button.setAttribute("aria-label", "Press again to delete");
    button.title = "Press again to delete";
    button.addEventListener("blur", () => this.refreshItem(item, button), { once: true });
  }

  refreshItem(item, button) {
    item.classList.remove("confirming");
    const label = `Delete “${item.querySelector(".open").textContent}”`;
    button.setAttribute("aria-label", label);
    button.title = label;
  }
}

/** Gives a conversation to the browser as a file. */
function exportConversation(id, title) {
  const content = JSON.stringify({ title, exported: new Date().toISOString(), messages: loadMessages(id) }, null, 2);
  const address = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation";
  make("a", { href: address, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
