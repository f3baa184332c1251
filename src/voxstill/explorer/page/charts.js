// Histograms that are brushed, and learning curves.

import { make, number, svg } from "./api.js";

const WIDTH = 240, HEIGHT = 46;

/** A histogram of a column; `choose(min, max)` is called with what is brushed, nulls for nothing. */
export function histogram(column, data, chosen, choose, remove) {
  const box = make("div", { class: "histogram" });
  const name = make("span", {}, column.title);
  box.append(make("header", {}, name, make("button", { type: "button", "aria-label": `Hide ${column.title}`, onclick: remove }, "×")));
  if (!data) {
    box.append(make("p", { class: "soft" }, "no value is known"));
    return box;
  }
  const { low, high, counts, kept } = data, top = Math.max(1, ...counts), bar = WIDTH / counts.length;
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${column.title}: ${number(low)} to ${number(high)}` });
  chart.append(
    svg("defs", {}, svg("pattern", { id: "hatch", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 4, height: 4, class: "hatch-wash" }), svg("rect", { width: 2, height: 4, class: "hatch-line" }))));
  counts.forEach((count, k) => {
    const draw = (value, kind) => {
      const size = (value / top) * (HEIGHT - 2);
      if (value) chart.append(svg("rect", { class: kind, x: k * bar, y: HEIGHT - size, width: Math.max(1, bar - 1), height: size }));
    };
    draw(count, "all");
    draw(kept[k], "kept");
  });
  const brush = svg("rect", { class: "brush", y: 0, height: HEIGHT, width: 0, x: 0 });
  chart.append(brush);
  const place = (value) => ((value - low) / (high - low)) * WIDTH;
  const mark = (from, to) => {
    const left = Math.max(0, Math.min(WIDTH, from)), right = Math.max(0, Math.min(WIDTH, to));
    brush.setAttribute("x", Math.min(left, right));
    brush.setAttribute("width", Math.abs(right - left));
  };
  if (chosen) mark(place(chosen.min ?? low), place(chosen.max ?? high));
  const at = (event) => {
    const bounds = chart.getBoundingClientRect();
    return ((event.clientX - bounds.left) / bounds.width) * WIDTH;
  };
  let start = null;
  chart.addEventListener("pointerdown", (event) => {
    start = at(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => start !== null && mark(start, at(event)));
  chart.addEventListener("pointerup", (event) => {
    const end = at(event), [left, right] = [Math.min(start, end), Math.max(start, end)];
    start = null;
    if (right - left < 3) return choose(null, null);
    const value = (x) => Number((low + (x / WIDTH) * (high - low)).toPrecision(4));
    return choose(left <= 1 ? null : value(left), right >= WIDTH - 1 ? null : value(right));
  });
  const end = (key, shown) => make("input", { type: "text", inputmode: "decimal", value: chosen?.[key] ?? "", placeholder: number(shown), "aria-label": `${column.title}, ${key === "min" ? "at least" : "at most"}`, onchange: (event) => {
    const text = event.target.value.trim(), value = text === "" ? null : Number(text);
    if (Number.isNaN(value)) { event.target.value = ""; return; }
    choose(key === "min" ? value : chosen?.min ?? null, key === "max" ? value : chosen?.max ?? null);
  } });
  box.append(chart, make("div", { class: "ends" }, end("min", low), end("max", high)));
  return box;
}

/** Curves of several experiments in one chart. */
export function curves(title, lines) {
  const box = make("div", { class: "card curve" }, make("h2", {}, title));
  const steps = lines.flatMap((line) => line.steps), values = lines.flatMap((line) => line.values);
  const last = Math.max(1, ...steps), low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const chart = svg("svg", { viewBox: "0 0 400 190", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${number(low)} to ${number(high)}` });
  for (const y of [4, 95, 186]) chart.append(svg("line", { class: "grid", x1: 0, x2: 400, y1: y, y2: y }));
  lines.forEach((line) => {
    const points = line.steps.map((step, k) => `${((step / last) * 400).toFixed(1)},${(186 - ((line.values[k] - low) / span) * 182).toFixed(1)}`);
    if (points.length === 1) points.push(`${Math.max(0, (line.steps[0] / last) * 400 - 8)},${points[0].split(",")[1]}`);
    chart.append(svg("polyline", { class: `s${line.number % 4}`, points: points.join(" ") }));
  });
  box.append(
    make("div", { class: "lines" }, ...lines.map((line) => make("span", {}, svg("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, svg("line", { class: `s${line.number % 4}`, x1: 0, x2: 30, y1: 5, y2: 5 })), line.name))),
    make("div", { class: "axis" }, make("span", {}, number(high))), chart,
    make("div", { class: "axis" }, make("span", {}, number(low)), make("span", {}, `${number(last)} steps`)));
  return box;
}
