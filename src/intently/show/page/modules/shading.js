/** Weights as pixels: shades of the scale, what is masked, and what is no number. */

import { rgbOf } from "./colours.js";
import { shareOf } from "./scales.js";

/** @typedef {import("./colours.js").Ramp} Ramp */
/** @typedef {import("./painter.js").Pixels} Pixels */
/** @typedef {import("./scales.js").Scale} Scale */
/** Cells of the weights of rows r0 … r1 − 1 and columns c0 … c1 − 1; masked cells have 1.
 * @typedef {{r0: number, r1: number, c0: number, c1: number, h: number, w: number,
 *   values: Float32Array, masked: Uint8Array | null, how: string, relative?: boolean}} Cells
 * how: "mean" or "max" of the weights of a cell; relative: what weights they are is not known */

/** What a cell shows that holds one weight. */
export const SINGLE_WEIGHT = "weight";

/** What a cell shows, in words. @param {Cells} cells */
export function unitOf({ r0, r1, c0, c1, h, w, how }) {
  const [down, across] = [(r1 - r0) / h, (c1 - c0) / w];
  if (down <= 1 && across <= 1) return SINGLE_WEIGHT;
  const sizes = [down, across].map((n) => String(Number(n.toPrecision(n < 10 ? 2 : 3))));
  return `${how === "max" ? "largest" : "mean"} of ${sizes.join(" × ")} weights`;
}

/** @param {Cells} cells @param {Scale} scale @param {Ramp} colours @returns {Pixels} */
export function shaded({ values, masked, h, w }, scale, colours) {
  const data = new Uint8ClampedArray(4 * h * w);
  const [hole, hatch] = [colours.hole, colours.hatch].map(rgbOf);
  const { rgb } = colours;
  for (let at = 0; at < values.length; at++) {
    const weight = values[at];
    /** @type {ArrayLike<number>} */
    let from = rgb;
    let start = 0;
    if (masked?.[at]) from = hole;
    else if (!Number.isFinite(weight)) from = hatch;
    else start = 3 * Math.round(255 * shareOf(scale, weight));
    data[4 * at] = from[start];
    data[4 * at + 1] = from[start + 1];
    data[4 * at + 2] = from[start + 2];
    data[4 * at + 3] = 255;
  }
  return { width: w, height: h, data };
}

/**
 * The stored overview of heads as weights: byte = 255·√(weight / largest).
 * @param {import("./data.js").Numbers} bytes
 * @param {{h: number, w: number, heads: number[], largest: (number | null)[]}} shape
 * @returns {Float32Array} the mean over the heads
 */
export function overviewWeights(bytes, { h, w, heads, largest }) {
  const found = new Float32Array(h * w);
  for (const head of heads) {
    const unit = (largest[head] ?? 0) / 255 ** 2 / heads.length;
    for (let i = 0; i < found.length; i++) found[i] += bytes[head * h * w + i] ** 2 * unit;
  }
  return found;
}
