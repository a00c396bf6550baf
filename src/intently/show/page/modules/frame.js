/** Where the matrix stands on its sheet, and the names, numbers and rules around it. */

import { rampPixels } from "./colours.js";
import { TYPEFACE, hatch } from "./painter.js";
import { shareOf, ticksOf } from "./scales.js";
import { digitsOf, format, named, rowName, superscript } from "./words.js";

/** @typedef {import("./colours.js").Ramp} Ramp */
/** @typedef {import("./painter.js").Painter} Painter */
/** @typedef {import("./scales.js").Scale} Scale */
/** The part that is seen, in rows and columns; may be fractional. @typedef {{r0: number, r1: number, c0: number, c1: number}} Span */
/**
 * A sheet: the matrix at x, y of size w × h, entropy `side` wide on its right, received
 * attention `below` it, and the whole of it width × height.
 * @typedef {{x: number, y: number, w: number, h: number, side: number, below: number,
 *   width: number, height: number}} Sheet
 */
/** @typedef {import("./data.js").Names} Names */

export const LETTER = 11.5;
export const GAP = 10;
const LETTERS = 14;
const LEAST = 6;
export const TITLE = 16;

/** Room for "received", which stands under the names of the rows. */
const NAMES = 40;
const CELL = 88;
const SHORTEST = 120;
const BAR = { width: 132, height: 9, top: 22, foot: 20 };

/** Cells this wide hold a weight of two digits, or one of any size; slight ones are left out. */
const LEGIBLE = 28;
const ROOMY = 54;
const SLIGHT = 0.005;

const APARTS = [1, 2, 5];

/** Between two numbers of a scale, in pixels. */
const TICKS_APART = 8;

/**
 * Lay out a t × s matrix in a width and a height, with square cells where that fits.
 * @param {number} width
 * @param {number} room
 * @param {number} t
 * @param {number} s
 * @param {{rows: number, columns: number}} wide the widest labels
 * @returns {Sheet}
 */
export function layout(width, room, t, s, wide) {
  const narrow = width < 480;
  const side = narrow ? 40 : 64;
  const below = narrow ? 34 : 48;
  const x = TITLE + Math.max(NAMES, Math.min(wide.rows, narrow ? 64 : 180)) + 8;
  const y = TITLE + Math.min(wide.columns, narrow ? 64 : 110) + 6;
  const mostWide = Math.max(SHORTEST, width - x - GAP - side - 6);
  const mostHigh = Math.max(SHORTEST, room - y - GAP - below - BAR.top - BAR.height - BAR.foot);
  const cell = Math.min(CELL, mostWide / s, mostHigh / t);
  const w = Math.min(mostWide, Math.max(s * cell, SHORTEST));
  const h = Math.min(mostHigh, Math.max(t * cell, SHORTEST));
  const height = y + h + GAP + below + BAR.top + BAR.height + BAR.foot;
  return { x, y, w, h, side, below, width: x + w + GAP + side + 6, height };
}

/** @type {CanvasRenderingContext2D | null} */
let measure = null;

/**
 * How wide names are that a sheet must hold; long ones are cut.
 * @param {string[]} names
 * @param {string[] | null} [writes]
 */
export function widestOf(names, writes) {
  const step = Math.ceil(names.length / 1000);
  let widest = 8;
  for (let n = 0; n < names.length; n += step) {
    widest = Math.max(widest, textWidth(rowName(names[n], writes?.[n], LETTERS)));
  }
  return Math.ceil(widest);
}

/** @param {string} name */
function shortName(name) {
  return named(name, LETTERS);
}

/**
 * A name cut to a width; what a row writes is left out where it has no room.
 * @param {string} name
 * @param {number} room
 * @param {string} [writes]
 */
export function fitted(name, room, writes) {
  for (let letters = LETTERS; writes && letters >= LEAST; letters--) {
    const both = rowName(name, writes, letters);
    if (textWidth(both) <= room) return both;
  }
  for (let letters = LETTERS; ; letters--) {
    const cut = named(name, letters);
    if (letters <= 3 || textWidth(cut) <= room) return cut;
  }
}

/** @param {string} text */
export function textWidth(text) {
  const context = (measure ??= document.createElement("canvas").getContext("2d"));
  if (!context) return 7 * text.length;
  context.font = `${LETTER}px ${TYPEFACE}`;
  return context.measureText(text).width;
}

/** How much room a sheet has for names. @param {Sheet} sheet */
export function roomOf({ x, y }) {
  return { rows: x - TITLE - 6, columns: y - TITLE - 6 };
}

/**
 * Whether the names of the columns that are seen have room to lie; otherwise they stand.
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {Names} names
 */
export function lying({ w }, { c0, c1 }, names) {
  const wide = w / (c1 - c0);
  return wide >= 8 + widestOf(shown(c0, c1, wide).map((j) => names.columns[j]));
}

/**
 * Names along the rows and columns that are seen, as many as there is room for.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {Names} names
 * @param {Ramp} colours
 */
export function paintNames(painter, sheet, span, names, colours) {
  const { x, y, w, h } = sheet;
  const [high, wide] = [h / (span.r1 - span.r0), w / (span.c1 - span.c0)];
  const how = { fill: colours.ink, size: LETTER };
  const room = roomOf(sheet);
  for (const i of shown(span.r0, span.r1, high)) {
    const at = y + (i + 0.5 - span.r0) * high;
    painter.text(x - 7, at, fitted(names.rows[i], room.rows, names.writes?.[i]), { ...how, align: "right" });
  }
  const lie = lying(sheet, span, names);
  for (const j of shown(span.c0, span.c1, wide)) {
    const at = x + (j + 0.5 - span.c0) * wide;
    if (lie) painter.text(at, y - 11, shortName(names.columns[j]), { ...how, align: "center" });
    else painter.text(at, y - 6, fitted(names.columns[j], room.columns), { ...how, turn: -90 });
  }
  const quiet = { fill: colours.quiet, size: LETTER };
  painter.text(x, 7, "keys →", quiet);
  painter.text(7, y, "← queries", { ...quiet, turn: -90, align: "right" });
}

/**
 * The steps whose names are shown: every one, or every 2nd, 5th, 10th, …, the same when moved.
 * @param {number} from
 * @param {number} to
 * @param {number} size pixels of a step
 * @returns {number[]}
 */
export function shown(from, to, size) {
  let every = 1;
  for (let n = 0; every * size < LETTER + 2; n++) every = APARTS[n % 3] * 10 ** Math.floor(n / 3);
  const found = [];
  for (let i = Math.ceil(Math.floor(from) / every) * every; i < to; i += every) {
    if (i + 0.5 >= from && i + 0.5 <= to) found.push(i);
  }
  return found;
}

/**
 * Rules between large cells, and the frame.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {Ramp} colours
 */
export function paintRules(painter, sheet, span, colours) {
  const { x, y, w, h } = sheet;
  const [high, wide] = [h / (span.r1 - span.r0), w / (span.c1 - span.c0)];
  if (Math.min(high, wide) >= 10) {
    painter.clip(x, y, w, h, () => {
      for (let i = Math.ceil(span.r0); i <= span.r1; i++) {
        const at = y + (i - span.r0) * high;
        painter.line([[x, at], [x + w, at]], { stroke: colours.paper, width: 1 });
      }
      for (let j = Math.ceil(span.c0); j <= span.c1; j++) {
        const at = x + (j - span.c0) * wide;
        painter.line([[at, y], [at, y + h]], { stroke: colours.paper, width: 1 });
      }
    });
  }
  painter.rect(x - 0.5, y - 0.5, w + 1, h + 1, { stroke: colours.frame });
}

/**
 * The weights themselves, where cells are large enough to hold them.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {import("./shading.js").Cells} cells one weight each
 * @param {(share: number) => string} ink
 * @param {Scale} scale
 * @param {number} error
 */
export function paintNumbers(painter, sheet, span, cells, ink, scale, error) {
  const { x, y, w, h } = sheet;
  const [high, wide] = [h / (span.r1 - span.r0), w / (span.c1 - span.c0)];
  if (wide < LEGIBLE || high < 16) return;
  const size = Math.min(12.5, wide / 2.8);
  const digits = Math.min(2, digitsOf(error));
  const slight = Math.max(SLIGHT, 10 ** -digitsOf(error));
  painter.clip(x, y, w, h, () => {
    for (let i = cells.r0; i < cells.r1; i++) {
      for (let j = cells.c0; j < cells.c1; j++) {
        const at = (i - cells.r0) * cells.w + (j - cells.c0);
        if (cells.masked?.[at]) continue;
        const weight = cells.values[at];
        const left = x + (j + 0.5 - span.c0) * wide;
        const top = y + (i + 0.5 - span.r0) * high;
        const fill = ink(shareOf(scale, weight));
        const text = wide >= ROOMY ? format(weight, error) : weight < slight ? "" : weight.toFixed(digits);
        if (text) painter.text(left, top, text, { fill, size, align: "center" });
      }
    }
  });
}

/**
 * The bar of colours with its numbers, and what a cell, a grey one and a hatched one mean.
 * @param {Painter} painter
 * @param {Sheet} sheet
 * @param {Scale} scale
 * @param {Ramp} colours
 * @param {{masked: boolean, hidden: boolean, preview: boolean, unit: string, range: string}} said
 *   a preview's weights are not known; `range` says what the scale was made for
 */
export function paintScale(painter, sheet, scale, colours, said) {
  const { x, y, h, below, w } = sheet;
  const top = y + h + GAP + below + BAR.top;
  const wide = Math.min(BAR.width, w);
  painter.image(rampPixels(colours), x, top, wide, BAR.height);
  painter.rect(x - 0.5, top - 0.5, wide + 1, BAR.height + 1, { stroke: colours.frame });
  const quiet = { fill: colours.quiet, size: LETTER - 1 };
  const [middle, under] = [top + BAR.height / 2, top + BAR.height + 10];
  for (const { text, left } of said.preview ? [] : placedTicks(scale, wide)) {
    painter.text(x + left, under, text, quiet);
  }
  let at = x + wide + 16;
  const unit = said.preview ? "preview" : said.unit;
  painter.text(at, middle, unit, quiet);
  if (said.range && !said.preview) painter.text(at, under, said.range, quiet);
  at += textWidth(unit) + 14;
  if (said.masked) {
    painter.rect(at, middle - 5, 14, 10, { fill: colours.hole, stroke: colours.frame });
    painter.text(at + 20, middle, "masked", quiet);
    at += 74;
  }
  if (said.hidden) {
    hatch(painter, at, middle - 5, 14, 10, colours.hole, colours.hatch);
    painter.text(at + 20, middle, "first key", quiet);
  }
}

/**
 * The numbers of a scale and where each begins: the ends, and between them those with room.
 * @param {Scale} scale
 * @param {number} wide
 */
export function placedTicks(scale, wide) {
  const ticks = ticksOf(scale).map(({ value, share }, n, { length }) => {
    const last = n === length - 1;
    const text = last && scale.beyond ? `≥ ${tick(value)}` : tick(value);
    const size = textWidth(text);
    return { text, left: n === 0 ? 0 : last ? wide - size : share * wide - size / 2, size };
  });
  const end = ticks[ticks.length - 1];
  end.left = Math.max(end.left, ticks[0].size + TICKS_APART);
  const placed = [ticks[0]];
  for (const one of ticks.slice(1, -1)) {
    const { left, size } = placed[placed.length - 1];
    if (one.left >= left + size + TICKS_APART && one.left + one.size + TICKS_APART <= end.left) placed.push(one);
  }
  return [...placed, end];
}

/** A number of a scale: 0.25, 10⁻⁴, 5·10⁻⁴. @param {number} value */
export function tick(value) {
  if (value === 0 || value >= 0.001) return String(Number(value.toPrecision(3)));
  const [digits, power] = value.toExponential(1).split("e");
  const times = Number(digits) === 1 ? "" : `${Number(digits)}·`;
  return `${times}10${superscript(Number(power))}`;
}
