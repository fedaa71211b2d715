// Copying text.

import { announce, make } from "./elements.js";

/** Copies text and says so on the button for a moment. */
export async function copy(text, button) {
  let outcome = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages from other machines without TLS have no clipboard, but they have this.
    outcome = copyBySelection(text) ? "Copied" : "Could not copy";
  }
  button.dataset.outcome = outcome;
  announce(outcome);
  setTimeout(() => delete button.dataset.outcome, 1500);
}

function copyBySelection(text) {
  const field = make("textarea", { class: "hidden", "aria-hidden": "true", tabindex: "-1" });
  const focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}
