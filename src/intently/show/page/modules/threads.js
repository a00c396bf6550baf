/** Threads from a word to those that it looks at, or that look at it: as wide as the weights, under the words. */

import { canvasPainter } from "./painter.js";
import { paintsItself } from "./snapshot.js";
import { element } from "./words.js";

/** @typedef {{from: HTMLElement, to: HTMLElement, share: number}} Thread share: of the scale of the weights */
/** @typedef {import("./painter.js").Painter} Painter */

const WIDEST = 6;
/** How far the thread between two words of one line hangs down, in pixels. */
const SAG = { least: 6, most: 20, slope: 0.08 };
const POINTS = 24;

/** A canvas under the words of some panels. @param {HTMLElement} panels */
export function threadsUnder(panels) {
  const canvas = element("canvas", { class: "threads", "aria-hidden": "true" });
  /** @type {Thread[]} */
  let threads = [];
  let strength = 1;

  function draw() {
    const { clientWidth: width, clientHeight: height } = panels;
    const sharp = Math.min(devicePixelRatio || 1, 2);
    canvas.width = threads.length ? width * sharp : 0;
    canvas.height = threads.length ? height * sharp : 0;
    const context = canvas.getContext("2d");
    if (!context || !canvas.width || !canvas.height) return;
    context.scale(sharp, sharp);
    paint(canvasPainter(context), 0, 0);
  }

  /** @param {Painter} painter @param {number} x @param {number} y */
  function paint(painter, x, y) {
    const { left, top } = panels.getBoundingClientRect();
    const colour = getComputedStyle(canvas).color.match(/[\d.]+/g)?.slice(0, 3).join(", ");
    for (const { from, to, share } of threads) {
      const alpha = strength * (0.15 + 0.6 * share);
      const points = hung(boxOf(from), boxOf(to)).map(([right, down]) => [right - left + x, down - top + y]);
      painter.line(points, { stroke: `rgba(${colour}, ${alpha.toFixed(3)})`, width: Math.max(0.8, WIDEST * share) });
    }
  }

  new ResizeObserver(draw).observe(panels);
  paintsItself(canvas, (painter, { x, y }) => paint(painter, x, y));
  return {
    root: canvas,
    draw,
    /** @param {Thread[]} next @param {number} [how] strongly they are drawn */
    show(next, how = 1) {
      threads = [...next].sort((a, b) => a.share - b.share);
      strength = how;
      draw();
    },
  };
}

/** @param {HTMLElement} word */
function boxOf(word) {
  return word.getClientRects()[0] ?? word.getBoundingClientRect();
}

/**
 * Points of a thread: level words hang it below their line, others hold it between their lines.
 * @param {DOMRect} from
 * @param {DOMRect} to
 */
function hung(from, to) {
  const [x0, x3] = [(from.left + from.right) / 2, (to.left + to.right) / 2];
  const level = Math.abs(from.top - to.top) < from.height / 2;
  const falls = from.top < to.top;
  const sag = Math.min(SAG.most, SAG.least + SAG.slope * Math.abs(x3 - x0));
  const y0 = level || falls ? from.bottom : from.top;
  const y3 = level || !falls ? to.bottom : to.top;
  const [y1, y2] = level ? [y0 + (4 / 3) * sag, y3 + (4 / 3) * sag] : [(y0 + y3) / 2, (y0 + y3) / 2];
  const [x1, x2] = level ? [x0 + (x3 - x0) / 8, x3 - (x3 - x0) / 8] : [x0, x3];
  return Array.from({ length: POINTS + 1 }, (_, n) => {
    const u = n / POINTS;
    const [a, b, c, d] = [(1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u * u * (1 - u), u ** 3];
    return [a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3];
  });
}
