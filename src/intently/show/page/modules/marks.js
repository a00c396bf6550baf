/** Marks of heads: patterns that most of the weight follows, on average over the queries. */

import { valueOf } from "./choosing.js";

/** A mark is given from this share of the weight on. */
export const MARKED = 0.5;

/** Statistics that are shares of the weight, the most special first, and their marks. */
const PATTERNS = [
  ["induction", "induction"],
  ["duplicate", "same word"],
  ["previous", "previous"],
  ["self", "itself"],
  ["sink", "sink"],
];

/**
 * The patterns that a head follows with at least half of its weight.
 * @param {import("./data.js").Entry[]} entries
 * @param {import("./choosing.js").Place} place
 * @returns {{mark: string, share: number}[]}
 */
export function marksOf(entries, place) {
  const { t, s, kind } = entries[place.entry];
  if (s < 3 || t < 3) return []; // with one or two keys every head follows all of them
  return PATTERNS.flatMap(([statistic, mark]) => {
    if (kind === "cross" && statistic !== "sink") return [];
    const share = valueOf(entries, place, statistic);
    return share !== null && share >= MARKED ? [{ mark, share }] : [];
  });
}
