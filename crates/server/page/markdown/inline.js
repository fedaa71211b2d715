// Inline Markdown: emphasis, code, links, line breaks. Text in, a tree of plain objects out; `dom.js` makes nodes of it.
//
// Model output is foreign text. What comes out is linear in what went in, its depth is bounded, and the time too: openers
// are searched on a stack of bounded height, never in the text.

/** Emphasis and links nested deeper than this stay as they were written. */
const DEPTH_MAX = 12;
/** Openers that wait for their end. When there are more, the oldest stay as they were written. */
const OPENERS_MAX = 64;
/** Longest address that becomes a link. */
const URL_LENGTH_MAX = 4096;
/** Most punctuation marks that are taken off the end of a bare address. */
const TRAILING_MARKS_MAX = 16;

const SPECIAL = /[\\`*_~[\]!<&\n$]|https?:\/\//g;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–" };

/** Parses `text` and returns an array of nodes: strings, or `{tag, attributes, children}`. */
export function parseInline(text) {
  return new InlineParser(text).parse();
}

/** `address` if it is one that the page may link to, else `null`. */
export function safeUrl(address) {
  if (address.length > URL_LENGTH_MAX || !/^(?:https?:\/\/|mailto:)/i.test(address)) return null;
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    /** What has been read: strings, nodes, and openers (`{opener, ...}`) that may yet turn out to be text. */
    this.items = [];
    /** The openers among `items`, in order. */
    this.openers = [];
    /** Lengths of runs of backticks that have no end behind `at`. */
    this.unclosedCode = new Set();
    /** Endings of formulas that do not come any more. */
    this.unclosedFormulas = new Set();
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      if (next > this.at) this.items.push(text.slice(this.at, next));
      this.at = next;
      if (found) this.special(text[next]);
    }
    return finish(this.items);
  }

  special(character) {
    switch (character) {
      case "\\": return this.escape();
      case "`": return this.code();
      case "*": case "_": case "~": return this.emphasis(character);
      case "[": return this.open("[", 1);
      case "]": return this.link();
      case "!": return this.text[this.at + 1] === "[" ? this.open("![", 2) : this.literal(1);
      case "<": return this.angle();
      case "&": return this.entity();
      case "\n": return this.lineBreak();
      case "$": return this.formula("$$", "$$") || this.literal(1);
      default: return this.bareUrl();
    }
  }

  literal(length) {
    this.items.push(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  escape() {
    if (this.formula("\\(", "\\)") || this.formula("\\[", "\\]")) return;
    const next = this.text[this.at + 1];
    if (next === "\n") {
      this.items.push({ tag: "br" });
      this.at += 2;
    } else if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
      this.items.push(next);
      this.at += 2;
    } else {
      this.literal(1);
    }
  }

  /** Formulas are shown as they were written: their stars and underscores are not emphasis. */
  formula(start, end) {
    if (!this.text.startsWith(start, this.at) || this.unclosedFormulas.has(end)) return false;
    const close = this.text.indexOf(end, this.at + start.length);
    if (close < 0) {
      this.unclosedFormulas.add(end);
      return false;
    }
    const content = this.text.slice(this.at, close + end.length);
    this.items.push({ tag: "code", attributes: { class: "formula" }, children: [content] });
    this.at = close + end.length;
    return true;
  }

  code() {
    const length = runLength(this.text, this.at, "`");
    const start = this.at + length;
    const end = this.unclosedCode.has(length) ? -1 : this.closingBackticks(start, length);
    if (end < 0) {
      this.unclosedCode.add(length);
      return this.literal(length);
    }
    let content = this.text.slice(start, end).replaceAll("\n", " ");
    if (content.startsWith(" ") && content.endsWith(" ") && content.trim()) content = content.slice(1, -1);
    this.items.push({ tag: "code", children: [content] });
    this.at = end + length;
  }

  closingBackticks(from, length) {
    for (let at = this.text.indexOf("`", from); at >= 0; at = this.text.indexOf("`", at)) {
      const run = runLength(this.text, at, "`");
      if (run === length) return at;
      at += run;
    }
    return -1;
  }

  emphasis(character) {
    const { text } = this;
    const count = runLength(text, this.at, character);
    if (character === "~" && count !== 2) return this.literal(count);
    const [before, after] = [text[this.at - 1] ?? " ", text[this.at + count] ?? " "];
    const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
    const [markBefore, markAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
    const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
    const underscore = character === "_";
    const opens = left && (!underscore || !right || markBefore);
    let rest = count;
    if (right && (!underscore || !left || markAfter)) rest = this.closeEmphasis(character, rest);
    this.at += count;
    if (rest === 0) return;
    if (opens) this.push({ opener: character, count: rest, source: character.repeat(rest) });
    else this.items.push(character.repeat(rest));
  }

  /** Ends emphasis with `count` characters as far as there are openers, and returns how many are left. */
  closeEmphasis(character, count) {
    while (count > 0) {
      const index = this.openers.findLastIndex((opener) => opener.opener === character);
      if (index < 0) break;
      const opener = this.openers[index];
      const used = character === "~" || (count >= 2 && opener.count >= 2) ? 2 : 1;
      if (used > count || used > opener.count) break;
      const tag = character === "~" ? "del" : used === 2 ? "strong" : "em";
      const position = this.items.lastIndexOf(opener);
      const children = finish(this.items.splice(position + 1));
      this.openers.length = index + 1;
      opener.count -= used;
      opener.source = character.repeat(opener.count);
      if (opener.count === 0) {
        this.items.pop();
        this.openers.pop();
      }
      const mark = character.repeat(used);
      append(this.items, nest({ tag, children }, [mark, ...children, mark]));
      count -= used;
    }
    return count;
  }

  open(opener, length) {
    this.at += length;
    this.push({ opener, count: 0, source: opener, active: true });
  }

  push(opener) {
    this.items.push(opener);
    this.openers.push(opener);
    if (this.openers.length > OPENERS_MAX) this.openers.shift();
  }

  link() {
    const index = this.openers.findLastIndex(({ opener }) => opener === "[" || opener === "![");
    const opener = this.openers[index];
    const target = opener?.active ? destination(this.text, this.at + 1) : null;
    const href = target && safeUrl(target.address);
    if (!href) {
      if (index >= 0) this.openers.splice(index, 1);
      return this.literal(1);
    }
    const children = finish(this.items.splice(this.items.lastIndexOf(opener)).slice(1));
    this.openers.length = index;
    append(this.items, opener.opener === "[" ? this.linkNodes(href, children) : [imageLink(href, children)]);
    this.at = target.end;
  }

  linkNodes(href, children) {
    for (const outer of this.openers) if (outer.opener === "[") outer.active = false;
    // A picture within a link is shown by its text: links cannot be nested.
    const content = children.flatMap((child) => (child.tag === "a" ? child.children : [child]));
    const node = { tag: "a", attributes: { href }, children: content.length ? content : [href] };
    return nest(node, content);
  }

  angle() {
    const lineBreak = /^<br\s{0,8}\/?>/i.exec(this.text.slice(this.at, this.at + 16));
    if (lineBreak) {
      this.items.push({ tag: "br" });
      this.at += lineBreak[0].length;
      return;
    }
    const address = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,4096})>/i.exec(this.text.slice(this.at, this.at + URL_LENGTH_MAX));
    const href = address && safeUrl(address[1]);
    if (!href) return this.literal(1);
    this.items.push({ tag: "a", attributes: { href }, children: [address[1]] });
    this.at += address[0].length;
  }

  entity() {
    const found = /^&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,8}));/i.exec(this.text.slice(this.at, this.at + 12));
    const text = found && entityText(found);
    if (!text) return this.literal(1);
    this.items.push(text);
    this.at += found[0].length;
  }

  lineBreak() {
    const last = this.items.at(-1);
    if (typeof last === "string") {
      const trimmed = last.trimEnd();
      this.items[this.items.length - 1] = trimmed;
      this.items.push(last.endsWith("  ") ? { tag: "br" } : "\n");
    } else {
      this.items.push("\n");
    }
    this.at += 1;
  }

  bareUrl() {
    const before = this.text[this.at - 1] ?? " ";
    const found = /^https?:\/\/[^\s<>"`|]{1,4096}/.exec(this.text.slice(this.at, this.at + URL_LENGTH_MAX));
    if (!found || /\w/.test(before)) return this.literal(4);
    const address = withoutTrailingMarks(found[0]);
    const href = safeUrl(address);
    // Within the text of a link there is no link.
    if (!href || this.openers.some(({ opener, active }) => opener === "[" && active)) return this.literal(address.length);
    this.items.push({ tag: "a", attributes: { href }, children: [address] });
    this.at += address.length;
  }
}

/** An image is never loaded: a link says what and where it is. */
function imageLink(href, children) {
  const label = plainText(children) || href;
  return { tag: "a", attributes: { href, class: "image-link" }, children: [`Image: ${label}`] };
}

/** Appends all of `more`, of which there may be more than a call can have arguments. */
function append(items, more) {
  for (const item of more) items.push(item);
}

/** `node`, or `otherwise` where it would lie too deep. */
function nest(node, otherwise) {
  node.height = 1 + node.children.reduce((height, child) => Math.max(height, child.height ?? 0), 0);
  return node.height <= DEPTH_MAX ? [node] : otherwise;
}

/** Openers that found no end become text, and neighbouring texts one. */
function finish(items) {
  const merged = [];
  for (const item of items) {
    const value = item.opener ? item.source : item;
    if (typeof value === "string" && typeof merged.at(-1) === "string") merged[merged.length - 1] += value;
    else if (value !== "") merged.push(value);
  }
  return merged;
}

/** Where the `(address "title")` behind a link's text leads and ends, else `null`. */
function destination(text, at) {
  if (text[at] !== "(") return null;
  const found = /^\(\s{0,8}(?:<([^<>\n]*)>|([^\s()]*(?:\([^\s()]*\)[^\s()]*){0,8}))(?:\s{1,8}(?:"[^"]*"|'[^']*'))?\s{0,8}\)/.exec(
    text.slice(at, at + URL_LENGTH_MAX),
  );
  return found && { address: found[1] ?? found[2], end: at + found[0].length };
}

function withoutTrailingMarks(address) {
  let end = address.length;
  while (address.length - end < TRAILING_MARKS_MAX && /[.,:;!?'*_~)\]]/.test(address[end - 1])) {
    // A parenthesis that was opened in the address belongs to it.
    const open = address[end - 1] === ")" && address.lastIndexOf("(", end - 1) > address.lastIndexOf(")", end - 2);
    if (open) break;
    end -= 1;
  }
  return address.slice(0, end);
}

function entityText([, decimal, hexadecimal, name]) {
  if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : null;
  const code = decimal ? parseInt(decimal, 10) : parseInt(hexadecimal, 16);
  return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : null;
}

function runLength(text, at, character) {
  let end = at;
  while (text[end] === character) end += 1;
  return end - at;
}

/** The text of a tree. */
export function plainText(nodes) {
  return nodes.map((node) => (typeof node === "string" ? node : plainText(node.children ?? []))).join("");
}
