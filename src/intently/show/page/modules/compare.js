/** Two readings side by side: one held, one that moves, and how far they are apart. */

import { format, named } from "./words.js";

/** @typedef {import("./cards.js").Shown} Shown */

const NAMED = 3;

/**
 * What two readings have in common and where they part, in words; "" where their sides differ in
 * length or direction.
 *
 * The overlap is Σ min(p, q) of the normed weights; the divergence is that of Jensen and Shannon,
 * in nats.
 *
 * @param {Shown} held
 * @param {Shown} now
 */
export function compared(held, now) {
  const looks = now.place.looks;
  if (held.place.looks !== looks || held.weights.length !== now.weights.length) return "";
  const [p, q] = [normed(held.weights), normed(now.weights)];
  let overlap = 0;
  let divergence = 0;
  /** @type {number[]} */
  const order = [];
  for (let n = 0; n < p.length; n++) {
    overlap += Math.min(p[n], q[n]);
    const middle = (p[n] + q[n]) / 2;
    if (p[n] > 0) divergence += (p[n] / 2) * Math.log(p[n] / middle);
    if (q[n] > 0) divergence += (q[n] / 2) * Math.log(q[n] / middle);
    if (Math.abs(p[n] - q[n]) >= 0.01) order.push(n);
  }
  order.sort((a, b) => Math.abs(p[b] - q[b]) - Math.abs(p[a] - q[a]));
  const before = (looks === "at" ? held.both.keys : held.both.queries).units;
  const after = (looks === "at" ? now.both.keys : now.both.queries).units;
  const parted = order.slice(0, NAMED).map((n) => {
    const name = before[n] === after[n] ? named(before[n]) : `${named(before[n])}/${named(after[n])}`;
    return `‘${name}’ ${format(held.weights[n])} → ${format(now.weights[n])}`;
  });
  const share = `${Math.round(100 * overlap)} % of the weight in common`;
  const apart = `divergence ${divergence.toFixed(2)} nats`;
  return [share, apart, ...(parted.length ? [`most apart: ${parted.join(", ")}`] : [])].join(" · ");
}

/** @param {Float32Array} weights */
function normed(weights) {
  const positive = Float64Array.from(weights, (w) => (w > 0 ? w : 0));
  const sum = positive.reduce((a, b) => a + b, 0);
  return sum > 0 ? positive.map((w) => w / sum) : positive;
}
