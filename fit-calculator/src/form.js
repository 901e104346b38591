// The controls: one for each input, with its message beside it. They pass new values to `changed` and decide nothing.
import { scaleLog } from "d3-scale";
import { byId, el, say } from "./dom.js";
import { GROUPS, PRICES } from "./fields.js";
import { INPUTS } from "./model.js";
import { PRESETS, presetOf } from "./presets.js";
import { time } from "./words.js";

const STEPS = 240;

/** Builds the form; `changed(values)` gets the inputs that the user changed. */
export function makeForm(changed) {
  const controls = new Map();
  const add = (into, field) => {
    const control = field.key === "broker" ? makeCheckbox(field, changed) : makeNumber(field, changed);
    controls.set(field.key, control);
    into.append(control.node);
  };
  const preset = makePreset(changed);
  for (const group of GROUPS) {
    const body = el("fieldset", {}, el("legend", {}, group.title));
    if (group.preset) body.append(preset.node);
    group.fields.forEach((field) => add(body, field));
    if (group.more) {
      const more = el("details", {}, el("summary", {}, "More"));
      group.more.forEach((field) => add(more, field));
      body.append(more);
    }
    byId("controls").append(body);
  }
  PRICES.forEach((field) => add(byId("prices"), field));
  return {
    /** Shows these inputs everywhere except in the control that the user is typing in. */
    show(inputs) {
      for (const [key, control] of controls) control.show(inputs[key]);
      preset.show(inputs);
    },
    /** Shows each message beside its field. */
    complain(found) {
      for (const [key, control] of controls) control.complain(found.find(({ field }) => field === key)?.message ?? "");
    },
  };
}

function makeNumber({ key, label, unit, hint, slide }, changed) {
  const id = `in-${key}`;
  const error = el("span", { class: "error", id: `${id}-error` });
  const reading = el("span", { class: "reading" });
  const input = el("input", {
    id,
    type: "text",
    inputmode: "decimal",
    autocomplete: "off",
    "aria-describedby": hint ? `${id}-hint ${id}-error` : `${id}-error`,
  });
  input.addEventListener("input", () => changed({ [key]: parse(input.value) }));
  const slider = slide && makeSlider({ key, label, slide }, changed);
  const node = el(
    "div",
    { class: "field" },
    el("label", { for: id }, label, reading),
    el("span", { class: "value" }, input, unit ? el("span", { class: "unit" }, unit) : ""),
    slider ? slider.node : "",
    hint ? el("span", { class: "under hint", id: `${id}-hint` }, hint) : "",
    error,
  );
  return {
    node,
    show(value) {
      if (document.activeElement !== input || parse(input.value) !== value) {
        if (!Number.isNaN(value)) input.value = String(value);
      }
      slider?.show(value);
      say(reading, unit === "ms" && value >= 1000 ? ` ${time(value)}` : "");
    },
    complain(message) {
      say(error, message);
      if (message) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    },
  };
}

function parse(text) {
  const plain = text.trim().replace(/(?<=\d),(?=\d{3}(\D|$))/g, "");
  return plain === "" ? NaN : Number(plain);
}

function makeSlider({ key, label, slide }, changed) {
  const scale = scaleLog(slide, [0, STEPS]).clamp(true);
  const { whole, min } = INPUTS.find((input) => input.key === key);
  const node = el("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${label}, coarse` });
  node.addEventListener("input", () => {
    const value = Number(scale.invert(Number(node.value)).toPrecision(2));
    changed({ [key]: Math.max(min, whole ? Math.round(value) : value) });
  });
  return {
    node,
    show(value) {
      if (value > 0 && document.activeElement !== node) node.value = String(Math.round(scale(value)));
      if (value === 0) node.value = "0";
      const filled = (100 * Number(node.value)) / STEPS;
      node.style.setProperty("--filled", `${filled}%`);
      node.setAttribute("aria-valuetext", String(value));
    },
  };
}

function makeCheckbox({ key, label, hint }, changed) {
  const input = el("input", { id: `in-${key}`, type: "checkbox", "aria-describedby": `in-${key}-hint` });
  input.addEventListener("change", () => changed({ [key]: input.checked ? 1 : 0 }));
  const node = el(
    "div",
    { class: "field check" },
    el("label", { for: `in-${key}` }, input, el("span", {}, label)),
    el("span", { class: "under hint", id: `in-${key}-hint` }, hint),
  );
  return { node, show: (value) => (input.checked = value === 1), complain: () => {} };
}

function makePreset(changed) {
  const own = el("option", { value: "" }, "Your own figures");
  const select = el("select", { id: "in-preset", "aria-describedby": "preset-note" });
  select.append(...PRESETS.map(({ id, name }) => el("option", { value: id }, name)), own);
  select.addEventListener("change", () => {
    const preset = PRESETS.find(({ id }) => id === select.value);
    if (preset) changed(preset.values);
  });
  const note = el("span", { class: "under hint", id: "preset-note" });
  const node = el(
    "div",
    { class: "field preset" },
    el("label", { for: "in-preset" }, "Start from"),
    select,
    note,
  );
  return {
    node,
    show(inputs) {
      const preset = presetOf(inputs);
      select.value = preset?.id ?? "";
      say(note, preset?.note ?? "Latency, limit and prices as you set them.");
    },
  };
}
