// The chat page in a real browser, first against a real server with a real model, then with scripted answers.
//
//     node check.js CHROMIUM ROPEWALK MODEL FOLDER
//
// Screenshots go into FOLDER, to be looked at.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";

import { appearance } from "./appearance.js";
import { startBrowser } from "./browser.js";
import { docs } from "./docs.js";
import { real } from "./real.js";
import { scripted } from "./scripted.js";
import { startServer } from "./server.js";
import { startStage } from "./stage.js";

const [chromium, ropewalk, model, folder] = process.argv.slice(2);
await mkdir(folder, { recursive: true });

let passed = 0;
let failed = 0;
const server = await startServer(ropewalk, model);
const stage = await startStage(server.host);
const { page, close } = await startBrowser(chromium);

/** Runs one test. Each begins where the one before has ended. */
async function step(name, test) {
  try {
    await test();
    // What the page asked for is its own and nothing else, and nothing went wrong unseen.
    const foreign = page.requests.filter((address) => ![server.address, stage.address, "blob:"].some((own) => address.startsWith(own)));
    assert.deepEqual(foreign, [], "requests to elsewhere");
    assert.deepEqual(page.dialogs, [], "dialogs");
    assert.deepEqual(page.takeComplaints(), [], "complaints");
    console.log(`ok ${name}`);
    passed += 1;
  } catch (error) {
    console.log(`FAILED ${name}\n${error.stack}`);
    await page.screenshot(`${folder}/failed-${failed}.png`).catch(() => {});
    page.takeComplaints();
    failed += 1;
  }
}

try {
  await page.screen(1280, 800, "light");
  await docs({ step, page, server, folder });
  await real({ step, page, server, folder });
  await scripted({ step, page, stage, folder });
  await appearance({ step, page, stage, folder });
} finally {
  await close();
  stage.close();
  await server.kill();
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
