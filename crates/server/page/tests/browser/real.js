// A conversation with the real server: send, stream, stop, second turn, reload, and the server's death.

import assert from "node:assert/strict";

const IDLE = "document.querySelector('#stop').hidden";
const LAST = "[...document.querySelectorAll('.assistant')].at(-1)";

export async function real({ step, page, server, folder }) {
  const health = async () => (await fetch(`${server.address}health`)).json();
  const send = async (text) => {
    await page.click("#input");
    await page.type(text);
    await page.press("Enter");
  };

  await step("the page opens and knows the model", async () => {
    await page.open(server.address);
    await page.until("a model is chosen", "document.querySelector('#model').value && document.querySelector('#welcome-model').innerText");
    assert.equal(await page.evaluate("document.activeElement.id"), "input");
    await page.screenshot(`${folder}/welcome-light.png`);
  });

  await step("settings are kept and sent", async () => {
    await page.click("#open-settings");
    await page.click("#temperature");
    await page.type("0");
    await page.click("#max-tokens");
    await page.type("600");
    await page.press("Enter");
    await page.until("they are stored", "!document.querySelector('#settings').open && localStorage['ropewalk.settings']");
    assert.deepEqual(await page.evaluate("JSON.parse(localStorage['ropewalk.settings'])"), { system: "", temperature: 0, maxTokens: 600 });
  });

  await step("an answer streams", async () => {
    await send("Write a short story about a rope maker.");
    await page.until("the answer has begun", `${LAST}?.querySelector('.prose').innerText.length > 10 && !${IDLE}`);
    const early = await page.evaluate(`${LAST}.innerText.length`);
    await page.until("the answer has grown", `${LAST}.innerText.length > ${early + 40}`);
    await page.until("the answer is complete", IDLE);
    assert.match(await page.text(".figures"), /^[\d,]+ tokens · [\d.]+ tokens\/s · first after [\d.]+ s/);
    await page.until("listeners are told", "document.querySelector('#status').innerText.startsWith('Answer: ')");
  });

  await step("Escape stops the second answer, and the server computes no further", async () => {
    await send("Now tell the story of each of her hundred apprentices, one after the other, in great detail.");
    await page.until("the answer has begun", `document.querySelectorAll('.assistant').length === 2 && ${LAST}.querySelector('.prose').innerText.length > 10`);
    await page.press("Escape");
    await page.until("it is stopped", `${IDLE} && ${LAST}.querySelector('.figures').innerText.includes('stopped')`);
    const deadline = Date.now() + 10_000;
    while ((await health()).running > 0) assert.ok(Date.now() < deadline, "the request still runs");
    assert.equal(await page.evaluate("document.activeElement.id"), "input");
  });

  await step("a reload brings the conversation back", async () => {
    const before = await page.text("#transcript");
    await page.call("Page.reload");
    await page.until("it is there again", "document.querySelectorAll('.assistant').length === 2 && document.querySelector('#model').value");
    assert.equal(await page.text("#transcript"), before);
    assert.equal(await page.count("#conversations li"), 1);
    await page.screenshot(`${folder}/conversation-light.png`);
  });

  await step("the server dies in the middle of an answer, which can be asked for again", async () => {
    await send("Tell me everything about ropes, with a chapter for each century.");
    await page.until("the answer has begun", `document.querySelectorAll('.assistant').length === 3 && ${LAST}.querySelector('.prose').innerText.length > 10`);
    await server.kill();
    await page.until("the loss is shown", `${IDLE} && ${LAST}.querySelector('.failure').innerText.includes('was lost')`);
    page.expectComplaint(/ERR_/);
    await page.screenshot(`${folder}/error-light.png`);
    await page.click(".assistant:last-child .failure button");
    await page.until("there is no server", `${IDLE} && ${LAST}.querySelector('.failure').innerText.includes('cannot be reached')`);
    page.expectComplaint(/ERR_CONNECTION_REFUSED/);
    await server.start();
    await page.click(".assistant:last-child .failure button");
    await page.until("it answers again", `${LAST}.querySelector('.prose').innerText.length > 10`);
    await page.click("#stop");
    await page.until("it is stopped", IDLE);
    assert.equal(await page.count(".assistant"), 3);
    assert.equal(await page.evaluate(`${LAST}.querySelector('.failure').hidden`), true);
  });
}
