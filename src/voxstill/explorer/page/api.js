// Requests to the explorer, and elements of the page.

const running = new Map();

/** Ask the API; a later question of the same `topic` ends the one before, which then never resolves. */
export async function ask(path, parameters = {}, topic = null) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
  const abort = new AbortController();
  if (topic) {
    running.get(topic)?.abort();
    running.set(topic, abort);
  }
  try {
    const answer = await fetch(`/api/${path}?${query}`, { signal: abort.signal });
    return await read(answer);
  } catch (error) {
    if (error.name === "AbortError") return new Promise(() => {});
    throw error;
  }
}

export async function post(path, body) {
  const answer = await fetch(`/api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return read(answer);
}

async function read(answer) {
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? answer.statusText);
  return body;
}

/** An element with attributes and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const find = (id) => document.getElementById(id);

const CONTROLS = "a[href], button:not(:disabled), input, select, summary";

/** Replace the children of a box. The focus stays on the control with the same `data-key`, else on the one at its place. */
export function replace(box, children, otherwise = find("rows")) {
  const active = document.activeElement, isInside = active !== box && box.contains(active);
  const place = isInside ? [...box.querySelectorAll(CONTROLS)].indexOf(active) : -1;
  box.replaceChildren(...children);
  if (!isInside) return;
  const controls = [...box.querySelectorAll(CONTROLS)];
  const same = controls.find((control) => control.dataset.key === active.dataset.key);
  (same ?? controls[Math.min(place, controls.length - 1)] ?? otherwise).focus({ preventScroll: true });
}

/** Move the focus to the table of utterances. */
export const focusRows = () => find("rows").focus({ preventScroll: true });

/** Whether a key belongs to an input method that composes characters; some browsers only give it the code 229. */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

/** Numbers for people: thousands apart, four digits that count. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en").replaceAll(",", "\u202f");
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : Math.abs(value) >= 1 ? 2 : 3;
  return value.toFixed(digits);
}

export const percent = (rate) => (rate === null || rate === undefined ? "–" : `${(100 * rate).toFixed(1)}\u202f%`);
export const seconds = (ms) => `${(ms / 1000).toFixed(1)}\u202fs`;

/** A length for people: hours, or minutes where they are few. */
export function length(ms) {
  const hours = ms / 3_600_000;
  if (hours < 1) return `${(ms / 60_000).toFixed(1)}\u202fmin`;
  return `${hours >= 100 ? number(Math.round(hours)) : hours.toFixed(hours < 10 ? 2 : 1)}\u202fh`;
}
