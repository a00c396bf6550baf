/** What stands on the page, painted again as a picture: text, grounds, outlines, and what paints itself. */

import { ramp, rampPixels } from "./colours.js";

/** @typedef {import("./painter.js").Painter} Painter */
/** @typedef {(painter: Painter, box: DOMRect) => void} Paint where the box is in the picture */

const EDGE = 20;

/** @type {WeakMap<Element, Paint>} */
const OWN = new WeakMap();

/**
 * Say how an element paints itself into a saved picture; what is inside it is not looked at.
 * @param {Element} element
 * @param {Paint} paint
 */
export function paintsItself(element, paint) {
  OWN.set(element, paint);
}

/**
 * A part of the page as a picture just large enough for what is seen in it; buttons are left out,
 * and what they are for.
 * @param {HTMLElement} part
 * @returns {{width: number, height: number, paint: (painter: Painter) => void}}
 */
export function seenOf(part) {
  const { left, top } = part.getBoundingClientRect();
  const { paper, frame } = ramp(part);
  /** @type {((painter: Painter) => void)[]} */
  const steps = [];
  const size = { width: 0, height: 0 };

  /** @param {DOMRect} at @returns {DOMRect} where it stands in the picture */
  function placed(at) {
    size.width = Math.max(size.width, at.right - left);
    size.height = Math.max(size.height, at.bottom - top);
    return new DOMRect(at.left - left + EDGE, at.top - top + EDGE, at.width, at.height);
  }

  /** @param {Element} element */
  function look(element) {
    if (element.matches(".buttons, .how") || !element.checkVisibility()) return;
    const own = OWN.get(element);
    const box = element.getBoundingClientRect();
    if (own) {
      const place = placed(box);
      steps.push((painter) => own(painter, place));
      return;
    }
    ground(element, box);
    const style = getComputedStyle(element);
    const before = steps.length;
    for (const child of element.childNodes) {
      if (child instanceof Element) look(child);
      else if (child instanceof Text) write(child, style);
    }
    if (style.overflowX !== "hidden" || !(element instanceof HTMLElement)) return;
    const inner = steps.splice(before);
    const { x, y, width, height } = placed(box);
    steps.push((painter) => painter.clip(x, y, width, height, () => inner.forEach((step) => step(painter))));
  }

  /** @param {Element} element @param {DOMRect} box */
  function ground(element, box) {
    const style = getComputedStyle(element);
    const fill = clear(style.backgroundColor) ? undefined : style.backgroundColor;
    const outlined = style.outlineStyle !== "none" ? style.outlineColor : undefined;
    if (element.matches(".ramp")) {
      const { x, y, width, height } = placed(box);
      steps.push((painter) => painter.image(rampPixels(ramp(element)), x, y, width, height));
      steps.push((painter) => painter.rect(x, y, width, height, { stroke: frame, width: 1 }));
    } else if (element instanceof HTMLCanvasElement && element.width && element.height) {
      const { x, y, width, height } = placed(box);
      const pixels = element.getContext("2d")?.getImageData(0, 0, element.width, element.height);
      if (!pixels) return;
      steps.push((painter) => {
        painter.image(pixels, x, y, width, height);
        painter.rect(x, y, width, height, { stroke: frame, width: 1 });
      });
    } else if (fill || outlined) {
      const { x, y, width, height } = placed(box);
      steps.push((painter) => painter.rect(x, y, width, height, { fill, stroke: outlined, width: 2 }));
    }
    const bar = Number.parseFloat(style.borderLeftWidth);
    if (bar >= 2 && style.borderLeftStyle === "solid") {
      const { x, y, height } = placed(box);
      steps.push((painter) => painter.rect(x, y, bar, height, { fill: style.borderLeftColor }));
    }
  }

  /**
   * Write a text line by line, as the browser broke it.
   * @param {Text} text
   * @param {CSSStyleDeclaration} style
   */
  function write(text, style) {
    const range = document.createRange();
    /** @type {{words: string, at: DOMRect}[]} */
    const lines = [];
    for (const { 0: word, index } of text.data.matchAll(/\S+\s*/gu)) {
      range.setStart(text, index);
      range.setEnd(text, index + word.trimEnd().length);
      const at = range.getBoundingClientRect();
      const last = lines.at(-1);
      if (last && Math.abs(last.at.top - at.top) < 2) last.words += word;
      else lines.push({ words: word, at });
      placed(at);
    }
    const how = { fill: style.color, size: Number.parseFloat(style.fontSize), weight: Number(style.fontWeight) };
    for (const { words, at } of lines) {
      const { x, y, height } = placed(at);
      steps.push((painter) => painter.text(x, y + height / 2, words.trimEnd(), how));
    }
  }

  look(part);
  const [width, height] = [Math.ceil(size.width) + 2 * EDGE, Math.ceil(size.height) + 2 * EDGE];
  return {
    width,
    height,
    paint(painter) {
      painter.rect(0, 0, width, height, { fill: paper });
      for (const step of steps) step(painter);
    },
  };
}

/** @param {string} colour */
function clear(colour) {
  return colour === "transparent" || /,\s*0\)$/.test(colour) || /\/\s*0\)$/.test(colour);
}
