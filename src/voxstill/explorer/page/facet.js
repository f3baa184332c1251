// The values of a category with their numbers, to choose from, and a field for every other value.

import { make, number, replace } from "./api.js";

const FIRST = 12, LISTED = 50;
/** Values that are asked for: those that are not listed are offered by the field. */
export const KNOWN = 200;

/** A category; `toggle(value)` is called with a value that is chosen, or no longer. */
export class Facet {
  constructor(column, toggle) {
    this.toggle = toggle;
    this.first = make("div");
    this.rest = make("div");
    this.summary = make("summary", { class: "soft" });
    this.more = make("details", {}, this.summary, this.rest);
    this.known = make("datalist", { id: `known-${column.name}` });
    this.field = make("input", { type: "text", list: this.known.id, placeholder: "another value", "aria-label": `${column.title}, another value`, autocomplete: "off", spellcheck: "false", onchange: () => this.take(),
      onkeydown: ({ key }) => { if (key === "Escape") this.field.value = ""; } });
    this.element = make("div", { class: "values", hidden: true }, make("header", {}, column.title), this.first, this.more, this.field, this.known);
  }

  take() {
    const { value } = this.field;
    this.field.value = "";
    if (value && !this.chosen.includes(value)) this.toggle(value);
  }

  /** Show values, the most frequent first; `chosen` are listed, however rare; `isKept` shows even a single one. */
  update(values, chosen, isKept) {
    this.chosen = chosen;
    const listed = values.slice(0, LISTED), names = new Set(listed.map(({ value }) => value));
    const rare = chosen.filter((value) => !names.has(value)).map((value) => values.find((one) => one.value === value) ?? { value, num: null });
    const most = Math.max(1, ...listed.map(({ num }) => num));
    const button = ({ value, num }) => {
      const width = make("i");
      width.style.width = `${(100 * num) / most}%`;
      return make("button", { type: "button", "data-key": JSON.stringify(value), "aria-pressed": String(chosen.includes(value)), onclick: () => this.toggle(value) },
        make("span", {}, value === null ? "none" : String(value)), make("span", { class: "num" }, number(num)), make("span", { class: "track of-kept" }, width));
    };
    const hasMore = listed.length > FIRST, hasFocus = this.element.contains(document.activeElement);
    this.element.hidden = values.length < 2 && !chosen.length && !(isKept && values.length) && !hasFocus;
    this.more.hidden = !hasMore;
    this.field.hidden = !hasMore && !hasFocus;
    this.summary.textContent = `${number(listed.length - FIRST)} more`;
    this.known.replaceChildren(...values.filter(({ value }) => value !== null).map(({ value }) => make("option", { value: String(value) })));
    replace(this.first, [...listed.slice(0, FIRST), ...rare].map(button));
    replace(this.rest, listed.slice(FIRST).map(button));
  }
}
