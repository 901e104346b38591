// Stores to start from, with their prices. Latencies are those of a small PUT by a program near the store: at best,
// typical, one in a hundred. This project measured only those that say so; `bucketq probe` measures yours.
export const PRICES_OF = "November 2026";

const AWS = { price_put: 5, price_get: 0.4, price_gb: 0.023 };
const FREE = { price_put: 0, price_get: 0, price_gb: 0 };
const store = (latency_min_ms, latency_ms, latency_p99_ms, per_mib_ms, writes_per_s, prices) => ({
  latency_min_ms,
  latency_ms,
  latency_p99_ms,
  per_mib_ms,
  writes_per_s,
  ...prices,
});
const REPORTED = "Latency as commonly reported, not measured by this project.";

export const PRESETS = [
  {
    id: "example",
    name: "The published example",
    note: "Latency times penalty is 90 ms.",
    values: store(60, 90, 250, 10, 0, AWS),
  },
  {
    id: "s3",
    name: "AWS S3, same region",
    note: REPORTED,
    values: store(18, 30, 120, 12, 0, AWS),
  },
  {
    id: "express",
    name: "AWS S3 Express One Zone",
    note: `${REPORTED} Not among the stores tested: the probe decides.`,
    values: store(4, 7, 25, 6, 0, { price_put: 1.13, price_get: 0.03, price_gb: 0.11 }),
  },
  {
    id: "r2",
    name: "Cloudflare R2",
    note: `${REPORTED} About one write a second to one key.`,
    values: store(60, 110, 400, 15, 1, { price_put: 4.5, price_get: 0.36, price_gb: 0.015 }),
  },
  {
    id: "gcs",
    name: "Google Cloud Storage",
    note: `${REPORTED} About one write a second to one object. Not supported yet.`,
    values: store(40, 70, 300, 12, 1, { price_put: 5, price_get: 0.4, price_gb: 0.02 }),
  },
  {
    id: "tigris",
    name: "Tigris, one region",
    note: REPORTED,
    values: store(15, 35, 150, 12, 0, { price_put: 5, price_get: 0.5, price_gb: 0.02 }),
  },
  {
    id: "minio",
    name: "MinIO, same network",
    note: "Typical latency and cost per MiB measured on one machine.",
    values: store(2, 3.4, 15, 5, 0, FREE),
  },
  {
    id: "directory",
    name: "A local directory",
    note: "Depends on the disk: every write is synced. One machine only.",
    values: store(0.5, 2, 20, 3, 0, FREE),
  },
];

/** Returns the preset with the values of these inputs, or undefined. */
export function presetOf(inputs) {
  return PRESETS.find(({ values }) => Object.entries(values).every(([key, value]) => inputs[key] === value));
}
