// Load against arrival rate, with the zones at 0.7, 0.9 and 1.0.
import { range } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { figure, frame, legend, reader, zones } from "./chart.js";
import { engineModel, LIMITS, plainModel } from "./model.js";
import { amount } from "./words.js";

const TOP = 1.3;

export function loadChart() {
  let inputs;
  const lines = () => [
    { name: "Plain model", kind: "yours", of: (arrival) => plainModel({ ...inputs, arrival }).load },
    { name: "This engine", kind: "engine", of: (arrival) => engineModel({ ...inputs, arrival }).load },
  ];
  const reach = () => {
    const capacities = [plainModel(inputs).capacity, engineModel(inputs).capacity].filter(Number.isFinite);
    return Math.max(1e-6, 1.25 * Math.max(...capacities), 1.1 * inputs.arrival);
  };
  const rows = () => [
    ["Arrival rate, jobs/s", ...lines().map(({ name }) => name)],
    ...[inputs.arrival, ...range(1, 17).map((step) => (reach() * step) / 16)]
      .sort((a, b) => a - b)
      .map((arrival) => [Number(arrival.toPrecision(4)), ...lines().map(({ of }) => of(arrival).toFixed(3))]),
  ];
  const { plot, readout, legend: names, fill } = figure("chart-load", rows);
  return (now) => {
    inputs = now;
    const x = scaleLinear([0, reach()], [0, 1]).clamp(true);
    const y = scaleLinear([0, TOP], [1, 0]).clamp(true);
    const [strong, tradeoff, full] = LIMITS.load;
    const chart = frame(plot, {
      height: 280,
      x,
      y,
      xTicks: x.ticks(8),
      yTicks: [0, 0.35, strong, tradeoff, full],
      xFormat: (v) => amount(v),
      yFormat: (v) => v.toFixed(v === 0.35 ? 2 : 1),
      xLabel: "arrival rate, jobs/s",
      yLabel: "load",
    });
    zones(chart.drawing, {
      ...chart,
      y,
      bands: [[0, strong, "strong"], [strong, tradeoff, "tradeoff"], [tradeoff, full, "poor"], [full, TOP, "over"]],
    });
    const places = range(0, 241).map((step) => x.invert((step / 240) * chart.width));
    for (const { kind, of } of lines()) {
      const path = line((arrival) => x(arrival), (arrival) => y(of(arrival))).defined((arrival) => of(arrival) <= TOP);
      chart.drawing.append("path").attr("class", `line ${kind}`).attr("d", path(places));
    }
    chart.drawing.append("text").attr("class", "zone-label").attr("x", chart.width - 8).attr("y", y(1.12)).attr("text-anchor", "end").text("the backlog grows");
    const usual = inputs.arrival;
    chart.drawing.append("line").attr("class", "yours-mark").attr("x1", x(usual)).attr("x2", x(usual)).attr("y2", chart.height);
    plot.replaceChildren(chart.svg.node());
    legend(names, lines());
    reader(plot, readout, {
      ...chart,
      x,
      usual,
      step: chart.width / 60,
      tell: (arrival) => `${amount(arrival)} jobs/s: ${lines().map(({ name, of }) => `${name.toLowerCase()} ${of(arrival).toFixed(2)}`).join(", ")}`,
    });
    fill();
  };
}
