// A chart's frame: an SVG as wide as its container, axes, a reading line for pointer and keys, the table and the CSV.
import { axisBottom, axisLeft } from "d3-axis";
import { create } from "d3-selection";
import { csv, download, el, say } from "./dom.js";
import { table } from "./results.js";

export const MARGIN = { top: 26, right: 30, bottom: 46, left: 60 };

/** Finds the parts of the figure `id` in the page and makes its buttons work. `rows()` returns the rows of table and CSV. */
export function figure(id, rows) {
  const node = document.getElementById(id);
  const part = (name) => node.querySelector(`.${name}`);
  part("csv").addEventListener("click", () => download(`${id}.csv`, csv(rows())));
  const tableOf = node.querySelector("details");
  const fill = () => tableOf.open && part("rows").replaceChildren(table(node.querySelector("h3").textContent, rows()));
  tableOf.addEventListener("toggle", fill);
  return { node, plot: part("plot"), readout: part("readout"), legend: part("legend"), fill };
}

/** Makes an empty SVG of this size with axes; returns it with the group to draw in, under the axes. */
export function frame(plot, { height, x, y, xTicks, yTicks, xFormat, yFormat, xLabel, yLabel }) {
  const width = Math.max(280, plot.clientWidth);
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  x.range([0, inner.width]);
  y.range([inner.height, 0]);
  const svg = create("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`).attr("aria-hidden", "true");
  const at = svg.append("g").attr("transform", `translate(${MARGIN.left},${MARGIN.top})`);
  const drawing = at.append("g");
  const few = inner.width < 420;
  const bottom = axisBottom(x).tickValues(few ? xTicks.filter((_, index) => index % 2 === 0) : xTicks).tickFormat(xFormat).tickSizeOuter(0).tickPadding(8);
  at.append("g").attr("class", "axis").attr("transform", `translate(0,${inner.height})`).call(bottom);
  at.append("g").attr("class", "axis").call(axisLeft(y).tickValues(yTicks).tickFormat(yFormat).tickSizeOuter(0).tickPadding(8));
  at.append("text").attr("class", "axis-label").attr("x", inner.width).attr("y", inner.height + 38).attr("text-anchor", "end").text(xLabel);
  at.append("text").attr("class", "axis-label").attr("x", 4 - MARGIN.left).attr("y", -12).text(yLabel);
  return { svg, at, drawing, ...inner };
}

/** Draws bands of the y axis, one for each class: [from, to, class]. */
export function zones(drawing, { width, y, bands }) {
  for (const [from, to, verdict] of bands) {
    const top = y(to);
    const size = y(from) - top;
    for (const fill of [`var(--${verdict}-zone)`, `url(#hatch-${verdict})`]) {
      drawing.append("rect").attr("width", width).attr("y", top).attr("height", size).attr("fill", fill);
    }
  }
}

/** Shows the values at a place: by pointer, or with the arrow keys while the plot has the focus. */
export function reader(plot, readout, { svg, at, width, height, x, usual, step, tell }) {
  const line = at.append("line").attr("class", "reading-line").attr("y1", 0).attr("y2", height).attr("visibility", "hidden");
  let place = x(usual);
  const show = (px) => {
    place = Math.min(width, Math.max(0, px));
    line.attr("x1", place).attr("x2", place).attr("visibility", "visible");
    say(readout, tell(x.invert(place)));
  };
  const hide = () => {
    line.attr("visibility", "hidden");
    say(readout, tell(usual));
  };
  const box = svg.node();
  box.addEventListener("pointermove", (event) => show(event.clientX - box.getBoundingClientRect().left - MARGIN.left));
  box.addEventListener("pointerleave", hide);
  plot.onfocus = () => show(place);
  plot.onblur = hide;
  plot.onkeydown = (event) => {
    const move = { ArrowLeft: -step, ArrowRight: step, Home: -width, End: width }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(place + move);
  };
  say(readout, tell(usual));
}

/** Shows the legend: a sample of each line beside its name. */
export function legend(node, lines) {
  const sample = ({ kind }) => {
    const svg = create("svg").attr("width", 28).attr("height", 8).attr("aria-hidden", "true");
    svg.append("line").attr("class", `line ${kind}`).attr("x1", 1).attr("x2", 27).attr("y1", 4).attr("y2", 4);
    return svg.node();
  };
  node.replaceChildren(...lines.map((line) => el("li", {}, sample(line), line.name)));
}
