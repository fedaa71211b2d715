// The page that shows the OpenAPI document.

import assert from "node:assert/strict";

export async function docs({ step, page, server, folder }) {
  const fits = async () => assert.ok(await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen");

  await step("every operation of the API is shown", async () => {
    await page.open(`${server.address}docs`);
    await page.until("operations are there", "document.querySelector('.operation')");
    const { paths } = await (await fetch(`${server.address}openapi.json`)).json();
    const operations = Object.values(paths).flatMap((item) => Object.values(item).map(({ operationId }) => operationId));
    assert.ok(operations.length > 20);
    for (const name of operations) {
      assert.equal(await page.count(`#${name}`), 1, name);
      assert.equal(await page.count(`.contents a[href="#${name}"]`), 1, name);
    }
    assert.match(await page.text("#chatCompletions"), /temperature\s+number, 0 to 2/);
    assert.match(await page.text("#chatCompletions pre"), /^curl http:\/\/\S+\/v1\/chat\/completions /);
    assert.ok(await page.evaluate("document.querySelector('#problem').hidden"));
  });

  await step("the address leads to an operation", async () => {
    await page.click('.contents a[href="#health"]');
    const seen = "(() => { const { top } = document.querySelector('#health').getBoundingClientRect(); return top >= -1 && top < innerHeight; })()";
    await page.until("it is seen", seen);
    await page.call("Page.navigate", { url: "about:blank" });
    await page.until("another page is there", "location.href === 'about:blank'");
    await page.call("Page.navigate", { url: `${server.address}docs#health` });
    await page.until("it is seen", `document.querySelector('.operation') && ${seen}`);
  });

  for (const [name, width, height, theme] of [["large", 1280, 800, "light"], ["large", 1280, 800, "dark"], ["phone", 360, 740, "light"]]) {
    await step(`the description of the API, ${name}, ${theme}`, async () => {
      await page.screen(width, height, theme, name === "phone");
      await page.open(`${server.address}docs`);
      await page.until("operations are there", "document.querySelector('.operation')");
      await page.evaluate("document.querySelectorAll('#chatCompletions details').forEach((it) => { it.open = true; })");
      await page.screenshot(`${folder}/docs-${name}-${theme}.png`);
      await fits();
      await page.evaluate("document.querySelector('#chatCompletions').scrollIntoView()");
      await page.screenshot(`${folder}/docs-operation-${name}-${theme}.png`);
    });
  }
  await page.screen(1280, 800, "light");
}
