// Histograms that are brushed, and learning curves.

import { make, number, svg } from "./api.js";

const WIDTH = 240, HEIGHT = 46;

/** A histogram of a column; `choose(min, max)` is called with what is brushed or typed, nulls for nothing. */
export class Histogram {
  constructor(column, { choose, hide, complain }) {
    Object.assign(this, { column, choose, complain });
    this.chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.brush = svg("rect", { class: "brush", y: 0, height: HEIGHT, width: 0, x: 0 });
    [this.min, this.max] = ["at least", "at most"].map((end) =>
      make("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": `${column.title}, ${end}`, onchange: () => this.take() }));
    this.button = make("button", { type: "button", "aria-label": `Hide ${column.title}`, onclick: hide }, "×");
    this.ends = make("div", { class: "ends" }, this.min, this.max);
    this.unknown = make("p", { class: "soft", hidden: true }, "no value is known");
    this.element = make("div", { class: "histogram" }, make("header", {}, make("span", {}, column.title), this.button), this.unknown, this.chart, this.ends);
    this.start = null;
    this.chart.addEventListener("pointerdown", (event) => {
      this.start = this.at(event);
      this.chart.setPointerCapture(event.pointerId);
    });
    this.chart.addEventListener("pointermove", (event) => this.start !== null && this.mark(this.start, this.at(event)));
    this.chart.addEventListener("pointerup", (event) => this.brushed(this.at(event)));
    this.chart.addEventListener("pointercancel", () => { this.start = null; });
  }

  /** Show counts, and what of them is chosen; what somebody types or brushes meanwhile stays. */
  update(data, chosen) {
    this.unknown.hidden = Boolean(data);
    this.ends.hidden = !data;
    this.chart.toggleAttribute("hidden", !data);
    if (!data) return;
    const { low, high, counts, kept } = this.data = data, top = Math.max(1, ...counts), bar = WIDTH / counts.length;
    const draw = (value, k, kind) => {
      const size = (value / top) * (HEIGHT - 2);
      return value ? [svg("rect", { class: kind, x: k * bar, y: HEIGHT - size, width: Math.max(1, bar - 1), height: size })] : [];
    };
    this.chart.setAttribute("aria-label", `${this.column.title}: ${number(low)} to ${number(high)}`);
    this.chart.replaceChildren(...counts.flatMap((count, k) => [...draw(count, k, "all"), ...draw(kept[k], k, "kept")]), this.brush);
    const place = (value) => ((value - low) / (high - low)) * WIDTH;
    if (this.start === null) this.mark(...(chosen ? [place(chosen.min ?? low), place(chosen.max ?? high)] : [0, 0]));
    for (const [input, value, end] of [[this.min, chosen?.min, low], [this.max, chosen?.max, high]]) {
      input.placeholder = number(end);
      if (input !== document.activeElement) this.write(input, value);
    }
  }

  write(input, value) {
    input.value = value ?? "";
    input.setAttribute("aria-invalid", "false");
  }

  take() {
    const ends = [this.min, this.max].map((input) => {
      const text = input.value.trim(), value = text === "" ? null : Number(text), isBad = value !== null && !Number.isFinite(value);
      input.setAttribute("aria-invalid", String(isBad));
      if (isBad) this.complain(new Error(`${this.column.title}: “${text}” is not a number`));
      return isBad ? NaN : value;
    });
    if (!ends.some(Number.isNaN)) this.choose(...ends);
  }

  brushed(end) {
    if (this.start === null) return;
    const [left, right] = [Math.min(this.start, end), Math.max(this.start, end)], { low, high } = this.data;
    this.start = null;
    if (right - left < 3) return this.choose(null, null);
    const value = (x) => Number((low + (x / WIDTH) * (high - low)).toPrecision(4));
    this.choose(left <= 1 ? null : value(left), right >= WIDTH - 1 ? null : value(right));
  }

  mark(from, to) {
    const left = Math.max(0, Math.min(WIDTH, from)), right = Math.max(0, Math.min(WIDTH, to));
    this.brush.setAttribute("x", Math.min(left, right));
    this.brush.setAttribute("width", Math.abs(right - left));
  }

  at(event) {
    const bounds = this.chart.getBoundingClientRect();
    return ((event.clientX - bounds.left) / bounds.width) * WIDTH;
  }
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
