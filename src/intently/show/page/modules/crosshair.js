/** The crosshair over a matrix, with the names of its query and its key. */

import { LETTER, TITLE, fitted, lying, roomOf, shown, textWidth } from "./frame.js";
import { named } from "./words.js";

/** Half the height of a name that stands out. */
const HALF = 8.5;

/** @typedef {import("./frame.js").Sheet} Sheet */
/** @typedef {import("./frame.js").Span} Span */
/** @typedef {import("./painter.js").Painter} Painter */

/**
 * Mark the row, the column and the weight where they cross.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {{i: number, j: number}} place
 * @param {{ink: string, paper: string}} colours
 * @param {boolean} strong whether it is the place that is read
 */
export function paintCrosshair(painter, sheet, span, { i, j }, colours, strong) {
  const { x, y, w, h } = sheet;
  const [high, wide] = [h / (span.r1 - span.r0), w / (span.c1 - span.c0)];
  const [top, left] = [y + (i - span.r0) * high, x + (j - span.c0) * wide];
  const size = { h: Math.max(high, 5), w: Math.max(wide, 5) };
  const [cellTop, cellLeft] = [top + high / 2 - size.h / 2, left + wide / 2 - size.w / 2];
  painter.clip(x, y, w, h, () => {
    for (const [stroke, width] of /** @type {[string, number][]} */ ([[colours.paper, 2.5], [colours.ink, 1]])) {
      const how = { stroke, width: strong ? width : width * 0.7, dash: strong ? [] : [3, 3] };
      const [middle, centre] = [top + high / 2, left + wide / 2];
      for (const [a, b] of high >= 5 ? [[top, top], [top + high, top + high]] : [[middle, middle]]) {
        painter.line([[x, a], [cellLeft, b]], how);
        painter.line([[cellLeft + size.w, a], [x + w, b]], how);
      }
      for (const a of wide >= 5 ? [left, left + wide] : [centre]) {
        painter.line([[a, y], [a, cellTop]], how);
        painter.line([[a, cellTop + size.h], [a, y + h]], how);
      }
    }
    painter.rect(cellLeft, cellTop, size.w, size.h, { stroke: colours.paper, width: 4 });
    painter.rect(cellLeft, cellTop, size.w, size.h, { stroke: colours.ink, width: 2 });
  });
}

/**
 * The names of the row and the column, over those that stand there.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {{i: number, j: number}} place
 * @param {import("./frame.js").Names} names
 * @param {{ink: string, paper: string}} colours
 */
export function paintPlace(painter, sheet, span, { i, j }, names, colours) {
  const { x, y, w, h } = sheet;
  const row = y + ((i + 0.5 - span.r0) * h) / (span.r1 - span.r0);
  const column = x + ((j + 0.5 - span.c0) * w) / (span.c1 - span.c0);
  const room = roomOf(sheet);
  const steps = { rows: h / (span.r1 - span.r0), columns: w / (span.c1 - span.c0) };
  const [pill, on] = [{ fill: colours.ink }, { fill: colours.paper, size: LETTER }];
  if (row >= y && row <= y + h) {
    const query = fitted(names.rows[i], room.rows, names.writes?.[i]);
    const wide = textWidth(query);
    for (const at of covered(shown(span.r0, span.r1, steps.rows), i, steps.rows)) {
      painter.rect(TITLE, row + at - HALF, x - TITLE - 3, 2 * HALF, on);
    }
    painter.rect(x - wide - 13, row - HALF, wide + 10, 2 * HALF, pill);
    painter.text(x - 8, row, query, { ...on, align: "right" });
  }
  if (column < x || column > x + w) return;
  if (lying(sheet, span, names)) {
    const key = named(names.columns[j], 16);
    const wide = textWidth(key) + 10;
    const left = Math.max(2, Math.min(sheet.width - wide - 2, column - wide / 2));
    painter.rect(left, y - 3 - 2 * HALF, wide, 2 * HALF, pill);
    painter.text(left + wide / 2, y - 3 - HALF, key, { ...on, align: "center" });
  } else {
    const key = fitted(names.columns[j], room.columns);
    const high = textWidth(key);
    for (const at of covered(shown(span.c0, span.c1, steps.columns), j, steps.columns)) {
      painter.rect(column + at - HALF, TITLE, 2 * HALF, y - TITLE - 3, on);
    }
    painter.rect(column - HALF, y - high - 11, 2 * HALF, high + 8, pill);
    painter.text(column, y - 6, key, { ...on, turn: -90 });
  }
}

/**
 * How far those names stand from one that stands out, its own included, that it covers in part.
 * @param {number[]} names
 * @param {number} own
 * @param {number} step
 */
function covered(names, own, step) {
  return [0, ...names.map((n) => (n - own) * step).filter((far) => Math.abs(far) < HALF + LETTER / 2)];
}
