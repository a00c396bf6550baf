/** Two statistics at the sides of a matrix: how spread each row is, how much each key receives. */

import { GAP, LETTER, tick } from "./frame.js";
import { roundUp } from "./scales.js";

/** The grey of the figures' margins, a little darker: 3.7 to 1 on white, 4.9 to 1 on dark. */
const SIDES = "#7c8794";

/** Where a scale ends at least, so that nothing is made of rounding. */
const FLAT = 0.01;

/** @typedef {import("./colours.js").Ramp} Ramp */
/** @typedef {import("./painter.js").Painter} Painter */
/** @typedef {import("./frame.js").Sheet} Sheet */
/** @typedef {import("./frame.js").Span} Span */

/**
 * Entropy of the rows that are seen, in nats, on the right of the matrix.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {Float32Array | null} entropy (t), null while it is computed
 * @param {Ramp} colours
 */
export function paintEntropy(painter, sheet, span, entropy, colours) {
  const { x, y, w, h, side } = sheet;
  const left = x + w + GAP;
  const quiet = { fill: colours.quiet, size: LETTER - 1 };
  const title = side > 50 ? ["entropy", "in nats"] : ["entropy"];
  title.forEach((line, n) => painter.text(left, y - 8 - 13 * (title.length - 1 - n), line, quiet));
  if (!entropy) return painter.text(left, y + h / 2, "…", quiet);
  const bars = steps(entropy, span.r0, span.r1, h);
  const end = roundUp(Math.max(...bars.levels, FLAT));
  gridline(painter, colours, [[left + side, y], [left + side, y + h]]);
  bars.levels.forEach((level, n) => {
    const [from, to] = [bars.edges[n], bars.edges[n + 1]];
    painter.rect(left, y + from, Math.max(0, (level / end) * side), thick(to - from), {
      fill: SIDES,
    });
  });
  painter.line([[left - 0.5, y], [left - 0.5, y + h]], { stroke: colours.frame });
  painter.text(left + side, y + h + 10, tick(end), { ...quiet, align: "right" });
  painter.text(left, y + h + 10, "0", quiet);
}

/**
 * Column sums of the keys that are seen, below the matrix; a hidden sink does not set the scale.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {Float32Array | null} received (s)
 * @param {Ramp} colours
 * @param {boolean} hidden whether the first key is left out
 */
export function paintReceived(painter, sheet, span, received, colours, hidden) {
  const { x, y, w, h, below } = sheet;
  const top = y + h + GAP;
  const quiet = { fill: colours.quiet, size: LETTER - 1 };
  painter.text(x - 7, top + below / 2, "received", { ...quiet, align: "right" });
  if (!received) return painter.text(x + w / 2, top + below / 2, "…", quiet);
  const from = hidden ? Math.max(1, span.c0) : span.c0;
  const start = ((from - span.c0) / (span.c1 - span.c0)) * w;
  if (from >= span.c1) return;
  const bars = steps(received, from, span.c1, w - start);
  const end = roundUp(Math.max(...bars.levels, FLAT));
  gridline(painter, colours, [[x, top + below], [x + w, top + below]]);
  bars.levels.forEach((level, n) => {
    const [a, b] = [bars.edges[n], bars.edges[n + 1]];
    painter.rect(x + start + a, top, thick(b - a), Math.max(0, (level / end) * below), {
      fill: SIDES,
    });
  });
  painter.line([[x, top - 0.5], [x + w, top - 0.5]], { stroke: colours.frame });
  painter.text(x - 7, top + below, tick(end), { ...quiet, align: "right" });
}

/** @param {Painter} painter @param {Ramp} colours @param {number[][]} points */
function gridline(painter, colours, points) {
  painter.line(points, { stroke: colours.frame, width: 0.7, dash: [2, 3] });
}

/** @param {number} size */
function thick(size) {
  return size >= 6 ? size - 1.5 : size;
}

/**
 * Bars along a side: one for each step, or the mean of the steps that share a pixel and a half.
 * @param {Float32Array} values
 * @param {number} from
 * @param {number} to
 * @param {number} length
 * @returns {{levels: number[], edges: number[]}}
 */
export function steps(values, from, to, length) {
  const [first, last] = [Math.floor(from), Math.min(values.length, Math.ceil(to))];
  const n = last - first;
  const count = Math.max(1, Math.min(n, Math.floor(length / 1.5)));
  const unit = length / (to - from);
  const levels = [];
  const edges = [];
  for (let cell = 0; cell <= count; cell++) {
    const start = first + Math.ceil((cell * n) / count);
    edges.push(Math.min(length, Math.max(0, (start - from) * unit)));
    if (cell === count) break;
    const stop = first + Math.ceil(((cell + 1) * n) / count);
    let sum = 0;
    for (let i = start; i < stop; i++) sum += Number.isFinite(values[i]) ? values[i] : 0;
    levels.push(sum / Math.max(1, stop - start));
  }
  return { levels, edges };
}
