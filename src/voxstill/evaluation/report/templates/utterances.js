// All utterances of a report: searched, sorted and paged in the browser. The rows lie in the page as gzipped JSON.
"use strict";
(async () => {
  const PAGE = 50;
  const section = document.getElementById("utterances");
  const packed = document.getElementById("rows");
  if (!section || !packed || typeof DecompressionStream === "undefined") return;
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), (char) => char.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { roles, rows } = JSON.parse(await new Response(plain).text());
  const audio = new Map([...document.querySelectorAll("audio[data-id]")].map((player) => [player.dataset.id, player.src]));
  const find = (name) => section.querySelector(`[data-part="${name}"]`);

  const errorsOf = (edits) => edits.length - edits.split("=").length + 1;
  const all = rows.map(([id, speaker, dataset, ms, text, heard]) => ({
    id, speaker, dataset, ms, text, heard,
    words: text ? text.split(" ").length : 0,
    errors: heard.map(([, edits]) => errorsOf(edits)),
    all: [id, speaker, dataset, text, ...heard.map(([hypothesis]) => hypothesis)].join("\n").toLowerCase(),
  }));
  const last = roles.length - 1;
  const keys = {
    id: (row) => row.id, seconds: (row) => row.ms ?? -1, words: (row) => row.words,
    ...Object.fromEntries(roles.map((role, i) => [`errors-${role}`, (row) => row.errors[i]])),
    ...Object.fromEntries(roles.map((role, i) => [`rate-${role}`, (row) => row.errors[i] / Math.max(row.words, 1)])),
  };
  const shows = {
    all: () => true,
    wrong: (row) => row.errors[last] > 0,
    worse: (row) => row.errors[last] > row.errors[0],
    better: (row) => row.errors[last] < row.errors[0],
  };
  const state = { key: `errors-${roles[last]}`, down: true, page: 0, matches: all };

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // One character an edit, as the scorer aligned them: = hit, s substitution, d deletion, i insertion.
  const aligned = (text, hypothesisText, edits) => {
    const reference = text.split(" "), hypothesis = hypothesisText.split(" ");
    const kinds = { "=": "hit", s: "sub", d: "gone", i: "more" };
    const box = make("div", { class: "aligned", dir: "auto" });
    box.append(make("span", { class: "lead", "aria-hidden": "true" }, make("span", {}, "reference"), make("span", {}, "hypothesis")));
    const empty = () => make("span", {}, make("span", { class: "void", "aria-hidden": "true" }, "∅"), make("span", { class: "hidden" }, "nothing"));
    let r = 0, h = 0;
    for (const edit of edits) {
      const above = edit === "i" ? empty() : make(edit === "=" ? "span" : "del", {}, reference[r++]);
      const below = edit === "d" ? empty() : make(edit === "=" ? "span" : "ins", {}, hypothesis[h++]);
      box.append(make("span", { class: kinds[edit] }, above, below));
    }
    return box;
  };

  const opened = (row) => {
    const cell = make("td", { colspan: 4 + roles.length });
    if (audio.has(row.id)) cell.append(make("audio", { controls: "", preload: "none", src: audio.get(row.id), "aria-label": `Audio of ${row.id}` }));
    roles.forEach((role, i) => {
      const rate = row.words ? `${(100 * row.errors[i] / row.words).toFixed(1)}\u202f%` : "–";
      const head = make("p", {}, make("span", { class: "role" }, role), " ", make("span", { class: "soft" }, rate));
      cell.append(make("div", { class: `heard ${role}` }, head, aligned(row.text, ...row.heard[i])));
    });
    return make("tr", { class: "opened" }, cell);
  };

  const line = (row) => {
    const toggle = make("button", { type: "button", "aria-expanded": "false" }, row.id);
    const about = [row.speaker, row.dataset].filter(Boolean).join(", ");
    const tableRow = make("tr", {},
      make("th", { scope: "row" }, toggle, make("small", {}, about)),
      make("td", { class: "wide text", dir: "auto" }, row.text || "∅"),
      make("td", { class: "num", "data-label": "seconds" }, row.ms === null ? "–" : (row.ms / 1000).toFixed(1)),
      make("td", { class: "num", "data-label": "words" }, String(row.words)),
      ...row.errors.map((errors, i) => make("td", { class: "num", "data-label": `errors, ${roles[i]}` }, String(errors))));
    toggle.addEventListener("click", () => {
      const open = toggle.getAttribute("aria-expanded") === "true";
      toggle.setAttribute("aria-expanded", String(!open));
      if (open) tableRow.nextSibling.remove(); else tableRow.after(opened(row));
    });
    return tableRow;
  };

  const show = () => {
    const pages = Math.max(Math.ceil(state.matches.length / PAGE), 1);
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const first = state.page * PAGE, visible = state.matches.slice(first, first + PAGE);
    find("body").replaceChildren(...visible.map(line));
    const count = (value) => value.toLocaleString("en").replaceAll(",", "\u202f");
    find("range").textContent = visible.length
      ? `${count(first + 1)} to ${count(first + visible.length)} of ${count(state.matches.length)}` : "none";
    find("before").disabled = state.page === 0;
    find("after").disabled = state.page === pages - 1;
    for (const head of section.querySelectorAll("th[data-key]")) {
      const own = head.dataset.key === state.key;
      head.setAttribute("aria-sort", own ? (state.down ? "descending" : "ascending") : "none");
    }
  };

  const update = () => {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const isShown = shows[find("show").value], of = find("dataset") ? find("dataset").value : "";
    const value = keys[state.key], sign = state.down ? -1 : 1;
    state.matches = all.filter((row) => isShown(row) && (!of || row.dataset === of) && words.every((word) => row.all.includes(word)));
    const tie = (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
    state.matches.sort((a, b) => {
      const x = value(a), y = value(b);
      return x < y ? -sign : x > y ? sign : tie(a, b);
    });
    state.page = 0;
    show();
  };

  const turn = (by) => { state.page += by; show(); };
  find("search").addEventListener("input", update);
  find("show").addEventListener("change", update);
  find("dataset")?.addEventListener("change", update);
  find("before").addEventListener("click", () => turn(-1));
  find("after").addEventListener("click", () => turn(1));
  for (const head of section.querySelectorAll("th[data-key]")) {
    head.querySelector("button").addEventListener("click", () => {
      state.down = state.key === head.dataset.key ? !state.down : head.dataset.key !== "id";
      state.key = head.dataset.key;
      update();
    });
  }
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); find("search").focus(); }
    if (event.key === "n" && !find("after").disabled) turn(1);
    if (event.key === "p" && !find("before").disabled) turn(-1);
  });
  update();
  section.hidden = false;
  for (const link of document.querySelectorAll('a[href="#utterances"]')) link.parentElement.hidden = false;
})();
