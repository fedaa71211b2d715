// What stays in the browser: conversations and settings. Storage may be full, forbidden, or hold anything.

const PREFIX = "ropewalk.";
const INDEX = "conversations";

/** Reads a stored value, or `fallback` where there is none that can be read. */
function load(name, fallback, storage = localStorage) {
  try {
    return JSON.parse(storage.getItem(PREFIX + name)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Stores a value and says whether that went well. */
function save(name, value, storage = localStorage) {
  try {
    storage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** `{id, title, updated}` of all conversations, the latest first. */
export function listConversations() {
  const list = load(INDEX, []);
  const valid = Array.isArray(list) ? list.filter((entry) => typeof entry?.id === "string" && typeof entry.title === "string") : [];
  return valid.sort((one, other) => (other.updated ?? 0) - (one.updated ?? 0));
}

/** The messages of a conversation. */
export function loadMessages(id) {
  const messages = load(`conversation.${id}`, []);
  return Array.isArray(messages) ? messages.map(readMessage).filter((message) => message !== null) : [];
}

/** Stores a conversation and says whether there was room for it. */
export function saveConversation({ id, title, messages }) {
  const others = listConversations().filter((entry) => entry.id !== id);
  return save(`conversation.${id}`, messages) && save(INDEX, [{ id, title, updated: Date.now() }, ...others]);
}

export function deleteConversation(id) {
  save(INDEX, listConversations().filter((entry) => entry.id !== id));
  try {
    localStorage.removeItem(`${PREFIX}conversation.${id}`);
  } catch {
    // Then nothing was stored either.
  }
}

/** Calls `listener` when another tab changes the conversations. */
export function onOtherTab(listener) {
  addEventListener("storage", ({ key }) => {
    if (key === null || key === PREFIX + INDEX) listener();
  });
}

export function loadSettings() {
  const settings = load("settings", {});
  return typeof settings === "object" && !Array.isArray(settings) ? settings : {};
}

export function saveSettings(settings) {
  return save("settings", settings);
}

/** The model that was chosen last, which the server may no longer have. */
export function loadModel() {
  const model = load("model", "");
  return typeof model === "string" ? model : "";
}

export function saveModel(model) {
  return save("model", model);
}

/** The key is a secret: it lives as long as the tab. */
export function loadKey() {
  const key = load("key", "", sessionStorage);
  return typeof key === "string" ? key : "";
}

export function saveKey(key) {
  return save("key", key, sessionStorage);
}

/** The theme is stored as plain text, since `theme.js` reads it before this module is there. */
export function saveTheme(theme) {
  try {
    if (theme) localStorage.setItem(`${PREFIX}theme`, theme);
    else localStorage.removeItem(`${PREFIX}theme`);
  } catch {
    // The choice then lasts until the page is left.
  }
}

function readMessage(message) {
  if (!["user", "assistant", "tool"].includes(message?.role)) return null;
  const text = (value) => (typeof value === "string" ? value : "");
  const calls = Array.isArray(message.toolCalls) ? message.toolCalls : [];
  return {
    ...message,
    content: text(message.content),
    toolCallId: text(message.toolCallId),
    name: text(message.name),
    reasoning: text(message.reasoning),
    toolCalls: calls.map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) })),
  };
}
