/**
 * A reading: one token, and what it looks at (a row of weights) or who looks at it (a column).
 * @typedef {import("./data.js").Page} Page
 * @typedef {import("./data.js").Side} Side
 * @typedef {import("./state.js").State} State
 * @typedef {{item: number, entry: number, heads: string, looks: "at" | "from", token: number, through?: number | null}} Place
 *   `through` is the other end of a stretch of tokens, whose weights are averaged
 * @typedef {{side: Side, units: string[], count: number, shift: number, produced: number,
 *   writes: string[] | null}} Words
 *   `units` are shown, row or column n of the matrix is unit n + shift and `writes` the nth of those
 * @typedef {{queries: Words, keys: Words, same: boolean}} Both
 */

import { namesOf } from "./data.js";
import { stackOf } from "./rollout.js";
import { rowName } from "./words.js";

/**
 * The words of both sides of an attention; `same` where queries and keys are one text.
 * @param {Page} page
 * @param {number} item
 * @param {number} entry
 * @returns {Both}
 */
export function bothSides(page, item, entry) {
  const { sides, entries } = page.meta.items[item];
  const { rows, columns, t, s, row_labels: told = null } = entries[entry];
  const names = namesOf(page.meta, item, entry);
  const keys = wordsOf(sides[columns], names.columns, s, 0);
  if (rows === columns) {
    const { writes } = names;
    return { queries: { ...keys, count: t, shift: Math.max(0, s - t), writes }, keys, same: true };
  }
  const queries = wordsOf(sides[rows], names.rows, t, null);
  if (told && told.length === t && sides[rows].kind === "text") {
    const produced = queries.produced - 1; // the row before a word writes it
    return { queries: { ...queries, units: told, shift: 0, produced }, keys, same: false };
  }
  return { queries, keys, same: false };
}

/**
 * What a word is called: a row of a decoder with the word that it writes.
 * @param {Words} words
 * @param {number} unit
 * @param {number} [limit]
 */
export function wordName({ units, shift, writes }, unit, limit) {
  return rowName(units[unit], writes?.[unit - shift], limit);
}

/**
 * @param {Side} side
 * @param {string[]} names of rows or columns
 * @param {number} count rows or columns of the matrix
 * @param {number | null} shift null: the last of them is the last word
 * @returns {Words}
 */
function wordsOf(side, names, count, shift) {
  const known = side.kind === "text" ? side.tokens : names;
  const units = [...known];
  while (units.length < count) units.push(String(units.length));
  const produced = side.kind === "text" ? (side.produced ?? Infinity) : Infinity;
  return { side, units, count, shift: shift ?? Math.max(0, known.length - count), produced, writes: null };
}

/**
 * The reading that the page shows, null where no token is chosen.
 * @param {State} state
 * @returns {Place | null}
 */
export function readingOf(state) {
  const { item, entry, heads } = state;
  const looks = state.looks === "from" ? "from" : "at";
  const token = looks === "at" ? state.row : state.column;
  return token === null ? null : { item, entry, heads, looks, token, through: state.through };
}

/** What is seen as a pin: the heads, and the token that is chosen. @param {State} state */
export function pinned(state) {
  const { item, entry, heads } = state;
  const reading = readingOf(state);
  return [item, entry, heads, ...(reading ? [reading.looks, reading.token] : [])].join(".");
}

/**
 * What of a layer can be seen: each head alone, the mean of all, and the rollout of the layers so far.
 * @param {import("./data.js").Entry[]} entries
 * @param {number} entry
 */
export function headChoices(entries, entry) {
  const count = entries[entry].heads;
  const each = Array.from({ length: count }, (_, n) => String(n));
  return [...each, ...(count > 1 ? ["mean"] : []), ...(stackOf(entries, entry) ? ["rollout"] : [])];
}

/**
 * A name for heads: "head 3", "mean of heads 1, 3", "mean of 8 heads".
 * @param {Page} page
 * @param {number} item
 * @param {number} entry
 * @param {string} heads
 */
export function headsName(page, item, entry, heads) {
  const count = page.meta.items[item].entries[entry].heads;
  if (heads === "rollout") return "rollout of the layers so far";
  if (heads === "mean") return count === 1 ? "head 0" : `mean of ${count} heads`;
  return heads.includes(",") ? `mean of heads ${heads.split(",").join(", ")}` : `head ${heads}`;
}

/**
 * The tokens of a stretch, from one end to the other.
 * @param {number} token
 * @param {number | null} [through]
 */
export function stretchOf(token, through = null) {
  const [first, last] = [Math.min(token, through ?? token), Math.max(token, through ?? token)];
  return Array.from({ length: last - first + 1 }, (_, n) => first + n);
}

/**
 * The weights of a reading, over the units of the other side: shifted ones have none (NaN).
 * @param {import("./attention.js").Head} head
 * @param {Both} both
 * @param {"at" | "from"} looks
 * @param {number} token
 * @param {number | null} [through] the other end of a stretch: the mean over its tokens
 * @returns {Promise<Float32Array>}
 */
export async function readingWeights(head, both, looks, token, through = null) {
  const other = looks === "at" ? both.keys : both.queries;
  const lines = await Promise.all(stretchOf(token, through).map((n) => (looks === "at" ? head.row(n) : head.column(n))));
  const weights = lines.length === 1 ? lines[0] : lines[0].map((_, j) => lines.reduce((sum, line) => sum + line[j], 0) / lines.length);
  const spread = new Float32Array(other.units.length).fill(NaN);
  spread.set(weights.subarray(0, other.units.length - other.shift), other.shift);
  return spread;
}
