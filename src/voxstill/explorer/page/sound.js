// The audio of an utterance: fetched as WAV, drawn as a waveform, played from where it is pointed at.

import { make, seconds } from "./api.js";

const HEADER_BYTES = 44;
const RATE_HZ = 16000;

/** Largest magnitude of the samples in each of `num` parts, 0 to 1. */
export function peaks(wav, num) {
  const samples = new Int16Array(wav.slice(dataStart(wav)));
  return Float32Array.from({ length: num }, (_, k) => {
    const start = Math.floor((k * samples.length) / num), end = Math.max(start + 1, Math.floor(((k + 1) * samples.length) / num));
    let peak = 0;
    for (let i = start; i < end && i < samples.length; i++) peak = Math.max(peak, Math.abs(samples[i]));
    return peak / 32768;
  });
}

function dataStart(wav) {
  const view = new DataView(wav), decoder = new TextDecoder("latin1");
  for (let at = 12; at + 8 <= wav.byteLength; ) {
    const name = decoder.decode(new Uint8Array(wav, at, 4)), size = view.getUint32(at + 4, true);
    if (name === "data") return at + 8;
    at += 8 + size + (size % 2);
  }
  return HEADER_BYTES;
}

/** A player with its waveform; `element` is put into the page, `load(row)` fetches, `close()` lets go. */
export class Player {
  constructor() {
    this.audio = new Audio();
    this.canvas = make("canvas", { role: "img", "aria-label": "Waveform; a click plays from there" });
    this.button = make("button", { type: "button", onclick: () => this.toggle() }, "▶ Play");
    this.time = make("span", { class: "time" });
    this.fault = make("span", { class: "fault", role: "status" });
    this.element = make("div", { class: "sound" }, this.canvas, make("div", { class: "controls" }, this.button, this.time, this.fault));
    this.wanted = false;
    this.wish = new Promise((resolve) => { this.wishes = resolve; });
    this.canvas.addEventListener("click", (event) => {
      if (!Number.isFinite(this.audio.duration)) return;
      this.audio.currentTime = (event.offsetX / this.canvas.clientWidth) * this.audio.duration;
      this.play();
    });
    for (const name of ["play", "pause", "ended", "timeupdate", "seeked", "loadedmetadata"]) this.audio.addEventListener(name, () => this.show());
    this.audio.addEventListener("playing", () => this.element.toggleAttribute("data-playing", true));
    for (const name of ["pause", "ended"]) this.audio.addEventListener(name, () => this.element.toggleAttribute("data-playing", false));
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.dark.addEventListener("change", this.redraw);
    this.resizing = new ResizeObserver(this.redraw);
    this.resizing.observe(this.canvas);
  }

  async load(row) {
    this.abort = new AbortController();
    try {
      const answer = await fetch(`/api/utterances/${row}/audio`, { signal: this.abort.signal });
      if (answer.headers.get("Content-Type") !== "audio/wav") throw new Error((await answer.json()).error);
      this.wav = await answer.arrayBuffer();
      this.url = URL.createObjectURL(new Blob([this.wav], { type: "audio/wav" }));
      this.audio.src = this.url;
      this.lengthS = (this.wav.byteLength - dataStart(this.wav)) / 2 / RATE_HZ;
      this.draw();
      this.show();
      if (this.wanted) this.play();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.fault.textContent = error.message;
      this.button.disabled = true;
    }
  }

  play() {
    this.wanted = true;
    this.wishes();
    if (!this.wav) return;
    this.audio.play().catch((error) => {
      if (error.name !== "AbortError") this.fault.textContent = error.message;
    });
  }

  toggle() {
    if (this.audio.paused) this.play();
    else this.pause();
  }

  pause() {
    this.wanted = false;
    this.audio.pause();
  }

  skip(bySeconds) {
    if (this.wav) this.audio.currentTime = Math.max(0, Math.min(this.lengthS, this.audio.currentTime + bySeconds));
  }

  show() {
    this.button.textContent = this.audio.paused ? "▶ Play" : "❚❚ Pause";
    this.time.textContent = `${seconds(1000 * this.audio.currentTime)} of ${seconds(1000 * (this.lengthS ?? 0))}`;
    this.draw();
    cancelAnimationFrame(this.frame);
    if (!this.audio.paused) this.frame = requestAnimationFrame(() => this.show());
  }

  draw() {
    const { canvas } = this, scale = devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
    if (!width || !this.wav) return;
    if (canvas.width !== width || canvas.height !== height) {
      [canvas.width, canvas.height] = [width, height];
      this.peaks = null;
    }
    const num = Math.max(1, Math.floor(canvas.clientWidth / 3));
    this.peaks ??= peaks(this.wav, num);
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const played = this.lengthS ? this.audio.currentTime / this.lengthS : 0, top = Math.max(0.05, ...this.peaks);
    context.clearRect(0, 0, width, height);
    this.peaks.forEach((peak, k) => {
      const size = Math.max(1.5 * scale, (peak / top) * (height - 12 * scale));
      context.fillStyle = style.getPropertyValue(k / this.peaks.length < played ? "--student" : "--edge");
      context.fillRect((k * width) / this.peaks.length, (height - size) / 2, 2 * scale, size);
    });
    context.fillStyle = style.getPropertyValue("--ink");
    context.fillRect(played * width, 0, 1.5 * scale, height);
  }

  close() {
    this.abort?.abort();
    this.audio.pause();
    this.audio.removeAttribute("src");
    cancelAnimationFrame(this.frame);
    this.dark.removeEventListener("change", this.redraw);
    this.resizing.disconnect();
    if (this.url) URL.revokeObjectURL(this.url);
  }
}
