import assert from "node:assert/strict";
import test from "node:test";

import { build } from "../markdown/dom.js";
import { GrowingMarkdown } from "../markdown/growing.js";
import { FakeDocument, elements, html } from "./fake-dom.js";

function render(text) {
  const document = new FakeDocument();
  const target = document.createElement("div");
  new GrowingMarkdown(target, document).update(text);
  return target;
}

function check(text, expected) {
  assert.equal(html(render(text)), expected, text);
}

const link = (href, text, more = "") =>
  `<a href="${href}"${more} rel="noopener noreferrer" target="_blank" title="${href}">${text}</a>`;

test("paragraphs and line breaks", () => {
  check("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>");
  check("one  \ntwo\\\nthree<br>four", "<p>one<br></br>two<br></br>three<br></br>four</p>");
  check("a\r\nb", "<p>a\nb</p>");
});

test("headings lie below those of the page", () => {
  check("# One", '<h3 class="level-1">One</h3>');
  check("###### Six ##", '<h6 class="level-6">Six</h6>');
  check("One\n===", '<h3 class="level-1">One</h3>');
  check("#no", "<p>#no</p>");
  check("#", '<h3 class="level-1"></h3>');
});

test("emphasis", () => {
  check("*a* **b** ***c*** ~~d~~", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del></p>");
  check("_a_ __b__ snake_case_name 2 * 3 * 4", "<p><em>a</em> <strong>b</strong> snake_case_name 2 * 3 * 4</p>");
  check("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>");
  check("**open and *open", "<p>**open and *open</p>");
  check("\\*a\\* &lt;b&gt; &#x41; &nope;", "<p>*a* &lt;b> A &amp;nope;</p>");
});

test("code", () => {
  check("`a` and ``b`c``", "<p><code>a</code> and <code>b`c</code></p>");
  check("`*not* emphasis`", "<p><code>*not* emphasis</code></p>");
  check("an `open one", "<p>an `open one</p>");
  const block = (language, text) =>
    `<div class="code"><div class="code-head"><span class="language">${language}</span>` +
    `<button type="button" class="copy-code">Copy</button></div><pre tabindex="0"><code>${text}</code></pre></div>`;
  check("```js\nlet a = 1;\n\n# b\n```\nafter", `${block("js", "let a = 1;\n\n# b")}<p>after</p>`);
  check("~~~\n```\n~~~", block("text", "```"));
  check("```\nopen", block("text", "open"));
  check("````\n```\n````", block("text", "```"));
});

test("formulas are left alone", () => {
  check("\\(a_1 * b_2 * c\\)", '<p><code class="formula">\\(a_1 * b_2 * c\\)</code></p>');
  check("$$x_1$$ costs $5 or $6", '<p><code class="formula">$$x_1$$</code> costs $5 or $6</p>');
});

test("lists", () => {
  check("- a\n- b", "<ul><li>a</li><li>b</li></ul>");
  check("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>');
  check("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>");
  check("- a\n  - b\n    - c\n- d", "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>");
  check("1. a\n  - b\n2. c", '<ol start="1"><li>a<ul><li>b</li></ul></li><li>c</li></ol>');
  check("- a\nlazy\n\nafter", "<ul><li>a\nlazy</li></ul><p>after</p>");
  check("- a\n\n  second", "<ul><li><p>a</p><p>second</p></li></ul>");
  check("text\n- a", "<p>text</p><ul><li>a</li></ul>");
  check("In\n1984. It", "<p>In\n1984. It</p>");
  check("- a\n* b", "<ul><li>a</li></ul><ul><li>b</li></ul>");
  check("123456789. a", '<ol start="123456789"><li>a</li></ol>');
});

test("tasks", () => {
  const box = (checked) => `<input type="checkbox" disabled=""${checked}></input>`;
  check("- [ ] a\n- [x] b", `<ul><li class="task">${box("")}a</li><li class="task">${box(' checked=""')}b</li></ul>`);
});

test("quotes and rules", () => {
  check("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>");
  check("> a\nlazy", "<blockquote><p>a\nlazy</p></blockquote>");
  check("a\n\n---\n\nb", "<p>a</p><hr></hr><p>b</p>");
  check("* * *", "<hr></hr>");
});

test("tables", () => {
  check(
    "| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |\n| 2 |",
    '<div class="table" tabindex="0"><table><thead><tr><th class="center">a</th><th class="right">b</th></tr></thead>' +
      '<tbody><tr><td class="center">1</td><td class="right"><code>x|y</code></td></tr>' +
      '<tr><td class="center">2</td></tr></tbody></table></div>',
  );
  check("a | b\nno", "<p>a | b\nno</p>");
  assert.equal(elements(render("text\na|b\n-|-\n1|2|3")).filter(({ tag }) => tag === "td").length, 2);
});

test("links", () => {
  check("[a *b*](https://x.org/y_z)", `<p>${link("https://x.org/y_z", "a <em>b</em>")}</p>`);
  check('[a](https://x.org/ "title")', `<p>${link("https://x.org/", "a")}</p>`);
  check("<mailto:a@x.org>", `<p>${link("mailto:a@x.org", "mailto:a@x.org")}</p>`);
  check("see https://x.org/a_(b)_c, or (https://x.org/d).", `<p>see ${link("https://x.org/a_(b)_c", "https://x.org/a_(b)_c")}, or (${link("https://x.org/d", "https://x.org/d")}).</p>`);
  check("[a [b](https://x.org/) c](https://y.org/)", `<p>[a ${link("https://x.org/", "b")} c](${link("https://y.org/", "https://y.org/")})</p>`);
  check("[text] and a[0](1)", "<p>[text] and a[0](1)</p>");
});

test("images become links", () => {
  check("![a cat](https://x.org/cat.png)", `<p>${link("https://x.org/cat.png", "Image: a cat", ' class="image-link"')}</p>`);
  check("[![badge](https://x.org/b.svg)](https://x.org/)", `<p>${link("https://x.org/", "Image: badge")}</p>`);
});

test("the builder knows no other tags and attributes", () => {
  const document = new FakeDocument();
  for (const tag of ["script", "img", "iframe", "svg", "style", "constructor", "__proto__"]) {
    assert.throws(() => build({ tag }, document), /Markdown makes no/);
  }
  assert.throws(() => build({ tag: "a", attributes: { href: "https://x.org/", onclick: "x" } }, document), /no onclick/);
  const node = build({ tag: "a", attributes: { href: "javascript:alert(1)" } }, document);
  assert.equal(node.attributes.has("href"), false);
});
