// Overhead against useful work: the plain model with batches of 1, 10, 50 and your own, and this engine.
import { range } from "d3-array";
import { scaleLog, scalePow } from "d3-scale";
import { line } from "d3-shape";
import { figure, frame, legend, reader, zones } from "./chart.js";
import { engineModel, LIMITS, plainModel } from "./model.js";
import { amount, percent, time } from "./words.js";

const SPAN = [1, 3_600_000];
const TICKS = [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000];

export function overheadChart() {
  let inputs;
  const lines = () => [
    { name: "Batch 1", kind: "a", of: plainOf(1) },
    { name: "Batch 10", kind: "b", of: plainOf(10) },
    { name: "Batch 50", kind: "c", of: plainOf(50) },
    { name: `Yours (${amount(inputs.batch)})`, kind: "yours", of: plainOf(inputs.batch) },
    { name: "This engine", kind: "engine", of: (work_ms) => engineModel({ ...inputs, work_ms }).overhead },
  ];
  const plainOf = (batch) => (work_ms) => plainModel({ ...inputs, batch, work_ms }).overhead;
  const rows = () => [
    ["Work", ...lines().map(({ name }) => name)],
    ...[1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000].map((work) => [
      time(work),
      ...lines().map(({ of }) => `${(100 * of(work)).toFixed(2)}%`),
    ]),
  ];
  const { plot, readout, legend: names, fill } = figure("chart-overhead", rows);
  return (now) => {
    inputs = now;
    const x = scaleLog(SPAN, [0, 1]).clamp(true);
    const y = scalePow().exponent(0.5).domain([0, 1]);
    const [strong, tradeoff] = LIMITS.overhead;
    const chart = frame(plot, {
      height: 320,
      x,
      y,
      xTicks: TICKS,
      yTicks: [0, 0.01, strong, tradeoff, 0.5, 1],
      xFormat: (v) => time(v),
      yFormat: (v) => percent(v),
      xLabel: "useful work per job",
      yLabel: "overhead",
    });
    zones(chart.drawing, { ...chart, y, bands: [[0, strong, "strong"], [strong, tradeoff, "tradeoff"], [tradeoff, 1, "poor"]] });
    const places = range(0, 181).map((step) => x.invert((step / 180) * chart.width));
    for (const { kind, of } of lines()) {
      const path = line((work) => x(work), (work) => y(of(work)));
      chart.drawing.append("path").attr("class", `line ${kind}`).attr("d", path(places));
    }
    const usual = Math.min(SPAN[1], Math.max(SPAN[0], inputs.work_ms));
    chart.drawing.append("line").attr("class", "yours-mark").attr("x1", x(usual)).attr("x2", x(usual)).attr("y2", chart.height);
    plot.replaceChildren(chart.svg.node());
    legend(names, lines());
    reader(plot, readout, {
      ...chart,
      x,
      usual,
      step: chart.width / 60,
      tell: (work) => `${time(work)} of work: ${lines().map(({ name, of }) => `${name.toLowerCase()} ${percent(of(work))}`).join(", ")}`,
    });
    fill();
  };
}
