// The fit map: work time and arrival rate, coloured by verdict, with a draggable crosshair at the inputs.
import { range } from "d3-array";
import { scaleLog } from "d3-scale";
import { figure, frame, MARGIN } from "./chart.js";
import { say } from "./dom.js";
import { engineModel, plainModel, verdictOf } from "./model.js";
import { amount, time } from "./words.js";

const WORK = [1, 3_600_000];
const ARRIVAL = [0.01, 10_000];
const COLUMNS = 80;
const ROWS = 48;
const MODELS = { engine: engineModel, plain: plainModel };
/** One key press moves the crosshair by this share of a decade. */
const STEP = 0.05;

const clamp = (value, [least, most]) => Math.min(most, Math.max(least, value));
const round = (value) => Number(value.toPrecision(3));

/** Returns a function that draws the map; calls `moved({ work_ms, arrival })` when the user moves the crosshair. */
export function fitMap(moved) {
  let inputs;
  let model;
  const judge = (work_ms, arrival) => MODELS[model]({ ...inputs, work_ms, arrival });
  const rows = () => {
    const works = [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000];
    return [
      ["Jobs/s", ...works.map((work) => `work ${time(work)}`)],
      ...[0.01, 0.1, 1, 5, 10, 50, 100, 500, 1000, 10_000].map((rate) => [rate, ...works.map((work) => judge(work, rate).verdict)]),
    ];
  };
  const { plot, readout, fill } = figure("chart-map", rows);
  const handle = plot.querySelector(".crosshair");
  const tell = (work, arrival) => {
    const { verdict, decided_by } = judge(work, arrival);
    return `${time(work)} of work, ${amount(arrival)} jobs/s: ${verdict}${decided_by ? `, by ${decided_by}` : ""}`;
  };
  let x;
  let y;
  let drawn = {};
  handle.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 5 : 1;
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [0, 0];
    if (dx === 0 && dy === 0) return;
    event.preventDefault();
    moved({
      ...(dx && { work_ms: round(clamp(Math.max(inputs.work_ms, WORK[0]) * 10 ** (dx * far * STEP), WORK)) }),
      ...(dy && { arrival: round(clamp(Math.max(inputs.arrival, ARRIVAL[0]) * 10 ** (dy * far * STEP), ARRIVAL)) }),
    });
  });
  const place = (event) => {
    const box = plot.getBoundingClientRect();
    return [x.invert(event.clientX - box.left - MARGIN.left), y.invert(event.clientY - box.top - MARGIN.top)];
  };
  const drag = (event) => {
    const [work, arrival] = place(event);
    moved({ work_ms: round(clamp(work, WORK)), arrival: round(clamp(arrival, ARRIVAL)) });
  };
  let dragging = false;
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragging = true;
    plot.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    event.preventDefault();
    drag(event);
  });
  plot.addEventListener("pointermove", (event) => {
    if (dragging) drag(event);
    else say(readout, tell(...place(event)));
  });
  for (const end of ["pointerup", "pointercancel"]) plot.addEventListener(end, () => (dragging = false));
  plot.addEventListener("pointerleave", () => say(readout, tell(inputs.work_ms, inputs.arrival)));

  return (now, chosen) => {
    [inputs, model] = [now, chosen];
    x = scaleLog(WORK, [0, 1]).clamp(true);
    y = scaleLog(ARRIVAL, [1, 0]).clamp(true);
    const chart = frame(plot, {
      height: 380,
      x,
      y,
      xTicks: [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000],
      yTicks: [0.01, 0.1, 1, 10, 100, 1000, 10_000],
      xFormat: (v) => time(v),
      yFormat: (v) => amount(v),
      xLabel: "work per job",
      yLabel: "jobs/s",
    });
    cells(chart);
    const [px, py] = [x(clamp(inputs.work_ms, WORK)), y(clamp(inputs.arrival, ARRIVAL))];
    chart.drawing.append("line").attr("class", "yours-mark").attr("x1", px).attr("x2", px).attr("y2", chart.height);
    chart.drawing.append("line").attr("class", "yours-mark").attr("x2", chart.width).attr("y1", py).attr("y2", py);
    chart.drawing.append("circle").attr("class", "yours-place").attr("cx", px).attr("cy", py).attr("r", 5);
    plot.querySelector("svg")?.remove();
    plot.prepend(chart.svg.node());
    handle.style.left = `${px + MARGIN.left}px`;
    handle.style.top = `${py + MARGIN.top}px`;
    const here = tell(inputs.work_ms, inputs.arrival);
    handle.setAttribute("aria-valuenow", String(Math.round(Math.log10(clamp(inputs.work_ms, WORK)) * 100)));
    handle.setAttribute("aria-valuetext", here);
    say(readout, here);
    fill();
  };

  /** The shapes do not depend on the current work and arrival rate, so moving the crosshair draws none again. */
  function cells(chart) {
    const of = JSON.stringify({ ...inputs, work_ms: 0, arrival: 0, model, width: chart.width });
    if (drawn.of !== of) drawn = { of, shapes: shapesOf(chart) };
    for (const [verdict, shape] of Object.entries(drawn.shapes)) {
      for (const fill of [`var(--${verdict}-zone)`, `url(#hatch-${verdict})`]) {
        chart.drawing.append("path").attr("d", shape).attr("fill", fill).attr("shape-rendering", "crispEdges");
      }
    }
  }

  /** Returns one shape per verdict, made of the runs of its cells in each row. */
  function shapesOf({ width, height }) {
    const [w, h] = [width / COLUMNS, height / ROWS];
    const here = { ...inputs };
    const shapes = { strong: "", tradeoff: "", poor: "" };
    for (const row of range(ROWS)) {
      here.arrival = y.invert((row + 0.5) * h);
      const verdicts = range(COLUMNS).map((column) => {
        here.work_ms = x.invert((column + 0.5) * w);
        return verdictOf(model, here);
      });
      for (let from = 0, to; from < COLUMNS; from = to) {
        to = from + 1;
        while (to < COLUMNS && verdicts[to] === verdicts[from]) to += 1;
        const [left, right] = [from * w, to * w].map((px) => px.toFixed(1));
        shapes[verdicts[from]] += `M${left} ${(row * h).toFixed(1)}H${right}V${((row + 1) * h).toFixed(1)}H${left}Z`;
      }
    }
    return shapes;
  }
}
