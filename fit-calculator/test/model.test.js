// The model against cases.json, which was calculated independently.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { check, complete, evaluate, INPUTS } from "../src/model.js";

const { inputs, cases, refused } = JSON.parse(readFileSync(new URL("../cases.json", import.meta.url)));

/** Returns the differences of `got` from `want`: numbers to nine digits, all else exactly. null means infinity. */
function differences(want, got, path = "") {
  if (want !== null && typeof want === "object") {
    const keys = new Set([...Object.keys(want), ...Object.keys(got ?? {})]);
    return [...keys].flatMap((key) => differences(want[key], got?.[key], `${path}.${key}`));
  }
  if (got === Infinity) got = null;
  if (typeof want === "number" && typeof got === "number") {
    return Math.abs(want - got) <= 1e-9 * Math.max(Math.abs(want), 1e-12) ? [] : [`${path}: ${got}, not ${want}`];
  }
  return want === got ? [] : [`${path}: ${got}, not ${want}`];
}

test("there are at least sixty cases, and the inputs are the table's", () => {
  assert.ok(cases.length >= 60);
  assert.deepEqual(INPUTS, inputs);
});

for (const { name, inputs: given, expected } of cases) {
  test(name, () => {
    assert.deepEqual(check(complete(given)), []);
    const got = evaluate(given);
    delete got.tenfold.tenfold;
    assert.deepEqual(differences(expected, got), []);
  });
}

test("a tenth digit passes and a ninth is noticed", () => {
  assert.equal(differences({ a: 1 }, { a: 1 + 5e-10 }).length, 0);
  assert.equal(differences({ a: 1 }, { a: 1 + 2e-9 }).length, 1);
  assert.equal(differences({ a: null }, { a: Infinity }).length, 0);
  assert.equal(differences({ a: 1 }, {}).length, 1);
  assert.equal(differences({}, { a: 1 }).length, 1);
});

for (const { inputs: given, field, message } of refused) {
  test(`refused: ${JSON.stringify(given)}`, () => {
    assert.deepEqual(check(complete(given)), [{ field, message }]);
  });
}

test("the published example is a tradeoff, by its dispatch budget alone", () => {
  const { plain } = evaluate({});
  assert.equal(plain.verdict, "tradeoff");
  assert.equal(plain.decided_by, "dispatch");
  assert.deepEqual(plain.classes, { load: 0, overhead: 0, dispatch: 1 });
  assert.equal(plain.queue_ms, 27);
  assert.equal(plain.capacity.toFixed(1), "37.0");
  assert.equal((100 * plain.overhead).toFixed(1), "2.6");
  assert.equal(plain.load.toFixed(2), "0.14");
  assert.equal(plain.puts_per_job.toFixed(2), "0.30");
});
