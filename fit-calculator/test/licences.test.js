// Packages in the page must allow redistribution under Apache-2.0; packages for building and testing only use.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const { packages } = JSON.parse(readFileSync(new URL("../package-lock.json", import.meta.url)));
const SHIPPED = ["ISC", "MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"];
const USED = [...SHIPPED, "MPL-2.0"];

test("every package has a licence that suits", () => {
  const found = Object.entries(packages).filter(([path]) => path !== "");
  assert.ok(found.length > 10);
  for (const [path, { license, dev }] of found) assert.ok((dev ? USED : SHIPPED).includes(license), `${path}: ${license}`);
});

test("the page names every package that it contains", () => {
  const page = readFileSync(new URL("../src/index.html", import.meta.url), "utf8");
  for (const [path, { dev }] of Object.entries(packages)) {
    const name = path.replace("node_modules/", "");
    if (name && !dev) assert.ok(page.includes(name), `the licence notice of src/index.html names ${name}`);
  }
});

test("the lock names no registry", () => {
  for (const [path, { resolved }] of Object.entries(packages)) assert.equal(resolved, undefined, path);
});
