// Puts the page together.

import { fetchModels } from "./api.js";
import { Chat } from "./chat.js";
import { copy } from "./clipboard.js";
import { Composer } from "./composer.js";
import { byId, make } from "./elements.js";
import { Scrolling } from "./scrolling.js";
import { Settings, setUpTheme } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { loadModel, onOtherTab, saveModel } from "./store.js";

const SUGGESTIONS = [
  "Explain how tides work, in plain words",
  "Write a function that finds prime numbers",
  "Compare three ways to store energy, as a table",
  "Draft a short thank-you note to a neighbour",
];

setUpTheme();
const settings = new Settings();
const scrolling = new Scrolling();
const composer = new Composer({
  send: (text) => chat.send(text),
  stop: () => chat.stop(),
  cancelEdit: () => chat.cancelEdit(),
});
const chat = new Chat({ settings, scrolling, composer, model: () => byId("model").value, stored: refresh });
const sidebar = new Sidebar({
  open: (id) => openConversation(id),
  create: () => openConversation(null),
  remove: (id) => chat.remove(id),
});

function openConversation(id) {
  chat.open(id);
  refresh();
  // On a phone the focus would bring up its keyboard.
  if (!matchMedia("(pointer: coarse)").matches) byId("input").focus();
}

/** Brings the list of conversations and the address up to date. */
function refresh() {
  sidebar.refresh(chat.id);
  const address = chat.id ? `#${chat.id}` : location.pathname;
  history.replaceState(null, "", address);
}

/** What the server has said of its models. */
let models = [];

/** Fills the choice of models, or says why that is not possible. */
async function loadModels() {
  const select = byId("model");
  try {
    models = await fetchModels(settings.key);
    const chosen = select.value || loadModel();
    select.replaceChildren(...models.map(({ id }) => make("option", { value: id }, id)));
    if (models.some(({ id }) => id === chosen)) select.value = chosen;
    select.disabled = models.length < 2;
    composer.setReady(models.length > 0);
    describeModel();
    notify(models.length ? null : "The server has no model.");
  } catch (error) {
    select.replaceChildren(make("option", { value: "" }, "No model"));
    composer.setReady(false);
    notify(error.message, loadModels);
  }
}

/** Says what can be expected of the chosen model. */
function describeModel() {
  const context = models.find(({ id }) => id === byId("model").value)?.max_model_len;
  const room = Number.isInteger(context) ? ` and takes conversations of up to ${context.toLocaleString("en")} tokens` : "";
  byId("welcome-model").textContent = `The model runs on your own machines${room}.`;
}

/** Shows a notice above the field for messages, with a way to try again where there is one. */
function notify(text, retry) {
  const notice = byId("notice");
  notice.hidden = !text;
  if (!text) return;
  const button = retry ? make("button", { type: "button", class: "text-button", on: { click: retry } }, "Try again") : null;
  notice.replaceChildren(text, ...(button ? [button] : []));
}

byId("suggestions").append(
  ...SUGGESTIONS.map((text) => make("button", { type: "button", class: "suggestion", on: { click: () => suggest(text) } }, text)),
);

function suggest(text) {
  composer.fill(text);
  byId("input").focus();
}

// Buttons of code blocks come and go with the text; one listener serves them all.
byId("transcript").addEventListener("click", ({ target }) => {
  if (target.matches?.(".copy-code")) copy(target.closest(".code").querySelector("pre").textContent, target);
});

chat.onFull = () => notify("The browser's storage is full: this conversation is not kept. Delete some others.");
settings.onKey = loadModels;
byId("model").addEventListener("change", ({ target }) => {
  saveModel(target.value);
  describeModel();
});
onOtherTab(() => sidebar.refresh(chat.id));
openConversation(location.hash.slice(1) || null);
loadModels();
