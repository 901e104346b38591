// The built site in Chromium, from the disk: nothing comes from the network, phones do not scroll sideways, search finds.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

// Both are packages of the fit calculator.
const require = createRequire(new URL("../fit-calculator/package.json", import.meta.url));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const SITE = new URL("../target/site/", import.meta.url).href;
const PAGES = ["index.html", "reference/tasks.html", "how-to/buckets.html"];

let browser;
before(async () => (browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] })));
after(() => browser?.close());

/** Opens a page; `trouble` collects unexpected messages, errors and requests. */
async function open(name, width, colorScheme) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  const trouble = [];
  page.on("console", (message) => trouble.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => trouble.push(`error: ${error.message}`));
  page.on("request", (request) => /^(file|data|blob|about):/.test(request.url()) || trouble.push(`request: ${request.url()}`));
  await page.goto(SITE + name);
  await page.locator("html.js").waitFor();
  return { page, trouble };
}

for (const name of PAGES) {
  for (const [width, colours] of [[1280, "light"], [320, "dark"]]) {
    test(`${name}, ${width} pixels wide, ${colours}: it fits, is accessible and loads nothing from elsewhere`, async () => {
      const { page, trouble } = await open(name, width, colours);
      await page.locator("[data-md-color-scheme]").first().waitFor();
      await page.waitForFunction(() => document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").length === 0);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, "it scrolls sideways");
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => axe.run({ preload: false }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), []);
      assert.deepEqual(trouble, []);
      await page.close();
    });
  }
}

test("the search finds the guide to dead jobs", async () => {
  const { page, trouble } = await open("index.html", 1280, "light");
  await page.locator(".md-search__input").click();
  await page.keyboard.type("dead jobs");
  const first = page.locator(".md-search-result__link").first();
  await first.waitFor();
  assert.match(await first.getAttribute("href"), /how-to\/retries\.html/);
  assert.deepEqual(trouble, []);
});
