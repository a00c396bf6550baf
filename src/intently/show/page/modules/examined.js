/** The page of an examination: for each mistake, the weights that were expected beside those found. */

import { dressing, inkOn, nextTheme, ramp } from "./colours.js";
import { sized } from "./painter.js";
import { ARROWS } from "./keys.js";
import { scaleOf } from "./scales.js";
import { announce, format } from "./words.js";
import { layout, paintNames, paintNumbers, paintRules, widestOf } from "./frame.js";
import { shaded } from "./shading.js";
import { paintCrosshair, paintPlace } from "./crosshair.js";

/** @typedef {import("./frame.js").Sheet} Sheet */
/** @typedef {{i: number, j: number}} Place */
/**
 * A counterexample: weights by row, the positions of its queries and keys, and the cell that tells.
 * @typedef {{expected: number[][], found: number[][], queries: number[], keys: number[], cell: number[]}} Example
 */

const ERROR = 1e-3;
const HIGHEST = 420;

/** Room for a line above the names of the keys. */
const LINE = 8;

/**
 * Draw every counterexample of the page, and follow the pointer and the arrow keys.
 * @param {HTMLElement} root
 * @param {{examples: (Example | null)[]}} page
 */
export function examined(root, page) {
  page.examples.forEach((example, n) => {
    const figure = root.querySelector(`[data-example="${n}"]`);
    if (example && figure) pair(/** @type {HTMLElement} */ (figure), example);
  });
  let theme = "auto";
  const dress = dressing(root, () => theme);
  root.querySelector("[data-do=theme]")?.addEventListener("click", () => {
    theme = nextTheme(theme);
    dress();
  });
}

/** Two matrices on one scale, read together. @param {HTMLElement} figure @param {Example} example */
function pair(figure, example) {
  const { queries, keys, cell } = example;
  const [t, s] = [queries.length, keys.length];
  const names = { rows: queries.map(String), columns: keys.map(String), writes: null };
  const span = { r0: 0, r1: t, c0: 0, c1: s };
  const told = { i: queries.indexOf(cell[0]), j: keys.indexOf(cell[1]) };
  const values = [example.expected, example.found].map((rows) => Float32Array.from(rows.flat()));
  const scale = scaleOf(Float32Array.from([...values[0], ...values[1]]), false, ERROR);
  const canvases = [...figure.querySelectorAll("canvas")];
  const reading = figure.querySelector("[data-reading]");
  const first = reading?.textContent ?? "";
  /** @type {Place | null} */
  let pointed = null;
  /** @type {Sheet | null} */
  let sheet = null;

  function draw() {
    const room = canvases[0].parentElement?.clientWidth ?? 0;
    if (!room) return;
    const wide = { rows: widestOf(names.rows, null), columns: widestOf(names.columns) + LINE };
    const made = layout(room, HIGHEST, t, s, wide);
    sheet = { ...made, width: Math.ceil(made.x + made.w + 2), height: Math.ceil(made.y + made.h + 2) };
    canvases.forEach((canvas, n) => paint(canvas, values[n]));
  }

  /** @param {HTMLCanvasElement} canvas @param {Float32Array} weights */
  function paint(canvas, weights) {
    if (!sheet) return;
    const painter = sized(canvas, sheet.width, sheet.height);
    const colours = ramp(figure);
    const { x, y, w, h } = sheet;
    const masked = Uint8Array.from(weights, (weight) => (weight === 0 ? 1 : 0));
    const cells = { ...span, h: t, w: s, values: weights, masked, how: "mean" };
    painter.image(shaded(cells, scale, colours), x, y, w, h);
    paintRules(painter, sheet, span, colours);
    paintNumbers(painter, sheet, span, cells, (share) => inkOn(figure, share), scale, ERROR);
    paintNames(painter, sheet, span, names, colours);
    const [left, top] = [x + (told.j * w) / s, y + (told.i * h) / t];
    painter.rect(left, top, w / s, h / t, { stroke: colours.accent, width: 2.5 });
    if (!pointed) return;
    paintCrosshair(painter, sheet, span, pointed, colours, true);
    paintPlace(painter, sheet, span, pointed, names, colours);
  }

  /** @param {Place | null} next */
  function point(next) {
    if (next?.i === pointed?.i && next?.j === pointed?.j) return;
    pointed = next;
    canvases.forEach((canvas, n) => paint(canvas, values[n]));
    if (!reading) return;
    reading.textContent = first;
    if (!next) return;
    const [right, wrong] = values.map((weights) => format(weights[next.i * s + next.j], ERROR));
    const said = `query ${queries[next.i]} → key ${keys[next.j]}: expected ${right}, found ${wrong}`;
    reading.textContent = said;
    announce(figure, said);
  }

  for (const canvas of canvases) {
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      if (!sheet) return;
      const i = Math.floor(((offsetY - sheet.y) * t) / sheet.h);
      const j = Math.floor(((offsetX - sheet.x) * s) / sheet.w);
      point(i >= 0 && j >= 0 && i < t && j < s ? { i, j } : null);
    });
    canvas.addEventListener("pointerleave", () => point(null));
    canvas.addEventListener("blur", () => point(null));
    canvas.addEventListener("keydown", (event) => {
      const step = ARROWS[event.key];
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const { i, j } = pointed ?? told;
      const inside = (/** @type {number} */ n, /** @type {number} */ size) => Math.max(0, Math.min(size - 1, n));
      point(pointed ? { i: inside(i + step[0], t), j: inside(j + step[1], s) } : told);
    });
  }
  figure.closest(".intently")?.addEventListener("colours", draw);
  new ResizeObserver(draw).observe(figure);
}
