// The page in a real browser: the effect of every control, keyboard, pointer, address, files, sizes, accessibility.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { gzipSync } from "node:zlib";
import { INPUTS } from "../src/model.js";
import { executable, keep, keepPrint, open, start, stop } from "./browser.js";

const built = readFileSync(new URL("../dist/index.html", import.meta.url));
const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

if (!executable) {
  console.log("skipped: the page in a browser (no Chromium; Debian: apt install chromium, or CHROMIUM=/path/to/it)");
  process.exit(process.env.CI ? 1 : 0);
}
before(start);
after(stop);

/** Runs a test with the page open; the page must log, throw and request nothing. */
function onPage(name, hash, act, options) {
  test(name, async () => {
    const { page, context, trouble } = await open(hash, options);
    await act(page, context);
    await context.close();
    assert.deepEqual(trouble, []);
  });
}

const text = (page, selector) => page.locator(selector).innerText();
const set = (page, key, value) => page.locator(`#in-${key}`).fill(String(value));
const model = (page, name) => page.locator(`label[for="model-${name}"]`).click();
/** Returns all results on the page, without the controls. */
const answers = (page) =>
  page.evaluate(() => ["verdict", "tiles", "tenfold", "month", "facts"].map((id) => document.getElementById(id).innerText).join("\n"));
const openAll = (page) => page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));

describe("the page", { concurrency: 2 }, () => {
  test("the page is one file under 60 KB gzipped that names nothing to load", () => {
    assert.ok(gzipSync(built).length < 60_000, `${gzipSync(built).length} bytes`);
    const page = built.toString();
    assert.doesNotMatch(page, /<link[^>]+href="(?!data:)/);
    assert.doesNotMatch(page, /\bsrc="|@import|url\((?!#)/);
    assert.doesNotMatch(page, /\bfetch\(|XMLHttpRequest|sendBeacon|WebSocket/);
  });

  onPage("the published example stands there to the digit", "#model=plain", async (page) => {
    assert.match(await text(page, "#tile-queue .figure"), /^27\s+ms$/);
    assert.match(await text(page, "#tile-capacity .figure"), /^37\.0\s+jobs\/s$/);
    assert.match(await text(page, "#tile-overhead .figure"), /^2\.6\s+%$/);
    assert.equal(await text(page, "#tile-load .figure"), "0.14");
    assert.equal(await text(page, "#tile-puts .figure"), "0.30");
    assert.match(await text(page, "#verdict-word"), /Tradeoff/);
    assert.match(await text(page, "#verdict-sentence"), /reaches a worker after 139 ms, and the budget is 200 ms/);
    for (const [tile, verdict] of [["overhead", "strong"], ["load", "strong"], ["dispatch", "tradeoff"]]) {
      assert.match(await text(page, `#tile-${tile} .badge`), new RegExp(verdict));
    }
  });

  onPage("the plain figures are there whichever model judges", "", async (page) => {
    assert.match(await text(page, "#tile-queue .other"), /Plain model 27 ms/);
    assert.match(await text(page, "#tile-puts .other"), /Plain model 0\.30/);
    assert.match(await text(page, "#verdict-other"), /Plain model: .*tradeoff/);
    await model(page, "plain");
    assert.match(await text(page, "#tile-queue .other"), /This engine 141 ms/);
    assert.match(await page.evaluate(() => location.hash), /model=plain/);
    assert.match(await text(page, "#map-model"), /plain model/);
  });

  // For each input: a state in which it has an effect, and a new value.
  const MOVES = {
    mutations: ["", 5], batch: ["", 20], arrival: ["", 20], work_ms: ["", 200], budget_ms: ["", 100], producers: ["", 1],
    consumers: ["", 4], writers: ["", 4], broker_ms: ["#broker=1", 30], payload: ["", 100000], prefetch: ["", 1],
    retries: ["", 1], lease_ms: ["", 2000], latency_min_ms: ["", 10], latency_ms: ["", 120], latency_p99_ms: ["", 500],
    per_mib_ms: ["", 900], writes_per_s: ["", 1], commit_interval_ms: ["", 400], file_mib: ["", 500], price_put: ["", 1],
    price_get: ["", 4], price_gb: ["#file_mib=5000", 2], price_sqs: ["", 2], sqs_batch: ["", 10],
  };

  test("every input has a control", () => {
    assert.deepEqual(Object.keys(MOVES).concat("broker").sort(), INPUTS.map(({ key }) => key).sort());
  });

  test("every control changes the answers and the address", async () => {
    const { page, context, trouble } = await open();
    await openAll(page);
    for (const [key, [hash, value]] of Object.entries(MOVES)) {
      if (hash) {
        await page.evaluate((to) => (location.hash = to), hash);
        const [base, to] = hash.slice(1).split("=");
        await page.waitForFunction(([id, is]) => document.getElementById(id).value === is || document.getElementById(id).checked, [`in-${base}`, to]);
      }
      const earlier = await answers(page);
      await set(page, key, value);
      assert.notEqual(await answers(page), earlier, `${key} changes an answer`);
      assert.match(await page.evaluate(() => location.hash), new RegExp(`[#&]${key}=${value}(&|$)`), key);
      await page.locator("#reset").click();
    }
    await set(page, "writers", 4);
    const raced = await answers(page);
    await page.locator("#in-broker").check();
    assert.notEqual(await answers(page), raced);
    await context.close();
    assert.deepEqual(trouble, []);
  });

  onPage("every control changes what it should", "", async (page) => {
    await openAll(page);
    const number = async (selector) => parseFloat((await text(page, selector)).replaceAll(",", ""));
    const plain = (tile) => page.locator(`#tile-${tile} .other`).innerText();
    await set(page, "batch", 20);
    assert.match(await plain("puts"), /0\.15/);
    await set(page, "mutations", 6);
    assert.match(await plain("puts"), /0\.30/);
    await page.locator("#reset").click();
    await set(page, "arrival", 10.4);
    assert.match(await plain("load"), /0\.28/);
    await set(page, "work_ms", 27);
    assert.match(await plain("overhead"), /50\.0/);
    await set(page, "latency_ms", 180);
    await set(page, "latency_p99_ms", 500);
    assert.match(await plain("queue"), /54 ms/);
    await page.locator("#reset").click();
    await set(page, "budget_ms", 2000);
    assert.match(await text(page, "#tile-dispatch .badge"), /strong/);
    const capacity = await number("#tile-capacity .figure");
    await set(page, "producers", 40);
    await set(page, "consumers", 80);
    assert.ok((await number("#tile-capacity .figure")) > 5 * capacity);
    await set(page, "writes_per_s", 1);
    assert.ok((await number("#tile-dispatch .figure")) >= 0.5);
    await page.locator("#reset").click();
    await set(page, "work_ms", 1);
    assert.ok(await page.locator("#instead").isVisible());
    assert.match(await text(page, "#instead"), /Use something else\. Redis/);
  });

  onPage("sliders and presets move the fields", "", async (page) => {
    await page.getByLabel("Arrival rate, coarse").focus();
    await page.keyboard.press("ArrowRight");
    assert.notEqual(await page.locator("#in-arrival").inputValue(), "5.2");
    await page.locator("#in-preset").selectOption("r2");
    assert.equal(await page.locator("#in-latency_ms").inputValue(), "110");
    assert.match(await text(page, "#preset-note"), /one write a second/);
    assert.match(await page.evaluate(() => location.hash), /writes_per_s=1/);
    await set(page, "latency_ms", 111);
    assert.equal(await page.locator("#in-preset").inputValue(), "");
  });

  onPage("what makes no sense is said beside its field and keeps the last good result", "", async (page) => {
    await set(page, "arrival", 8);
    const good = await answers(page);
    const address = page.url();
    for (const [value, message] of [["-3", "0 to 1,000,000"], ["", "give a number"], ["abc", "give a number"]]) {
      await set(page, "arrival", value);
      assert.match(await text(page, "#in-arrival-error"), new RegExp(message));
      assert.equal(await page.locator("#in-arrival").getAttribute("aria-invalid"), "true");
      assert.ok(await page.locator("#stale").isVisible());
      assert.equal(await answers(page), good);
      assert.equal(page.url(), address);
    }
    await set(page, "latency_min_ms", 500);
    await set(page, "arrival", 8);
    assert.equal(await text(page, "#in-arrival-error"), "");
    assert.match(await text(page, "#in-latency_min_ms-error"), /not over the typical/);
    await set(page, "latency_min_ms", 50);
    assert.ok(await page.locator("#stale").isHidden());
    assert.match(page.url(), /arrival=8&latency_min_ms=50/);
  });

  onPage("the address carries the whole state", "", async (page, context) => {
    await openAll(page);
    for (const [key, [, value]] of Object.entries(MOVES)) await set(page, key, value);
    await page.locator("#in-broker").check();
    await model(page, "plain");
    const [address, said] = [page.url(), await answers(page)];
    const second = await context.newPage();
    await second.goto(address);
    assert.equal(await answers(second), said);
    assert.equal(second.url(), address);
    for (const [key, [, value]] of Object.entries(MOVES)) assert.equal(await second.locator(`#in-${key}`).inputValue(), String(value));
    await second.goto(`${address.split("#")[0]}#arrival=-5&work_ms=x&batch=20&model=other`);
    await second.reload();
    assert.equal(await second.locator("#in-arrival").inputValue(), "5.2");
    assert.equal(await second.locator("#in-batch").inputValue(), "20");
  });

  onPage("link, command and Python are copied; reset goes back", "#arrival=20&work_ms=500", async (page, context) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    const copied = async (button) => {
      await page.locator(button).click();
      await page.locator("#said", { hasText: "Copied" }).waitFor();
      return page.evaluate(() => navigator.clipboard.readText());
    };
    assert.equal(await copied("#copy-link"), page.url());
    assert.equal(await copied("#copy-command"), "bucketq fit --arrival 20 --work-ms 500");
    assert.equal(await copied("#copy-python"), "bucketq.fit.evaluate(arrival=20, work_ms=500)");
    await page.locator("#reset").click();
    assert.equal(await page.locator("#in-arrival").inputValue(), "5.2");
    assert.doesNotMatch(page.url(), /#./);
  });

  onPage("measurements are taken from a file, nonsense in it is refused", "", async (page) => {
    const give = (content) => page.locator("#open").setInputFiles({ name: "probe.json", mimeType: "application/json", buffer: Buffer.from(content) });
    await give(JSON.stringify({ store: "x", inputs: { latency_min_ms: 4, latency_ms: 6, latency_p99_ms: 30, more: 1 } }));
    await page.locator("#said", { hasText: "Took 3 figures from probe.json" }).waitFor();
    assert.equal(await page.locator("#in-latency_ms").inputValue(), "6");
    await give('{"inputs": {"latency_ms": 99}}');
    await page.locator("#said", { hasText: "cannot be used: latency_p99_ms" }).waitFor();
    assert.equal(await page.locator("#in-latency_ms").inputValue(), "6");
  });

  onPage("the crosshair is dragged, clicked and moved by keys", "", async (page) => {
    const handle = page.locator(".crosshair");
    await handle.scrollIntoViewIfNeeded();
    const at = async () => {
      const box = await handle.boundingBox();
      return [box.x + box.width / 2, box.y + box.height / 2];
    };
    const [x, y] = await at();
    await page.mouse.move(x, y);
    await page.mouse.down();
    await page.mouse.move(x + 120, y - 40, { steps: 4 });
    await page.mouse.up();
    const [x2, y2] = await at();
    assert.ok(Math.abs(x2 - x - 120) < 2 && Math.abs(y2 - y + 40) < 2, `${x2 - x}, ${y2 - y}`);
    const value = async (key) => Number(await page.locator(`#in-${key}`).inputValue());
    assert.ok((await value("work_ms")) > 2000 && (await value("arrival")) > 10);
    const [work, arrival] = [await value("work_ms"), await value("arrival")];
    await page.keyboard.press("ArrowRight");
    assert.ok((await value("work_ms")) > work);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Shift+ArrowDown");
    assert.ok((await value("arrival")) < arrival);
    assert.match(await handle.getAttribute("aria-valuetext"), /of work, .* jobs\/s: (strong|tradeoff|poor)/);
    await page.mouse.move(x - 200, y);
    assert.match(await text(page, "#chart-map .readout"), /ms of work.*poor/);
  });

  onPage("the map agrees with the verdict, and the model chosen colours it", "", async (page) => {
    for (const [work, arrival, verdict] of [[10, 5, "poor"], [60000, 0.1, "strong"], [1000, 5, "tradeoff"]]) {
      await set(page, "work_ms", work);
      await set(page, "arrival", arrival);
      assert.match(await text(page, "#verdict-word"), new RegExp(verdict, "i"));
      assert.match(await text(page, "#chart-map .readout"), new RegExp(verdict));
    }
    const drawing = () => page.locator("#chart-map svg").last().innerHTML();
    const engine = await drawing();
    await model(page, "plain");
    assert.notEqual(await drawing(), engine);
  });

  onPage("charts are read by pointer and by keys", "", async (page) => {
    for (const [id, first, step] of [["chart-overhead", /^1 s of work: batch 1 21\.3%/, /of work: batch 1/], ["chart-load", /^5\.2 jobs\/s: plain model 0\.14/, /jobs\/s: plain model/]]) {
      assert.match(await text(page, `#${id} .readout`), first);
      await page.locator(`#${id} .plot`).focus();
      await page.keyboard.press("ArrowRight");
      const moved = await text(page, `#${id} .readout`);
      assert.match(moved, step);
      assert.doesNotMatch(moved, first);
      await page.keyboard.press("End");
      assert.notEqual(await text(page, `#${id} .readout`), moved);
      const box = await page.locator(`#${id} .plot`).boundingBox();
      await page.mouse.move(box.x + 200, box.y + 100);
      assert.match(await text(page, `#${id} .readout`), step);
      assert.equal(await page.locator(`#${id} .reading-line`).getAttribute("visibility"), "visible");
    }
  });

  onPage("each chart has its table, and its CSV says the same", "", async (page) => {
    for (const id of ["chart-map", "chart-overhead", "chart-load"]) {
      await page.locator(`#${id} summary`).click();
      await page.locator(`#${id} tbody tr`).first().waitFor();
      const rows = await page.locator(`#${id} tbody tr`).count();
      assert.ok(rows >= 10, id);
      const [download] = await Promise.all([page.waitForEvent("download"), page.locator(`#${id} .csv`).click()]);
      assert.equal(download.suggestedFilename(), `${id}.csv`);
      const lines = readFileSync(await download.path(), "utf8").trim().split("\r\n");
      assert.equal(lines.length, rows + 1);
      const cells = await page.locator(`#${id} tbody tr`).nth(4).locator("th, td").allInnerTexts();
      assert.equal(lines[5], cells.map((cell) => (cell.includes(",") ? `"${cell}"` : cell)).join(","));
    }
  });

  onPage("everything is reached and used with the keyboard alone", "", async (page) => {
    const seen = new Set();
    for (let presses = 0; presses < 80; presses += 1) {
      await page.keyboard.press("Tab");
      const here = await page.evaluate(() => {
        const node = document.activeElement;
        const style = getComputedStyle(node.id.startsWith("model-") || node.id === "open" ? node.parentElement.querySelector("label, label:focus-within") ?? node.parentElement : node);
        return { name: node.id || node.className || node.tagName, outline: style.outlineStyle };
      });
      seen.add(here.name);
      if (here.name === "in-arrival") await page.keyboard.type("7");
      if (here.name === "model-engine") await page.keyboard.press("ArrowRight");
    }
    const wanted = ["skip", "model-engine", "in-preset", "in-broker", "reset", "copy-link", "copy-command", "copy-python", "open", "crosshair", "plot", "csv"];
    for (const name of wanted) assert.ok(seen.has(name), `${name} is reached: ${[...seen].join(" ")}`);
    assert.match(page.url(), /arrival=7/);
    assert.match(page.url(), /model=plain/);
  });

  onPage("the focus is seen", "", async (page) => {
    for (const selector of ["#in-arrival", "#reset", ".crosshair", "#chart-load .plot"]) {
      await page.locator(selector).focus();
      await page.keyboard.press("Shift");
      assert.equal(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), "solid", selector);
    }
  });

  const accessible = async (page) => {
    await openAll(page);
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(" ")}`), []);
  };

  for (const [name, hash, options] of [
    ["light", "", { colorScheme: "light" }],
    ["dark", "", { colorScheme: "dark" }],
    ["poor", "#work_ms=5&arrival=2000", {}],
    ["strong", "#work_ms=60000&budget_ms=5000&arrival=1", { colorScheme: "dark" }],
    ["phone", "", { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true }],
  ]) {
    onPage(`axe finds nothing: ${name}`, hash, async (page) => {
      await keep(page, name);
      await accessible(page);
    }, options);
  }

  onPage("a phone of 360 px scrolls down only, and its targets are large enough", "", async (page) => {
    await openAll(page);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
    const small = await page.evaluate(() =>
      [...document.querySelectorAll("button, .button, input[type=text], select, .choice label, input[type=range]")]
        .filter((node) => node.getBoundingClientRect().height < 20)
        .map((node) => node.id || node.className),
    );
    assert.deepEqual(small, []);
    await page.locator("#in-arrival").scrollIntoViewIfNeeded();
    assert.ok(await page.locator("#strip").isVisible());
  }, { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });

  onPage("dark is dark", "", async (page) => {
    const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.emulateMedia({ colorScheme: "dark" });
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const sum = (colour) => colour.match(/\d+/g).map(Number).reduce((a, b) => a + b);
    assert.ok(sum(light) > 700 && sum(dark) < 120, `${light} ${dark}`);
  });

  onPage("nothing moves by itself when motion is unwanted; paper leaves out the buttons", "", async (page) => {
    assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).scrollBehavior), "auto");
    await keepPrint(page);
    await page.emulateMedia({ media: "print" });
    assert.ok(await page.locator("#reset").isHidden());
    assert.ok(await page.locator("#verdict").isVisible());
  }, { reducedMotion: "reduce" });

  onPage("a narrow window redraws its charts", "", async (page) => {
    await page.setViewportSize({ width: 700, height: 800 });
    await page.waitForFunction(() => {
      const [svg, plot] = ["#chart-map .plot svg", "#chart-map .plot"].map((selector) => document.querySelector(selector));
      return Math.abs(svg.clientWidth - plot.clientWidth) < 2;
    });
  });
});
