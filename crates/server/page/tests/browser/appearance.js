// The page in both themes, on a phone, for the keyboard alone, and for those who hear it.

import assert from "node:assert/strict";

import { pieces, says } from "./stage.js";
import { RICH } from "./texts.js";

const IDLE = "document.querySelector('#stop').hidden && !document.querySelector('#send').hidden";

export async function appearance({ step, page, stage, folder }) {
  const fits = async () => assert.ok(await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen");

  /** A conversation with everything in it. */
  const converse = async () => {
    stage.script = says([{ reasoning_content: "The sieve is the classic answer." }, ...pieces(RICH)]);
    await page.evaluate("document.querySelector('#new-conversation').click()");
    await page.click("#input");
    await page.type("How do I find prime numbers quickly?");
    await page.press("Enter");
    await page.until("the answer is complete", `document.querySelector('.figures')?.innerText.includes('tokens') && ${IDLE}`);
    await page.evaluate("document.querySelector('#scroller').scrollTop = 0");
  };

  await step("the theme follows the system and can be chosen", async () => {
    const background = () => page.evaluate("getComputedStyle(document.body).backgroundColor");
    await page.screen(1280, 800, "light");
    await page.open(stage.address);
    await page.until("a model is chosen", "document.querySelector('#model').value");
    const light = await background();
    await page.screen(1280, 800, "dark");
    const dark = await background();
    assert.notEqual(light, dark);
    await page.click("#theme");
    assert.equal(await background(), light);
    await page.call("Page.reload");
    await page.until("a model is chosen", "document.querySelector('#model').value");
    assert.equal(await background(), light);
    assert.equal(await page.evaluate("document.querySelector('#theme').getAttribute('aria-label')"), "Theme: light");
    await page.screen(1280, 800, "light");
    await page.click("#theme");
    assert.equal(await background(), dark);
    await page.click("#theme");
    assert.equal(await background(), light);
  });

  for (const theme of ["light", "dark"]) {
    await step(`a large screen, ${theme}`, async () => {
      await page.screen(1280, 800, theme);
      await converse();
      await page.screenshot(`${folder}/large-${theme}.png`);
      await fits();
      const [list, main] = await page.evaluate("['.sidebar', '.main'].map((part) => document.querySelector(part).getBoundingClientRect().toJSON())");
      assert.ok(list.left === 0 && list.right === main.left && main.right === 1280 && list.height === 800 && main.height === 800);
      await page.click("#open-settings");
      await page.screenshot(`${folder}/large-settings-${theme}.png`);
      await page.press("Escape");
    });

    await step(`a phone, ${theme}`, async () => {
      await page.screen(360, 740, theme, true);
      await converse();
      // The list of conversations slides away.
      await page.until("nothing moves", "document.getAnimations().length === 0");
      await page.screenshot(`${folder}/phone-${theme}.png`);
      await fits();
      await page.evaluate("document.querySelector('#scroller').scrollTop = 700");
      await page.screenshot(`${folder}/phone-scrolled-${theme}.png`);
      await page.click("#open-sidebar");
      await page.until("the list is there", "document.getAnimations().length === 0 && document.querySelector('#sidebar').getBoundingClientRect().x === 0");
      await page.screenshot(`${folder}/phone-conversations-${theme}.png`);
      await page.press("Escape");
      await page.until("the list is gone", "document.getAnimations().length === 0 && document.querySelector('#sidebar').getBoundingClientRect().right <= 0");
      await page.click("#open-settings");
      await fits();
      await page.screenshot(`${folder}/phone-settings-${theme}.png`);
      await page.press("Escape");
      await page.evaluate("document.querySelector('#new-conversation').click()");
      await page.until("nothing moves", "document.getAnimations().length === 0");
      await page.screenshot(`${folder}/phone-welcome-${theme}.png`);
      await fits();
    });
  }

  await step("the keyboard reaches everything, and shows where it is", async () => {
    await page.screen(1280, 800, "light");
    await converse();
    await page.evaluate("document.activeElement.blur()");
    const reached = new Set();
    for (let presses = 0; presses < 80; presses += 1) {
      await page.press("Tab");
      const { id, label, outlined } = await page.evaluate(`(() => {
        const { activeElement } = document;
        const style = getComputedStyle(activeElement);
        const field = activeElement.id === "input";
        const outlined = activeElement === document.body || field || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0);
        return { id: activeElement.id, label: activeElement.getAttribute("aria-label") ?? activeElement.className, outlined };
      })()`);
      assert.ok(outlined, `the focus on ${id || label} cannot be seen`);
      reached.add(id || label);
    }
    for (const name of ["new-conversation", "open-settings", "theme", "input", "Edit", "Copy", "Regenerate", "copy-code"]) {
      assert.ok(reached.has(name), `${name} is not among ${[...reached].join(", ")}`);
    }
    await page.click("#open-settings");
    await page.press("Escape");
    assert.equal(await page.evaluate("document.activeElement.id"), "open-settings");
    await page.click("#input");
    await page.type("one");
    await page.press("Enter", 8);
    await page.type("two");
    assert.equal(await page.evaluate("document.querySelector('#input').value"), "one\ntwo");
    await page.evaluate("document.querySelector('#input').value = ''");
  });

  await step("everything that can be used has a name for those who hear the page", async () => {
    const { nodes } = await page.call("Accessibility.getFullAXTree");
    const roles = ["button", "textbox", "combobox", "link", "checkbox", "spinbutton"];
    const used = nodes.filter(({ ignored, role }) => !ignored && roles.includes(role?.value));
    assert.ok(used.length > 10);
    // The boxes of a list of tasks are read with the text beside them.
    const nameless = used.filter(({ name, role }) => !name?.value && role.value !== "checkbox");
    assert.deepEqual(nameless.map(({ role }) => role.value), []);
    const landmarks = new Set(nodes.filter(({ ignored }) => !ignored).map(({ role }) => role?.value));
    for (const role of ["navigation", "main", "banner", "contentinfo", "log", "status", "article"]) assert.ok(landmarks.has(role), role);
  });

  await step("text stands out from what is behind it", async () => {
    for (const theme of ["light", "dark"]) {
      await page.screen(1280, 800, theme);
      const pairs = await page.evaluate(CONTRASTS);
      for (const [pair, contrast] of pairs) assert.ok(contrast >= 4.5, `${theme}: ${pair} has a contrast of ${contrast}`);
    }
  });
}

/** Contrasts, as WCAG 2 defines them, of the colours that text and its backgrounds have. */
const CONTRASTS = `(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const probe = document.body.appendChild(document.createElement("i"));
  const luminance = (name) => {
    probe.style.color = "var(--" + name + ")";
    canvas.fillStyle = getComputedStyle(probe).color;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const texts = {
    text: ["background", "surface", "sunken", "bubble", "hover"],
    muted: ["background", "surface", "sunken", "hover"],
    accent: ["background", "surface"],
    danger: ["danger-surface"],
    "on-accent": ["accent"],
  };
  const pairs = Object.entries(texts).flatMap(([text, behind]) => behind.map((name) => {
    const [dark, light] = [luminance(text), luminance(name)].sort((one, other) => one - other);
    return [text + " on " + name, (light + 0.05) / (dark + 0.05)];
  }));
  probe.remove();
  return pairs;
})()`;
