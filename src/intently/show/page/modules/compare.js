/** Two readings side by side: one held, one that moves, and how far they are apart. */

import { format, named } from "./words.js";

/** @typedef {import("./cards.js").Shown} Shown */

const NAMED = 3;

/**
 * What two readings look at, what they have in common and where they part, in words; "" where that
 * cannot be compared.
 *
 * Readings of one text are compared place by place, those of two texts by their words, wherever
 * these stand: a word that occurs twice counts with both weights. The overlap is Σ min(p, q) of the
 * normed weights; the divergence is that of Jensen and Shannon, in nats.
 * @param {Shown} held
 * @param {Shown} now
 * @param {number} error how far weights may be off
 */
export function compared(held, now, error) {
  if (held.place.looks !== now.place.looks) return "";
  const [before, after] = [unitsOf(held), unitsOf(now)];
  const same = before.length === after.length && before.every((word, n) => word === after[n]);
  const pictured = [held, now].some((one) => toOf(one).side.kind === "picture");
  if (pictured && !same) return "";
  const keyOf = same ? (/** @type {string} */ _, /** @type {number} */ n) => String(n) : (/** @type {string} */ word) => named(word);
  const [p, q] = [binned(held, before, keyOf), binned(now, after, keyOf)];
  const sums = [p, q].map((bins) => [...bins.values()].reduce((sum, { weight }) => sum + weight, 0));
  let overlap = 0;
  let divergence = 0;
  /** @type {{name: string, from: number, to: number}[]} */
  const parted = [];
  for (const key of new Set([...p.keys(), ...q.keys()])) {
    const [from, to] = [p, q].map((bins) => bins.get(key)?.weight ?? 0);
    const [a, b] = [from / (sums[0] || 1), to / (sums[1] || 1)];
    overlap += Math.min(a, b);
    if (a > 0) divergence += (a / 2) * Math.log((2 * a) / (a + b));
    if (b > 0) divergence += (b / 2) * Math.log((2 * b) / (a + b));
    if (Math.abs(a - b) >= 0.01) parted.push({ name: (p.get(key) ?? q.get(key))?.name ?? "", from, to });
  }
  parted.sort((a, b) => Math.abs(b.from - b.to) - Math.abs(a.from - a.to));
  const most = parted.slice(0, NAMED).map(({ name, from, to }) => `‘${name}’ ${format(from, error)} → ${format(to, error)}`);
  const share = `${Math.round(100 * overlap)} % of the weight ${same ? "in common" : "on the same words"}`;
  return [
    `${heaviestOf(held, p, error)}; ${heaviestOf(now, q, error)}`,
    share,
    `divergence ${divergence.toFixed(2)} nats`,
    ...(most.length ? [`most apart: ${most.join(", ")}`] : []),
  ].join(" · ");
}

/** @param {Shown} shown */
function toOf({ place, both }) {
  return place.looks === "at" ? both.keys : both.queries;
}

/** @param {Shown} shown */
function unitsOf(shown) {
  return toOf(shown).units;
}

/**
 * Weights that fall together under one key.
 * @param {Shown} shown
 * @param {string[]} words
 * @param {(word: string, n: number) => string} keyOf
 */
function binned({ weights }, words, keyOf) {
  /** @type {Map<string, {name: string, weight: number}>} */
  const bins = new Map();
  words.forEach((word, n) => {
    if (!(weights[n] > 0)) return;
    const key = keyOf(word, n);
    const bin = bins.get(key) ?? { name: named(word), weight: 0 };
    bins.set(key, { ...bin, weight: bin.weight + weights[n] });
  });
  return bins;
}

/**
 * What one reading weighs most, in words.
 * @param {Shown} shown
 * @param {Map<string, {name: string, weight: number}>} bins
 * @param {number} error
 */
function heaviestOf({ place, name }, bins, error) {
  const best = [...bins.values()].reduce((a, b) => (b.weight > a.weight ? b : a), { name: "", weight: 0 });
  const said = best.weight ? `‘${best.name}’ ${format(best.weight, error)}` : "nothing";
  return place.looks === "at" ? `‘${name}’ looks most at ${said}` : `‘${name}’ is looked at most by ${said}`;
}
