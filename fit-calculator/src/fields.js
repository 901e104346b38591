// The texts of the controls: label, unit, hint, and the range of the slider if there is one (logarithmic).
export const GROUPS = [
  {
    title: "Your work",
    fields: [
      { key: "arrival", label: "Arrival rate", unit: "jobs/s", slide: [0.01, 10_000] },
      { key: "work_ms", label: "Work per job", unit: "ms", slide: [1, 3_600_000] },
      { key: "budget_ms", label: "Dispatch budget", unit: "ms", slide: [5, 60_000], hint: "Time within which a worker must have a ready job" },
      { key: "payload", label: "Payload", unit: "bytes" },
    ],
  },
  {
    title: "Your processes",
    fields: [
      { key: "mutations", label: "Mutations per job", hint: "Enqueue, claim, ack; 2.1 when ten are claimed at once" },
      { key: "batch", label: "Batch", unit: "ops", slide: [1, 4096], hint: "Plain model only: the engine chooses its own" },
      { key: "producers", label: "Producers", unit: "at once", slide: [1, 10_000] },
      { key: "consumers", label: "Consumers", unit: "at once", slide: [1, 10_000] },
      { key: "writers", label: "Writer processes", hint: "All processes that open the queue file" },
      { key: "broker", label: "A broker commits for all", hint: "One process that all others send their calls to" },
    ],
    more: [
      { key: "broker_ms", label: "Round trip to the broker", unit: "ms" },
      { key: "prefetch", label: "Jobs per claim", hint: "If there are enough" },
      { key: "retries", label: "Retries per job", hint: "Further attempts, on average" },
      { key: "lease_ms", label: "Lease", unit: "ms", hint: "Extended at each third" },
    ],
  },
  {
    title: "The store",
    preset: true,
    fields: [
      { key: "latency_min_ms", label: "Latency, at best", unit: "ms" },
      { key: "latency_ms", label: "Latency, typical", unit: "ms", slide: [1, 1000] },
      { key: "latency_p99_ms", label: "Latency, worst of 100", unit: "ms" },
      { key: "file_mib", label: "Size of the queue file", unit: "MiB" },
    ],
    more: [
      { key: "per_mib_ms", label: "Upload of one MiB", unit: "ms" },
      { key: "writes_per_s", label: "Writes to one key", unit: "per s", hint: "0: no limit" },
      { key: "commit_interval_ms", label: "Commit interval", unit: "ms", hint: "Minimum time between commits: saves requests" },
    ],
  },
];

export const PRICES = [
  { key: "price_put", label: "PUT", unit: "USD per million" },
  { key: "price_get", label: "GET", unit: "USD per million" },
  { key: "price_gb", label: "Storage", unit: "USD per GB" },
  { key: "price_sqs", label: "SQS", unit: "USD per million" },
  { key: "sqs_batch", label: "SQS batch", unit: "messages" },
];

/** The alternatives, by the model's word for each. */
export const INSTEAD = {
  log: "Kafka, Redpanda or Kinesis: more jobs than one queue file can handle.",
  memory: "Redis or RabbitMQ: no store of this kind replies that fast.",
  managed: "Amazon SQS, or a table in PostgreSQL: this store cannot meet the dispatch budget even at its best.",
  database: "A table in PostgreSQL, or Redis: the work is short compared with one round trip to this store. Or put more work into a job.",
};
