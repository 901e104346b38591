// One Chromium for the tests: Debian's, or the one that CHROMIUM names. It opens the built page and records every request and message.
import { existsSync, mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const PLACES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const FLAGS =
  "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";

export const executable = PLACES.find((path) => path && existsSync(path));
export const URL_OF_PAGE = new URL("../dist/index.html", import.meta.url).href;
const ARTEFACTS = fileURLToPath(new URL("../artefacts/", import.meta.url));

let browser;

export async function start() {
  mkdirSync(ARTEFACTS, { recursive: true });
  browser = await chromium.launch({ executablePath: executable, headless: true, args: FLAGS.split(" ") });
}

export const stop = () => browser?.close();

/** Opens the page in its own context; `trouble` collects unexpected messages, errors and requests. */
export async function open(hash = "", options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
  const trouble = [];
  page.on("console", (message) => trouble.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => trouble.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(URL_OF_PAGE) && !/^(data|blob):/.test(request.url())) trouble.push(`request: ${request.url()}`);
  });
  await page.goto(URL_OF_PAGE + hash);
  return { page, context, trouble };
}

export const keep = (page, name, options = {}) => page.screenshot({ path: `${ARTEFACTS}${name}.png`, fullPage: true, ...options });
export const keepPrint = (page) => page.pdf({ path: `${ARTEFACTS}print.pdf`, format: "A4" });
