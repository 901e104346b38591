// The page: form, results and charts show one state, and the address stores it.
import { byId, say } from "./dom.js";
import { makeForm } from "./form.js";
import { loadChart } from "./load.js";
import { fitMap } from "./map.js";
import { check, complete, evaluate, INPUTS } from "./model.js";
import { overheadChart } from "./overhead.js";
import { PRICES_OF } from "./presets.js";
import { NAMES, showFacts, showMonth, showStrip, showTenfold, showTiles, showVerdict } from "./results.js";
import { asCommand, asPython, fromHash, MODELS, toHash } from "./state.js";

let state = fromHash(location.hash || location.search);
/** The values in the controls; they may be invalid while the user types. */
let typed = { ...state.inputs };

const form = makeForm(change);
const charts = [overheadChart(), loadChart(), fitMap(change)];

/** Handles inputs that the user changed: uses them if all are valid, else keeps the last valid result. */
function change(values) {
  typed = { ...typed, ...values };
  const found = check(typed);
  form.complain(found);
  byId("stale").hidden = found.length === 0;
  if (found.length === 0) {
    state = { ...state, inputs: { ...typed } };
    show();
  } else {
    form.show(typed);
  }
}

function show() {
  const { inputs, model } = state;
  const fit = evaluate(inputs);
  form.show(inputs);
  for (const name of MODELS) byId(`model-${name}`).checked = name === model;
  showVerdict(fit, model);
  showTiles(fit, inputs, model);
  showStrip(fit, model);
  showTenfold(fit, model);
  showMonth(fit, inputs);
  showFacts(fit, inputs);
  say(byId("map-model"), NAMES[model].toLowerCase());
  draw();
  const hash = toHash(state);
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search.replace(/\?.*/, ""));
}

function draw() {
  for (const chart of charts) chart(state.inputs, state.model);
}

/** Replaces the whole state: the address has changed, or a file was opened. */
function adopt(next) {
  state = next;
  typed = { ...next.inputs };
  form.complain([]);
  byId("stale").hidden = true;
  show();
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(byId("said"), `Copied ${what}.`);
  } catch {
    say(byId("said"), `Please copy this yourself: ${text}`);
  }
}

for (const name of MODELS) {
  byId(`model-${name}`).addEventListener("change", () => {
    state = { ...state, model: name };
    show();
  });
}
byId("reset").addEventListener("click", () => {
  adopt({ inputs: complete(), model: MODELS[0] });
  say(byId("said"), "Back to the published example.");
});
byId("copy-link").addEventListener("click", () => copy(location.href, "the link"));
byId("copy-command").addEventListener("click", () => copy(asCommand(state.inputs), "the command"));
byId("copy-python").addEventListener("click", () => copy(asPython(state.inputs), "the Python options"));
byId("open").addEventListener("change", async ({ target }) => {
  try {
    const { inputs } = JSON.parse(await target.files[0].text());
    const known = Object.fromEntries(INPUTS.filter(({ key }) => key in inputs).map(({ key }) => [key, inputs[key]]));
    const next = complete({ ...state.inputs, ...known });
    const [bad] = check(next);
    if (bad) throw new Error(`${bad.field}: ${bad.message}`);
    adopt({ ...state, inputs: next });
    say(byId("said"), `Took ${Object.keys(known).length} figures from ${target.files[0].name}.`);
  } catch (error) {
    say(byId("said"), `This file cannot be used: ${error.message}`);
  }
  target.value = "";
});
addEventListener("hashchange", () => adopt(fromHash(location.hash)));
let width = 0;
new ResizeObserver(() => {
  const now = byId("chart-map").clientWidth;
  if (now !== width) draw();
  width = now;
}).observe(byId("chart-map"));
say(byId("prices-of"), PRICES_OF);
show();
