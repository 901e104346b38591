// Shows the verdict, the six tiles, the tables for ten times the load and for the month.
import { byId, el, say } from "./dom.js";
import { INSTEAD } from "./fields.js";
import { costs, engineModel, VERDICTS } from "./model.js";
import { amount, percent, time } from "./words.js";

export const NAMES = { engine: "This engine", plain: "Plain model" };
const GLYPHS = { strong: "●", tradeoff: "◐", poor: "✕" };

/** Returns a verdict as a coloured word with its symbol. */
export function badge(verdict, words = verdict) {
  return el("span", { class: `badge ${verdict}` }, el("span", { "aria-hidden": "true" }, GLYPHS[verdict]), ` ${words}`);
}

const fixed = (value, digits) => (Number.isFinite(value) ? (value >= 1000 ? amount(value) : value.toFixed(digits)) : "∞");
const ms = (value) => (Number.isFinite(value) ? time(value).split(" ") : ["∞", ""]);

const TILES = [
  { id: "queue", title: "Queue time per job", figure: (m) => ms(m.queue_ms) },
  { id: "capacity", title: "Capacity", figure: (m) => [fixed(m.capacity, 1), "jobs/s"] },
  { id: "overhead", title: "Overhead", figure: (m) => [fixed(100 * m.overhead, 1), "%"], judge: "overhead" },
  { id: "load", title: "Load", figure: (m) => [fixed(m.load, 2), ""], judge: "load" },
  { id: "puts", title: "PUTs per job", figure: (m) => [fixed(m.puts_per_job, 2), ""] },
  { id: "dispatch", title: "Dispatch delay", figure: (m) => ms(m.dispatch_ms), judge: "dispatch" },
];

/** Returns the remark under a tile's figure. */
function remark(id, { engine }, inputs, model) {
  if (id === "dispatch") {
    const budget = `budget ${time(inputs.budget_ms)}`;
    if (model === "plain" || !Number.isFinite(engine.dispatch_ms)) return budget;
    return `${budget}; at best ${time(engine.dispatch_best_ms)}, slow ${time(engine.dispatch_p99_ms)}`;
  }
  if (model === "plain") return id === "queue" ? `batch of ${amount(inputs.batch)}, as set` : "";
  if (id === "queue") return "time that a worker waits for its ack and claim";
  if (id === "capacity") return `commits of up to ${amount(engine.batch_max)} ops`;
  if (id === "puts") return `commits of ${amount(engine.batch)} ops on average`;
  return "";
}

export function showVerdict(fit, model) {
  const judged = fit[model];
  const other = model === "engine" ? "plain" : "engine";
  const box = byId("verdict");
  box.className = judged.verdict;
  byId("verdict-word").replaceChildren(badge(judged.verdict, capital(judged.verdict)));
  say(byId("verdict-sentence"), judged.sentence.replace(/^\w+: /, "").replace(/^./, (c) => c.toUpperCase()));
  byId("verdict-other").replaceChildren(
    el("strong", {}, `${NAMES[other]}: `),
    badge(fit[other].verdict),
    ` ${fit[other].sentence.replace(/^\w+: /, "").replace(/^./, (c) => c.toUpperCase())}`,
  );
  const instead = fit.engine.instead;
  byId("instead").hidden = !instead;
  say(byId("instead-what"), instead ? INSTEAD[instead] : "");
}

const capital = (word) => word[0].toUpperCase() + word.slice(1);

/** Shows the verdict again, in a line below a narrow form. */
export function showStrip(fit, model) {
  const { verdict, overhead, load, dispatch_ms } = fit[model];
  const words = `  overhead ${percent(overhead)} · load ${fixed(load, 2)} · ${ms(dispatch_ms).join(" ")}`;
  byId("strip").replaceChildren(badge(verdict), words);
}

export function showTiles(fit, inputs, model) {
  const other = model === "engine" ? "plain" : "engine";
  const tiles = TILES.map((tile) => {
    const [value, unit] = tile.figure(fit[model]);
    const [otherValue, otherUnit] = tile.figure(fit[other]);
    const judged = tile.judge && VERDICTS[fit[model].classes[tile.judge]];
    return el(
      "div",
      { class: `tile ${judged ?? ""}`, id: `tile-${tile.id}` },
      el("dt", {}, tile.title, judged ? badge(judged) : ""),
      el("dd", { class: "figure" }, value, unit ? el("span", { class: "unit" }, ` ${unit}`) : ""),
      el("dd", { class: "other" }, `${NAMES[other]} ${otherValue} ${otherUnit}`.trim()),
      el("dd", { class: "remark" }, remark(tile.id, fit, inputs, model)),
    );
  });
  byId("tiles").replaceChildren(...tiles);
}

/** Returns a table of rows; the first row is its head. */
export function table(caption, rows) {
  const [head, ...body] = rows;
  return el(
    "table",
    {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...head.map((cell) => el("th", { scope: "col" }, cell)))),
    el(
      "tbody",
      {},
      ...body.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), ...rest.map((cell) => el("td", {}, cell)))),
    ),
  );
}

export function showTenfold(fit, model) {
  const [now, then] = [fit, fit.tenfold];
  const row = (title, tell) => [title, tell(now), tell(then)];
  byId("tenfold").replaceChildren(
    table("Ten times the arrivals, producers and consumers", [
      ["Figure", "now", "10 times"],
      row("Verdict", (f) => badge(f[model].verdict)),
      row("Load", (f) => fixed(f[model].load, 2)),
      row("Overhead", (f) => percent(f[model].overhead)),
      row("Dispatch delay", (f) => ms(f[model].dispatch_ms).join(" ")),
      row("PUTs per job", (f) => fixed(f[model].puts_per_job, 2)),
      row("USD a month", (f) => dollars(f.month.cost)),
      row("USD a month, SQS", (f) => dollars(f.month.sqs_cost)),
    ]),
  );
  say(byId("tenfold-says"), then[model].sentence);
}

export const dollars = (value) => (value >= 100 ? amount(value) : value.toFixed(2));

const count = (value) => {
  if (value >= 1e9) return `${amount(value / 1e9)} billion`;
  if (value >= 1e6) return `${amount(value / 1e6)} million`;
  return amount(Math.round(value));
};

export function showMonth({ month, engine }, inputs) {
  byId("month").replaceChildren(
    table("This engine, and SQS for the same jobs", [
      ["Figure", "bucketq", "SQS"],
      ["Requests that write", count(month.puts), "—"],
      ["Requests that read", count(month.gets), "—"],
      ["Requests in all", count(month.puts + month.gets), count(month.sqs_requests)],
      ["Storage", `${amount(month.storage_gb)} GB`, "—"],
      ["USD a month", dollars(month.cost), dollars(month.sqs_cost)],
    ]),
  );
  say(byId("month-says"), saving(month, engine, inputs));
}

/** Returns how much a commit interval would save, if the cost matters. */
function saving(month, engine, inputs) {
  if (engine.load >= 1) {
    return `This queue handles only ${amount(engine.capacity)} of ${amount(inputs.arrival)} jobs/s, so the costs cannot be compared.`;
  }
  if (month.cost < 1 || inputs.price_put === 0) return "";
  const slowest = [2000, 1000, 500, 250].map((commit_interval_ms) => ({ ...inputs, commit_interval_ms }));
  const slower = slowest.find((i) => i.commit_interval_ms > inputs.commit_interval_ms && engineModel(i).load < 0.7) ?? inputs;
  const cost = costs(slower, engineModel(slower)).cost;
  const times = month.sqs_cost > 0 ? month.cost / month.sqs_cost : Infinity;
  const beside = times > 1.5 ? `SQS costs ${amount(times)} times less. ` : times < 0.67 ? `SQS costs ${amount(1 / times)} times as much. ` : "";
  if (cost > 0.9 * month.cost) return beside;
  const price = `With at most one commit per ${time(slower.commit_interval_ms)} bucketq would cost ${dollars(cost)} USD`;
  return `${beside}${price}, and the dispatch delay would be ${time(engineModel(slower).dispatch_ms)}.`;
}

export function showFacts({ engine }, inputs) {
  const needed = engine.worker_load * inputs.consumers;
  const facts = [
    ["Batch", `${amount(engine.batch)} ops in a commit of ${time(engine.commit_ms)}; ${amount(engine.bytes_per_commit / 1024)} KiB uploaded`],
    ["Commits", `${amount(engine.commits_per_s)} a second, ${amount(engine.polls_per_s)} polls a second`],
    [
      "Workers",
      engine.worker_load > 1
        ? `${amount(Math.ceil(needed))} needed, only ${amount(inputs.consumers)} configured: the backlog grows with any queue`
        : `${amount(needed)} of ${amount(inputs.consumers)} busy on average`,
    ],
    ["First open", `${time(engine.cold_open_ms)} for ${amount(inputs.file_mib)} MiB; commits do not depend on the file's size`],
    ["A queue that moves its whole file", `would take ${time(engine.whole_file_ms)} for each commit`],
  ];
  byId("facts").replaceChildren(...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}
