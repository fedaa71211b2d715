// The dialog of settings, and the switch between themes.

import { byId } from "./elements.js";
import { loadKey, loadSettings, saveKey, saveSettings, saveTheme } from "./store.js";

const NUMBERS = { temperature: "temperature", topP: "top-p", maxTokens: "max-tokens", seed: "seed" };
const THEMES = { system: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

/** The settings as they are now: `system`, and numbers and `tools` where they were chosen. */
export class Settings {
  constructor() {
    this.values = loadSettings();
    this.key = loadKey();
    const dialog = byId("settings");
    byId("tools").addEventListener("input", ({ target }) => target.setCustomValidity(readTools(target.value).problem ?? ""));
    byId("more").addEventListener("invalid", () => (byId("more").open = true), { capture: true });
    byId("open-settings").addEventListener("click", () => this.open());
    byId("close-settings").addEventListener("click", () => dialog.close());
    byId("reset-settings").addEventListener("click", () => this.show({}, ""));
    dialog.addEventListener("close", () => this.take());
    // A click beside the dialog closes it.
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  open() {
    this.show(this.values, this.key);
    byId("settings").showModal();
  }

  show(values, key) {
    byId("system").value = typeof values.system === "string" ? values.system : "";
    for (const [name, id] of Object.entries(NUMBERS)) byId(id).value = Number.isFinite(values[name]) ? values[name] : "";
    byId("tools").value = values.tools ? JSON.stringify(values.tools, null, 2) : "";
    byId("tools").setCustomValidity("");
    byId("key").value = key;
    byId("more").open = Boolean(values.tools || key);
  }

  take() {
    this.values = { system: byId("system").value.trim() };
    for (const [name, id] of Object.entries(NUMBERS)) {
      const field = byId(id);
      // What the field itself does not accept is not sent either.
      if (field.value !== "" && field.validity.valid) this.values[name] = field.valueAsNumber;
    }
    const { tools } = readTools(byId("tools").value);
    if (tools) this.values.tools = tools;
    saveSettings(this.values);
    const key = byId("key").value.trim();
    const changed = key !== this.key;
    this.key = key;
    saveKey(key);
    if (changed) this.onKey?.();
  }
}

/** `{tools}` where a text has any, `{problem}` where it is no list of tools. */
function readTools(text) {
  if (!text.trim()) return {};
  try {
    const tools = JSON.parse(text);
    if (Array.isArray(tools)) return tools.length ? { tools } : {};
    return { problem: "This must be a JSON array." };
  } catch (error) {
    return { problem: `This is not JSON: ${error.message}` };
  }
}

/** Lets the theme be switched: as the system, light, dark. */
export function setUpTheme() {
  const button = byId("theme");
  const root = document.documentElement;
  const show = () => {
    const theme = root.dataset.theme ?? "system";
    button.setAttribute("aria-label", THEMES[theme]);
    button.title = THEMES[theme];
    button.querySelector("use").setAttribute("href", `#icon-theme-${theme}`);
  };
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(root.dataset.theme ?? "system") + 1) % names.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    saveTheme(next === "system" ? null : next);
    show();
  });
  show();
}
