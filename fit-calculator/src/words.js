// Numbers for people. The sentences of a verdict use these, so the Rust and Python models have the same functions.

/** Returns three significant digits, whole from 100 on, with a comma at each thousand; rounds halves up. */
export function amount(value) {
  if (value === Infinity) return "any number";
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : value >= 0.1 ? 3 : 4;
  // A little more than a half, so that a half with a rounding error is still rounded up.
  const scaled = Math.floor(value * 10 ** digits + 0.5 + 1e-9);
  if (digits === 0) return String(scaled).replace(/\B(?=(\d{3})+$)/g, ",");
  return (scaled / 10 ** digits).toFixed(digits).replace(/\.?0+$/, "");
}

/** Returns a share as a percentage. */
export const percent = (share) => `${amount(100 * share)}%`;

/** Returns a time in a suitable unit. */
export function time(ms) {
  if (ms < 1000) return `${amount(ms)} ms`;
  if (ms < 120_000) return `${amount(ms / 1000)} s`;
  if (ms < 7_200_000) return `${amount(ms / 60_000)} min`;
  return `${amount(ms / 3_600_000)} h`;
}
