// Answers that no model can be relied on to give: reasoning, tool calls, refusals, hostile Markdown, very long ones.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { breaksOff, pieces, refuses, says } from "./stage.js";
import { HOSTILE, RICH } from "./texts.js";

const IDLE = "document.querySelector('#stop').hidden && !document.querySelector('#send').hidden";
const LAST = "[...document.querySelectorAll('.assistant')].at(-1)";

/** Notes the longest time between two frames. */
const WATCH_FRAMES = `
  window.longest = 0;
  window.watching = true;
  let last = performance.now();
  (function watch(now) {
    longest = Math.max(longest, now - last);
    last = now;
    if (watching) requestAnimationFrame(watch);
  })(last);
`;

/** The content of a file that is being downloaded, once all of it is there. */
async function downloaded(path) {
  const deadline = Date.now() + 10_000;
  for (;;) {
    try {
      return JSON.parse(await readFile(path, "utf8"));
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

export async function scripted({ step, page, stage, folder }) {
  /** Sends a message in a new conversation, or in the open one, and waits for the end of the scripted answer. */
  const ask = async (script, text = "Go on", { same = false } = {}) => {
    stage.script = script;
    if (!same) await page.evaluate("document.querySelector('#new-conversation').click()");
    const count = await page.count(".assistant");
    await page.click("#input");
    await page.type(text);
    await page.press("Enter");
    await page.until("the answer is complete", `document.querySelectorAll('.assistant').length === ${count + 1} && ${IDLE}`);
  };

  await step("hostile Markdown does nothing", async () => {
    await page.open(stage.address);
    await page.until("a model is chosen", "document.querySelector('#model').value");
    await ask(says(pieces(HOSTILE, 3)), HOSTILE);
    const bad = "script, img, iframe, object, embed, form, style, link, svg:not(.icon), [onerror], [onload], [onclick], [onmouseover], [style]";
    assert.equal(await page.evaluate(`document.querySelectorAll("#transcript :is(${bad})").length`), 0);
    assert.equal(await page.evaluate("typeof hacked"), "undefined");
    const links = await page.evaluate("[...document.querySelectorAll('#transcript a')].map(({ protocol, rel }) => protocol + rel)");
    assert.ok(links.length > 0 && links.every((link) => /^(https?|mailto):noopener noreferrer$/.test(link)), String(links));
    assert.ok((await page.text(".assistant .prose")).includes("<script>"));
    await page.screenshot(`${folder}/hostile-light.png`);
  });

  await step("the browser itself would refuse text as HTML", async () => {
    const refused = "(() => { try { document.body.innerHTML = '<p>'; return false } catch { return true } })()";
    assert.equal(await page.evaluate(refused), true);
    page.expectComplaint(/TrustedHTML/);
  });

  await step("Markdown looks like what it means", async () => {
    await ask(says(pieces(RICH)), "Show me everything you can do");
    for (const selector of ["h3", "h4", "ol ul", "table td.right", "blockquote", "pre code", "strong", "em", "del", "hr", "a", "input[disabled]"]) {
      assert.ok((await page.count(`.assistant .prose ${selector}`)) > 0, selector);
    }
    await page.evaluate("document.querySelector('#scroller').scrollTop = 0");
    await page.screenshot(`${folder}/markdown-light.png`);
  });

  await step("code can be copied", async () => {
    await page.call("Browser.grantPermissions", { permissions: ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    await page.click(".copy-code");
    await page.until("it is copied", "document.querySelector('.copy-code').dataset.outcome === 'Copied'");
    assert.match(await page.evaluate("navigator.clipboard.readText()"), /^def primes/);
  });

  await step("reasoning is folded", async () => {
    await ask(says(pieces("<think>\nLet me see. **Well.**\n</think>\n\nForty-two.")));
    assert.equal(await page.text(".assistant > .prose"), "Forty-two.");
    assert.equal(await page.evaluate("document.querySelector('.reasoning').open"), false);
    await page.click(".reasoning summary");
    assert.equal(await page.text(".reasoning .prose"), "Let me see. Well.");
    await ask(says([{ reasoning_content: "Let me " }, { reasoning_content: "see." }, { content: "Forty-two." }]));
    assert.equal(await page.evaluate("document.querySelector('.reasoning .prose').textContent"), "Let me see.");
    // What the model thought is not told to it again.
    await ask(says([{ content: "Yes." }]), "Sure?", { same: true });
    assert.deepEqual(stage.bodies.at(-1).messages.map(({ content }) => content), ["Go on", "Forty-two.", "Sure?"]);
  });

  await step("tool calls are shown, and can be answered", async () => {
    const call = (index, id, name, given) => ({ tool_calls: [{ index, id, type: "function", function: { name, arguments: given } }] });
    const deltas = [call(0, "c1", "get_weather", '{"city":'), { tool_calls: [{ index: 0, function: { arguments: ' "Paris"}' } }] }, call(1, "c2", "clock", "{}")];
    await ask(says(deltas, { finish: "tool_calls" }));
    assert.equal(await page.count(".call"), 2);
    assert.match(await page.text(".call"), /get_weather[^]*"city": "Paris"/);
    stage.script = says([{ content: "Sunny." }]);
    await page.click(".results textarea");
    await page.type("25 degrees");
    await page.click(".results button");
    await page.until("it is answered", `${IDLE} && ${LAST}.querySelector('.prose').innerText === 'Sunny.'`);
    const [, called, first, second] = stage.bodies.at(-1).messages;
    assert.deepEqual(called.tool_calls.map(({ id }) => id), ["c1", "c2"]);
    assert.deepEqual([first, second], [
      { role: "tool", tool_call_id: "c1", content: "25 degrees" },
      { role: "tool", tool_call_id: "c2", content: "" },
    ]);
    assert.equal(await page.count(".results"), 0);
  });

  await step("refusals are shown and can be tried again", async () => {
    await ask(refuses(429, "queue_full", "the queue is full", { "retry-after": "7" }));
    assert.match(await page.text(".failure"), /busy[^]*7 s/);
    await ask(refuses(400, "context_length_exceeded", "the prompt has 9000 tokens"));
    assert.match(await page.text(".failure"), /too long[^]*9000/);
    await ask(refuses(401, "invalid_api_key", "no such key"));
    assert.match(await page.text(".failure"), /API key[^]*settings/);
    page.expectComplaint(/status of 4\d\d/);
    await ask(breaksOff([{ content: "Half an " }, { content: "answer" }]));
    page.expectComplaint(/ERR_/);
    assert.match(await page.text(".failure"), /was lost/);
    assert.match(await page.text(".assistant .prose"), /Half an answer/);
    stage.script = says([{ content: "A whole answer" }]);
    await page.click(".failure button");
    await page.until("it is answered", `${IDLE} && ${LAST}.querySelector('.prose').innerText === 'A whole answer'`);
    assert.equal(await page.count(".message"), 2);
  });

  await step("the last message can be edited, and its answer had again", async () => {
    await ask(says([{ content: "One" }]), "First");
    await ask(says([{ content: "Two" }]), "Second", { same: true });
    stage.script = says([{ content: "Three" }]);
    await page.click(".assistant:last-child [aria-label=Regenerate]");
    await page.until("it is answered again", `${IDLE} && ${LAST}.querySelector('.prose').innerText === 'Three'`);
    await page.evaluate("[...document.querySelectorAll('[aria-label=Edit]')].at(-1).click()");
    assert.equal(await page.evaluate("document.querySelector('#input').value"), "Second");
    await page.press("Escape");
    assert.equal(await page.evaluate("document.querySelector('#input').value"), "");
    await page.evaluate("[...document.querySelectorAll('[aria-label=Edit]')].at(-1).click()");
    await page.type("!");
    await page.press("Enter");
    await page.until("it is answered", `${IDLE} && document.querySelectorAll('.message').length === 4`);
    assert.deepEqual(stage.bodies.at(-1).messages.map(({ content }) => content), ["First", "One", "Second!"]);
  });

  await step("a very long answer keeps the page quick", async () => {
    const text = Array.from({ length: 400 }, (_, part) => `## Part ${part}\n\n${"Some *words* of a long answer. ".repeat(8)}\n\n- one\n- two\n`).join("\n");
    const code = `\n\`\`\`\n${"let line = 1;\n".repeat(4000)}\`\`\`\n\nThe end.`;
    await page.evaluate(WATCH_FRAMES);
    await ask(says(pieces(text + code)));
    const longest = await page.evaluate("watching = false, longest");
    console.log(`   longest time between two frames: ${Math.round(longest)} ms`);
    assert.equal(await page.count(".assistant .prose > h4"), 400);
    assert.ok((await page.text(".assistant .prose > p:last-child")).includes("The end."));
    assert.ok(await page.evaluate("(({ scrollTop, scrollHeight, clientHeight }) => scrollHeight - scrollTop - clientHeight < 2)(document.querySelector('#scroller'))"));
  });

  await step("conversations can be exported and deleted", async () => {
    await page.call("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: `${folder}/downloads` });
    await ask(says([{ content: "Kept" }]), "Keep this");
    const count = await page.count("#conversations li");
    await page.hover("#conversations li");
    await page.click("#conversations li [aria-label^=Export]");
    const { title, messages } = await downloaded(`${folder}/downloads/Keep-this.json`);
    assert.deepEqual([title, messages.map(({ content }) => content)], ["Keep this", ["Keep this", "Kept"]]);
    await page.click("#conversations li [aria-label^=Delete]");
    assert.equal(await page.count("#conversations li"), count, "the first press only asks");
    await page.click("#conversations [aria-label='Press again to delete']");
    await page.until("it is gone", `document.querySelectorAll('#conversations li').length === ${count - 1}`);
    assert.equal(await page.count(".message"), 0);
  });
}
