// The state of the page: the inputs and the chosen model. The address stores all of it except default values.
import { check, complete, INPUTS } from "./model.js";

export const MODELS = ["engine", "plain"];

/** Returns the address's fragment for this state. */
export function toHash({ inputs, model }) {
  const words = differing(inputs).map(([key, value]) => `${key}=${value}`);
  if (model !== MODELS[0]) words.push(`model=${model}`);
  return words.join("&");
}

/** Returns the state in a fragment; invalid parts get their defaults. */
export function fromHash(hash) {
  const words = new URLSearchParams(hash.replace(/^[#?]/, ""));
  const given = Object.fromEntries([...words].map(([key, text]) => [key, text.trim() === "" ? NaN : Number(text)]));
  const model = MODELS.includes(words.get("model")) ? words.get("model") : MODELS[0];
  return { inputs: sensible(given), model };
}

/** Returns these inputs with invalid ones set to their defaults. */
export function sensible(given) {
  const inputs = complete(given);
  for (let found = check(inputs); found.length > 0; found = check(inputs)) {
    const latencies = found.some(({ field }) => field.startsWith("latency_"));
    const back = latencies ? ["latency_min_ms", "latency_ms", "latency_p99_ms"] : found.map(({ field }) => field);
    for (const key of [...back, ...found.map(({ field }) => field)]) inputs[key] = complete()[key];
  }
  return inputs;
}

/** Returns inputs that differ from their defaults, as [key, value]. */
export function differing(inputs) {
  return INPUTS.filter(({ key, default: usual }) => inputs[key] !== usual).map(({ key }) => [key, inputs[key]]);
}

/** Returns these inputs as a command line. */
export function asCommand(inputs) {
  return ["bucketq fit", ...differing(inputs).map(([key, value]) => `--${key.replaceAll("_", "-")} ${value}`)].join(" ");
}

/** Returns these inputs as a Python call. */
export function asPython(inputs) {
  return `bucketq.fit.evaluate(${differing(inputs).map(([key, value]) => `${key}=${value}`).join(", ")})`;
}
