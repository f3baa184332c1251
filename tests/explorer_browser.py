"""What tests of the explorer's page do in a browser: keys, themes, latency, and the contrast of all that is shown."""

from __future__ import annotations

import time

from browser import Browser

CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(rgba(getComputedStyle(one).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), rgba(getComputedStyle(document.body).backgroundColor));
  };
  const light = (color) => {
    const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const bad = [];
  let num = 0, numOfParts = 0;
  const ratioOf = (front, background) => {
    const [a, b] = [light(over(front, background)), light(background)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const isShown = (element) => {
    const box = element.getBoundingClientRect();
    const isVisible = box.width && box.height && getComputedStyle(element).visibility !== "hidden";
    return isVisible && !element.closest("[hidden], .hidden, .skip, option");
  };
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element), holder = element.placeholder && getComputedStyle(element, "::placeholder");
    if (!own && !(element.tagName === "INPUT")) continue;
    if (!isShown(element) || element.disabled) continue;
    num += 1;
    const background = behind(element), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    for (const { color, opacity } of [style, ...(holder ? [holder] : [])]) {
      const [r, g, b, a] = rgba(color), ratio = ratioOf([r, g, b, a * Number(opacity)], background);
      const words = element.textContent.slice(0, 30) || element.placeholder;
      const about = [element.tagName, element.className, words, ratio.toFixed(2)];
      if (ratio < (large ? 3 : 4.5)) bad.push(about.join(" "));
    }
  }
  const part = (name, color, background) => {
    numOfParts += 1;
    const ratio = ratioOf(rgba(color), background);
    if (ratio < 3) bad.push(`${name} ${color} ${ratio.toFixed(2)}`);
  };
  const all = (selector) => [...document.querySelectorAll(selector)].filter(isShown), styleOf = getComputedStyle;
  for (const field of all("input, select, textarea")) {
    part(`border of ${field.id || field.ariaLabel}`, styleOf(field).borderTopColor, behind(field.parentElement));
  }
  for (const bar of all(".track i")) part("bar", styleOf(bar).backgroundColor, behind(bar.parentElement));
  for (const chart of all(".histogram svg")) {
    const around = behind(chart.parentElement);
    const [line, wash] = ["line", "wash"].map((name) => styleOf(document.querySelector(`.hatch-${name}`)).fill);
    part("dropped on its wash", line, rgba(wash));
    part("dropped", line, around);
    for (const bar of chart.querySelectorAll(".kept")) part("kept", styleOf(bar).fill, around);
    part("axis", styleOf(chart).borderBottomColor, around);
  }
  for (const line of all(".curve polyline")) part("curve", styleOf(line).stroke, behind(line.closest(".card")));
  for (const row of all("#rows tr[aria-selected='true']")) {
    part("chosen row", styleOf(row).boxShadow.match(/rgba?\\([^)]*\\)/)[0], behind(row));
  }
  for (const wave of all(".sound canvas")) {
    const { data } = wave.getContext("2d").getImageData(0, 0, wave.width, wave.height);
    const counts = new Map();
    for (let i = 0; i < data.length; i += 4) {
      const color = `rgb(${data[i]} ${data[i + 1]} ${data[i + 2]})`;
      if (data[i + 3] === 255) counts.set(color, (counts.get(color) ?? 0) + 1);
    }
    if (!counts.size) continue;  // its audio is not there yet
    const [[most]] = [...counts].sort(([, a], [, b]) => b - a);
    part("waveform", most, behind(wave));
  }
  return { num, numOfParts, bad };
})()"""
"""Texts and placeholders below 4.5 to 1 (3 to 1 where they are large), and other parts below 3 to 1."""
DRAWN = """(() => {
  const wave = document.querySelector(".sound canvas");
  const pixels = wave?.getContext("2d").getImageData(0, 0, wave.width, wave.height).data;
  return pixels?.some((value) => value > 0) ?? false;
})()"""
"""Whether the waveform is drawn."""
READY = "document.body?.dataset.ready === 'true'"
SELECTED = "document.querySelector('#rows [aria-selected=\"true\"] small').textContent.split(' ')[0]"


def press(browser: Browser, *keys: str) -> None:
    codes = {"Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "ArrowRight": 39, "ArrowLeft": 37}
    for key in keys:
        if key in codes:
            event = {"key": key, "windowsVirtualKeyCode": codes[key]}
            browser._ask("Input.dispatchKeyEvent", {"type": "rawKeyDown", **event})
            browser._ask("Input.dispatchKeyEvent", {"type": "keyUp", **event})
        else:
            browser.press(key)


def type_text(browser: Browser, text: str) -> None:
    browser._ask("Input.insertText", {"text": text})


def set_latency(browser: Browser, milliseconds: int) -> None:
    """Let every request take longer, as over a tunnel."""
    conditions = {"offline": False, "latency": milliseconds, "downloadThroughput": -1, "uploadThroughput": -1}
    browser._ask("Network.emulateNetworkConditions", conditions)


def settle(browser: Browser) -> None:
    """Wait until nothing was answered for a while."""
    num = -1
    while (now := browser.evaluate("performance.getEntriesByType('resource').length")) != num:
        num = now
        time.sleep(0.5)
