// Block Markdown: paragraphs, headings, lists, quotes, tables, code. Text in, a tree of plain objects out.
//
// HTML stays text, indented lines are no code (models fence theirs), and link definitions do not exist.

import { parseInline } from "./inline.js";

/** Lists and quotes nested deeper than this become text. */
const DEPTH_MAX = 16;
/** Longest name of a language that is shown. */
const LANGUAGE_LENGTH_MAX = 32;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|(\d{1,9})([.)]))(?: +|$)/;

/**
 * Parses `text` and returns its top-level blocks, each `{node, start}` with the offset of its first character.
 */
export function parseBlocks(text) {
  const lines = text.split("\n");
  const starts = [];
  let offset = 0;
  for (let index = 0; index < lines.length; index += 1) {
    starts.push(offset);
    offset += lines[index].length + 1;
    lines[index] = withoutTabs(lines[index].replace(/\r$/, ""));
  }
  return new BlockParser(lines, 0).parse().map(({ node, line }) => ({ node, start: starts[line] }));
}

/** Tabs at the beginning of a line count as four spaces. */
function withoutTabs(line) {
  return line.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    "));
}

class BlockParser {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.at = 0;
    this.blocks = [];
  }

  parse() {
    while (this.at < this.lines.length) {
      const line = this.at;
      if (isBlank(this.lines[line])) {
        this.at += 1;
        continue;
      }
      const node = this.fence() ?? this.heading() ?? this.rule() ?? this.quote() ?? this.list() ?? this.table() ?? this.paragraph();
      this.blocks.push({ node, line });
    }
    return this.blocks;
  }

  nodes() {
    return this.parse().map(({ node }) => node);
  }

  fence() {
    const found = fence(this.lines[this.at]);
    if (!found) return null;
    const [, indent, marks, info] = found;
    const content = [];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const end = FENCE.exec(line);
      if (end && end[2].startsWith(marks) && !end[3].trim()) {
        this.at += 1;
        break;
      }
      content.push(line.slice(Math.min(indent.length, indentation(line))));
    }
    const language = info.trim().split(/\s/)[0].slice(0, LANGUAGE_LENGTH_MAX);
    return codeBlock(language, content.join("\n"));
  }

  heading() {
    const line = this.lines[this.at];
    const found = HEADING.exec(line);
    if (!found) return null;
    this.at += 1;
    const text = line.slice(found[0].length).trim().replace(/(?<=^|[ \t])#+$/, "").trim();
    return heading(found[1].length, text);
  }

  rule() {
    if (!isRule(this.lines[this.at])) return null;
    this.at += 1;
    return { tag: "hr" };
  }

  quote() {
    if (this.depth >= DEPTH_MAX || !QUOTE.test(this.lines[this.at])) return null;
    const content = [];
    for (; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (QUOTE.test(line)) content.push(line.replace(QUOTE, ""));
      else if (isBlank(line) || isBlank(content.at(-1)) || beginsBlock(line)) break;
      else content.push(line);
    }
    return { tag: "blockquote", children: new BlockParser(content, this.depth + 1).nodes() };
  }

  list() {
    const kind = itemKind(this.lines[this.at]);
    if (!kind || this.depth >= DEPTH_MAX) return null;
    const number = ITEM.exec(this.lines[this.at])[3];
    const items = [];
    let loose = false;
    while (itemKind(this.lines[this.at]) === kind) {
      const { content, blankAfter } = this.item(ITEM.exec(this.lines[this.at]));
      items.push(content);
      loose ||= blankAfter && itemKind(this.lines[this.at]) === kind;
    }
    const children = items.map((content) => listItem(content, loose, this.depth + 1));
    if (!number) return { tag: "ul", children };
    return { tag: "ol", attributes: { start: String(Number(number)) }, children };
  }

  /** Reads the lines of one item, without their indentation. */
  item([marker, indent]) {
    const line = this.lines[this.at];
    const mark = marker.trimEnd().length;
    const width = marker.length - mark > 4 || line.length === marker.length ? mark + 1 : marker.length;
    // Models often indent what belongs to "1. " by two spaces only.
    const belongs = Math.min(width, indent.length + 2);
    const content = [line.slice(Math.min(width, line.length))];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const next = this.lines[this.at];
      if (isBlank(next)) content.push("");
      else if (indentation(next) >= belongs) content.push(next.slice(Math.min(width, indentation(next))));
      else if (content.at(-1) === "" || ITEM.test(next) || beginsBlock(next)) break;
      else content.push(next.trimStart());
    }
    let end = content.length;
    while (end > 1 && content[end - 1] === "") end -= 1;
    const blankAfter = end < content.length;
    content.length = end;
    return { content, blankAfter };
  }

  table() {
    const [line, next] = [this.lines[this.at], this.lines[this.at + 1]];
    if (!isTable(line, next)) return null;
    const head = cells(line);
    const classes = cells(next).map(alignment);
    // Rows are not filled up to the width of the head: what comes out stays linear in what went in.
    const row = (texts, tag) => ({
      tag: "tr",
      children: texts.slice(0, head.length).map((text, column) => ({
        tag,
        attributes: classes[column] ? { class: classes[column] } : {},
        children: parseInline(text),
      })),
    });
    const rows = [];
    for (this.at += 2; this.at < this.lines.length; this.at += 1) {
      if (isBlank(this.lines[this.at]) || beginsBlock(this.lines[this.at])) break;
      rows.push(row(cells(this.lines[this.at]), "td"));
    }
    const table = { tag: "table", children: [{ tag: "thead", children: [row(head, "th")] }] };
    if (rows.length) table.children.push({ tag: "tbody", children: rows });
    return { tag: "div", attributes: { class: "table", tabindex: "0" }, children: [table] };
  }

  paragraph() {
    const content = [this.lines[this.at].trimStart()];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const underline = /^ {0,3}(={3,}|-{3,}) *$/.exec(line);
      if (underline) {
        this.at += 1;
        return heading(underline[1][0] === "=" ? 1 : 2, content.join("\n"));
      }
      if (isBlank(line) || beginsBlock(line) || isTable(line, this.lines[this.at + 1])) break;
      content.push(line.trimStart());
    }
    return { tag: "p", children: parseInline(content.join("\n").trimEnd()) };
  }
}

/** Whether a line ends a paragraph and begins something else. */
function beginsBlock(line) {
  if (fence(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line)) return true;
  const item = ITEM.exec(line);
  // A number at the beginning of a line is more often a number than a list.
  return item !== null && item[0].length < line.length && (!item[3] || item[3] === "1");
}

function fence(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

/** The character that marks the items of a list, where a line begins one. A line behind the last has none. */
function itemKind(line) {
  const found = line === undefined || isRule(line) ? null : ITEM.exec(line);
  return found && (found[4] ?? found[2]);
}

function isRule(line) {
  return indentation(line) < 4 && /^([-*_])\1{2,}$/.test(line.replace(/[ \t]/g, ""));
}

function isTable(line, next) {
  if (next === undefined || !line.includes("|") || !next.includes("-") || !/^[ \t|:-]+$/.test(next)) return false;
  const marks = cells(next);
  return marks.every((mark) => /^:?-+:?$/.test(mark)) && marks.length === cells(line).length;
}

/** The cells of a table's row. */
function cells(line) {
  const texts = [];
  let text = "";
  let start = 0;
  const row = line.trim();
  for (let at = 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      text += row.slice(start, at);
      start = at + 1;
      at += 1;
    } else if (row[at] === "|") {
      text += row.slice(start, at);
      if (at > 0) texts.push(text.trim());
      text = "";
      start = at + 1;
    }
  }
  text += row.slice(start);
  if (text.trim() || texts.length === 0) texts.push(text.trim());
  return texts;
}

function alignment(mark) {
  if (mark.endsWith(":")) return mark.startsWith(":") ? "center" : "right";
  return null;
}

function listItem(content, loose, depth) {
  const task = /^\[([ xX])\] (?=.)/.exec(content[0]);
  if (task) content[0] = content[0].slice(task[0].length);
  let children = new BlockParser(content, depth).nodes();
  const paragraphs = children.filter(({ tag }) => tag === "p").length;
  if (!loose && paragraphs === 1) children = children.flatMap((node) => (node.tag === "p" ? node.children : [node]));
  if (!task) return { tag: "li", children };
  const checked = task[1] === " " ? {} : { checked: "" };
  const box = { tag: "input", attributes: { type: "checkbox", disabled: "", ...checked } };
  return { tag: "li", attributes: { class: "task" }, children: [box, ...children] };
}

/** Headings of an answer are two levels below the page's own. */
function heading(level, text) {
  return { tag: `h${Math.min(level + 2, 6)}`, attributes: { class: `level-${level}` }, children: parseInline(text) };
}

function codeBlock(language, text) {
  const head = [
    { tag: "span", attributes: { class: "language" }, children: [language || "text"] },
    { tag: "button", attributes: { type: "button", class: "copy-code" }, children: ["Copy"] },
  ];
  const code = { tag: "code", children: [text] };
  return {
    tag: "div",
    attributes: { class: "code" },
    children: [
      { tag: "div", attributes: { class: "code-head" }, children: head },
      { tag: "pre", attributes: { tabindex: "0" }, children: [code] },
    ],
  };
}

function indentation(line) {
  return line.length - line.trimStart().length;
}

function isBlank(line) {
  return line.trim() === "";
}
