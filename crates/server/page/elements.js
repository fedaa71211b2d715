// Small helpers to make and find elements. Text goes in as text; nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The element of the page with this id. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/** A new element with these properties (`class`, `on` for listeners, other attributes) and children. */
export function make(tag, { on = {}, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** One of the drawings at the beginning of the page. */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("class", "icon");
  drawing.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  drawing.append(use);
  return drawing;
}

/** A button that is only a drawing, with a name for those who do not see it. */
export function iconButton(name, label, click) {
  return make("button", { type: "button", class: "icon-button small", "aria-label": label, title: label, on: { click } }, icon(name));
}

/** Tells people who listen to the page instead of looking at it. */
export function announce(text) {
  byId("status").textContent = text;
}
