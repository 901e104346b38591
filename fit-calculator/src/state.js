// The state of the page: the inputs, and which model judges. All of it stands in the address, less what is as usual.
import { check, complete, INPUTS } from "./model.js";

export const MODELS = ["engine", "plain"];

/** The address's fragment for this state. */
export function toHash({ inputs, model }) {
  const words = differing(inputs).map(([key, value]) => `${key}=${value}`);
  if (model !== MODELS[0]) words.push(`model=${model}`);
  return words.join("&");
}

/** The state that a fragment tells; what makes no sense in it is left as usual. */
export function fromHash(hash) {
  const words = new URLSearchParams(hash.replace(/^[#?]/, ""));
  const given = Object.fromEntries([...words].map(([key, text]) => [key, text.trim() === "" ? NaN : Number(text)]));
  const model = MODELS.includes(words.get("model")) ? words.get("model") : MODELS[0];
  return { inputs: sensible(given), model };
}

/** These inputs, those that are refused put back to their defaults. */
export function sensible(given) {
  const inputs = complete(given);
  for (let found = check(inputs); found.length > 0; found = check(inputs)) {
    const latencies = found.some(({ field }) => field.startsWith("latency_"));
    const back = latencies ? ["latency_min_ms", "latency_ms", "latency_p99_ms"] : found.map(({ field }) => field);
    for (const key of [...back, ...found.map(({ field }) => field)]) inputs[key] = complete()[key];
  }
  return inputs;
}

/** Inputs that are not as usual, as [key, value]. */
export function differing(inputs) {
  return INPUTS.filter(({ key, default: usual }) => inputs[key] !== usual).map(({ key }) => [key, inputs[key]]);
}

/** The same question on the command line. */
export function asCommand(inputs) {
  return ["bucketq fit", ...differing(inputs).map(([key, value]) => `--${key.replaceAll("_", "-")} ${value}`)].join(" ");
}

/** The same question in Python. */
export function asPython(inputs) {
  return `bucketq.fit.evaluate(${differing(inputs).map(([key, value]) => `${key}=${value}`).join(", ")})`;
}
