// As much of a document as the renderer uses. Setting `innerHTML` or anything else unknown is an error.

class FakeNode {
  constructor() {
    this.childNodes = [];
    Object.preventExtensions(this);
  }

  get lastChild() {
    return this.childNodes.at(-1);
  }

  appendChild(child) {
    this.childNodes.push(child);
    return child;
  }

  replaceChild(child, old) {
    this.childNodes[this.childNodes.indexOf(old)] = child;
  }

  removeChild(child) {
    this.childNodes.splice(this.childNodes.indexOf(child), 1);
  }
}

class FakeElement extends FakeNode {
  #tag;
  #attributes = new Map();

  constructor(tag) {
    super();
    this.#tag = tag;
  }

  get tag() {
    return this.#tag;
  }

  get attributes() {
    return this.#attributes;
  }

  setAttribute(name, value) {
    this.#attributes.set(name, value);
  }
}

class FakeText {
  constructor(data) {
    this.data = data;
  }

  appendData(more) {
    this.data += more;
  }
}

export class FakeDocument {
  created = 0;

  createElement(tag) {
    this.created += 1;
    return new FakeElement(tag);
  }

  createTextNode(data) {
    this.created += 1;
    return new FakeText(data);
  }
}

/** HTML of the children of a fake element, written so that text cannot be taken for a tag. */
export function html(element) {
  return element.childNodes.map(nodeHtml).join("");
}

function nodeHtml(node) {
  if (node instanceof FakeText) return node.data.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const attributes = [...node.attributes].map(([name, value]) => ` ${name}="${value.replaceAll('"', "&quot;")}"`).join("");
  return `<${node.tag}${attributes}>${html(node)}</${node.tag}>`;
}

/** All elements below `element`. */
export function elements(element) {
  return element.childNodes.filter((node) => node instanceof FakeElement).flatMap((node) => [node, ...elements(node)]);
}
