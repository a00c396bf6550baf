/** What lines leave out: weight on words that are not drawn, as dashed stubs with their number. */

import { LETTER, textWidth } from "./frame.js";
import { digitsOf, format } from "./words.js";

/** How far a stub goes aside and down, away from lines that run level, in pixels. */
const STUB = { aside: 30, down: 9 };
const SLIGHTEST = 0.005;
const BOLDER = 1.1;

/** @typedef {{i: number, j: number, w: number, share: number}} Line */
/** @typedef {{query: Float32Array, key: {token: number, rest: number} | null, word: string}} Rest */

/**
 * What each of these queries weighs on words that get no line.
 * @param {import("./attention.js").Head} head
 * @param {number} first
 * @param {number} count
 * @param {Line[]} lines
 */
export async function restOf(head, first, count, lines) {
  await head.settled;
  const means = await head.pooled(first, first + count, 0, head.s, count, 1);
  const rest = means.map((mean) => mean * head.s);
  for (const { i, w } of lines) rest[i - first] -= w;
  return rest.map((w) => Math.max(0, w));
}

/**
 * The stubs that are drawn: of every query, or of the word that is chosen, which has its number.
 * @param {Rest} rest
 * @param {{looks: string, token: number} | null} chosen
 * @param {[number, number]} from the first query and the first key
 * @param {number} error
 * @returns {{side: "query" | "key", at: number, weight: number, text: string}[]}
 */
export function stubsOf({ query, key, word }, chosen, from, error) {
  const least = Math.max(SLIGHTEST, 10 ** -digitsOf(error));
  const textOf = (/** @type {number} */ weight) => `+${format(weight, error)} ${word}`;
  if (chosen?.looks === "from") {
    if (!key || key.token !== chosen.token || key.rest < least) return [];
    return [{ side: "key", at: key.token - from[1], weight: key.rest, text: textOf(key.rest) }];
  }
  /** @type {ReturnType<typeof stubsOf>} */
  const found = [];
  query.forEach((weight, at) => {
    if (weight < least || (chosen && chosen.token - from[0] !== at)) return;
    found.push({ side: "query", at, weight, text: chosen ? textOf(weight) : "" });
  });
  return found;
}

/**
 * Draw stubs between two columns.
 * @param {import("./painter.js").Painter} painter
 * @param {ReturnType<typeof stubsOf>} stubs
 * @param {{x: number, y: number, width: number, step: number, widest: number}} sheet
 * @param {{line: string, ink: string, paper: string}} colours
 */
export function paintStubs(painter, stubs, { x, y, width, step, widest }, colours) {
  for (const { side, at, weight, text } of stubs) {
    const level = y + (at + 0.5) * step;
    const [start, end] = side === "query" ? [x, x + STUB.aside] : [x + width, x + width - STUB.aside];
    const how = { stroke: colours.line, width: Math.max(1, widest * Math.min(1, weight)), dash: [3, 3] };
    const under = level + STUB.down;
    painter.line([[start, level], [end, under]], how);
    if (!text) continue;
    const wide = textWidth(text) * BOLDER;
    const left = side === "query" ? end + 4 : end - 4 - wide;
    painter.rect(left - 2, under - 8, wide + 4, 16, { fill: colours.paper });
    painter.text(left, under, text, { fill: colours.ink, size: LETTER, weight: 600 });
  }
}
