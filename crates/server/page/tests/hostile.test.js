import assert from "node:assert/strict";
import test from "node:test";

import { safeUrl } from "../markdown/inline.js";
import { GrowingMarkdown } from "../markdown/growing.js";
import { FakeDocument, elements, html } from "./fake-dom.js";

const TAGS = new Set(
  "a blockquote br button code del div em h3 h4 h5 h6 hr input li ol p pre span strong table tbody td th thead tr ul".split(" "),
);

function render(text) {
  const document = new FakeDocument();
  const target = document.createElement("div");
  new GrowingMarkdown(target, document).update(text);
  for (const { tag, attributes } of elements(target)) {
    assert.ok(TAGS.has(tag), tag);
    for (const name of attributes.keys()) assert.ok(!name.startsWith("on") && name !== "style" && name !== "src", name);
    if (attributes.has("href")) {
      assert.match(attributes.get("href"), /^(https?:\/\/|mailto:)/);
      assert.match(attributes.get("rel"), /noopener/);
    }
  }
  return { target, document };
}

test("HTML stays text", () => {
  for (const text of [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>*{display:none}</style>",
    "<!-- --><form action=//evil.example><input name=a>",
    "| <script>a</script> | b |\n|-|-|\n| <img src=x> | c |",
    "- <object data=x>\n> <embed src=x>\n# <meta http-equiv=refresh>",
    "`<b>` **<i>x</i>** [<u>x</u>](https://x.org/)",
  ]) {
    const { target } = render(text);
    const source = html(target);
    assert.ok(source.includes("&lt;"), source);
    assert.ok(!elements(target).some(({ tag }) => ["script", "img", "svg", "iframe", "style", "form", "input"].includes(tag)));
  }
});

test("links that are no web or mail addresses stay text", () => {
  for (const address of [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "java\tscript:alert(1)",
    "\u0001javascript:alert(1)",
    "javascript&colon;alert(1)",
    "&#106;avascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:null/1",
    "//evil.example",
    "/health",
    "#a",
    "",
    "http://",
    "https://[",
  ]) {
    assert.equal(safeUrl(address), null, address);
    for (const text of [`[x](${address})`, `[x](<${address}>)`, `![x](${address})`, `<${address}>`]) {
      assert.ok(!elements(render(text).target).some(({ tag }) => tag === "a"), text);
    }
  }
});

test("an address cannot leave its attribute", () => {
  const { target } = render('[x](https://x.org/"onmouseover="alert(1)) <https://x.org/"x>');
  for (const { attributes } of elements(target)) assert.ok(!attributes.has("onmouseover"));
});

/** Depth of the deepest element. */
function depth(element) {
  return 1 + element.childNodes.reduce((deepest, node) => Math.max(deepest, node.childNodes ? depth(node) : 0), 0);
}

const SIZE = 50_000;
const repeated = (piece, size = SIZE) => piece.repeat(Math.ceil(size / piece.length));

test("depth, size and time are bounded", () => {
  const texts = {
    quotes: repeated(">"),
    "quotes with spaces": repeated("> "),
    "quotes in lines": Array.from({ length: 300 }, (_, level) => `${">".repeat(level)} x`).join("\n"),
    lists: repeated("- "),
    numbers: repeated("1. "),
    "indented lists": Array.from({ length: 300 }, (_, level) => `${" ".repeat(2 * level)}- x`).join("\n"),
    "lists and quotes": repeated("- > "),
    stars: repeated("*"),
    "opening stars": repeated("*a "),
    "nested emphasis": `${repeated("*a ", SIZE / 2)}${repeated(" a*", SIZE / 2)}`,
    "nested strong": `${repeated("**a _b ", SIZE / 2)}${repeated(" b_ a**", SIZE / 2)}`,
    underscores: repeated("_a_b"),
    brackets: repeated("["),
    "closing brackets": repeated("]"),
    "bracket pairs": `${repeated("[", SIZE / 2)}${repeated("]", SIZE / 2)}`,
    "half links": repeated("[a]("),
    "half links with addresses": repeated("[a](https://x.org/"),
    "nested links": `${repeated("[", SIZE / 2)}x${repeated("](https://x.org/)", SIZE / 2)}`,
    images: repeated("![a](https://x.org/a.png)"),
    backticks: Array.from({ length: 300 }, (_, length) => "`".repeat(length + 1)).join(" "),
    "one backtick and much else": `\`${repeated("a ` `` ")}`,
    formulas: repeated("\\(a \\[b $$"),
    entities: repeated("&#"),
    escapes: repeated("\\"),
    addresses: repeated("http://x)))))))))))))))))"),
    "a long address": `http://x.org/${repeated("a(")}`,
    "wide table": `${repeated("|a")}|\n${repeated("|-")}|\n${repeated("|b|\n")}`,
    "long table": `|a|b|\n|-|-|\n${repeated("|c|d|\n")}`,
    "half tables": repeated("a|b\n-|\n"),
    "almost a rule": `${repeated("- ")}x`,
    "hash marks": `# ${repeated("# ")}x`,
    "spaces": `a${repeated(" ")}b\n${repeated(" ")}`,
    fences: repeated("```\n"),
    "open fence": `\`\`\`${repeated("a\n")}`,
    "angle brackets": repeated("<"),
    "many lines": repeated("a\n"),
    "line breaks": repeated("a  \n"),
    "null characters": repeated("\0"),
    "halves of characters": repeated("\ud800*\udc00*"),
  };
  for (const [name, text] of Object.entries(texts)) {
    const started = performance.now();
    const { target, document } = render(text);
    const milliseconds = performance.now() - started;
    assert.ok(depth(target) < 120, `${name}: depth ${depth(target)}`);
    assert.ok(document.created < 6 * text.length + 100, `${name}: ${document.created} nodes for ${text.length} characters`);
    // Anything quadratic would take minutes.
    assert.ok(milliseconds < 20_000, `${name}: ${milliseconds} ms`);
  }
});
