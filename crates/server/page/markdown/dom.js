// Makes DOM nodes of trees, and brings nodes up to date with a changed tree.
//
// Only the tags and attributes listed here can come into being, whatever a tree says.

import { safeUrl } from "./inline.js";

const ATTRIBUTES = {
  a: ["href", "class"],
  button: ["type", "class"],
  code: ["class"],
  div: ["class", "tabindex"],
  input: ["type", "disabled", "checked"],
  li: ["class"],
  ol: ["start"],
  pre: ["tabindex"],
  span: ["class"],
  td: ["class"],
  th: ["class"],
};
for (const tag of ["blockquote", "br", "del", "em", "hr", "p", "strong", "table", "tbody", "thead", "tr", "ul"]) ATTRIBUTES[tag] = [];
for (const level of [3, 4, 5, 6]) ATTRIBUTES[`h${level}`] = ["class"];

/** The DOM node of a tree. */
export function build(tree, document) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const allowed = Object.hasOwn(ATTRIBUTES, tree.tag) ? ATTRIBUTES[tree.tag] : null;
  if (!allowed) throw new Error(`Markdown makes no <${tree.tag}>`);
  const node = document.createElement(tree.tag);
  for (const [name, value] of Object.entries(tree.attributes ?? {})) {
    if (!allowed.includes(name)) throw new Error(`Markdown gives <${tree.tag}> no ${name}`);
    if (name !== "href" || safeUrl(value)) node.setAttribute(name, value);
  }
  if (tree.tag === "a") {
    node.setAttribute("rel", "noopener noreferrer");
    node.setAttribute("target", "_blank");
    node.setAttribute("title", tree.attributes.href);
  }
  for (const child of tree.children ?? []) node.appendChild(build(child, document));
  return node;
}

/** Changes the children of `parent` from those of the trees `before` to those of `after`, and no more than is needed. */
export function patchChildren(parent, before, after, document, offset = 0) {
  let index = 0;
  for (; index < after.length; index += 1) {
    const node = parent.childNodes[offset + index];
    if (index >= before.length) parent.appendChild(build(after[index], document));
    else if (!patch(node, before[index], after[index], document)) parent.replaceChild(build(after[index], document), node);
  }
  while (parent.childNodes.length > offset + after.length) parent.removeChild(parent.lastChild);
}

/** Brings `node` from one tree to another if they are of a kind, and says whether they are. */
function patch(node, before, after, document) {
  if (typeof before === "string" || typeof after === "string") {
    if (typeof before !== typeof after) return false;
    // Appending keeps the reader's selection.
    if (after.length > before.length && after.startsWith(before)) node.appendData(after.slice(before.length));
    else if (before !== after) node.data = after;
    return true;
  }
  if (before.tag !== after.tag || !sameAttributes(before.attributes ?? {}, after.attributes ?? {})) return false;
  patchChildren(node, before.children ?? [], after.children ?? [], document);
  return true;
}

function sameAttributes(before, after) {
  const names = Object.keys(after);
  return names.length === Object.keys(before).length && names.every((name) => before[name] === after[name]);
}
