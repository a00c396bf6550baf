/**
 * Attention rollout (Abnar & Zuidema 2020, section 3): how much each word depends on each input word
 * through all layers so far, as `intently.core.matrix.rollout` computes it.
 */

import { headOf } from "./sweeping.js";
import { copying } from "./weighing.js";

/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./data.js").Entry} Entry */

/** Most tokens: the products of a dozen layers then take a second or two. */
const TOKENS = 512;

/**
 * The layers of self-attention over one text, from the first to this one; null where there are none
 * before it, or where they have no rollout here.
 * @param {Entry[]} entries
 * @param {number} entry
 * @returns {number[] | null}
 */
export function stackOf(entries, entry) {
  const { t, s, rows, columns } = entries[entry];
  if (rows !== columns || t !== s || t > TOKENS) return null;
  const found = entries.flatMap((about, n) =>
    n <= entry && about.rows === rows && about.columns === columns && about.t === t && about.s === s ? [n] : [],
  );
  return found.length > 1 ? found : null;
}

/**
 * The product over the layers of (I + mean of the heads) / 2, the last one first.
 * @param {Head[]} means of each layer, from the first on
 * @returns {Promise<Head>}
 */
export async function rolledOut(means) {
  const n = means[0].t;
  let found = new Float64Array(n * n);
  for (let i = 0; i < n; i++) found[i * n + i] = 1;
  for (const mean of means) {
    const weights = await mean.tile(0, n, 0, n);
    const next = new Float64Array(n * n);
    for (let i = 0; i < n; i++) {
      for (let k = 0; k < n; k++) {
        const w = (weights[i * n + k] + (i === k ? 1 : 0)) / 2;
        if (!w) continue;
        for (let j = 0; j < n; j++) next[i * n + j] += w * found[k * n + j];
      }
    }
    found = next;
  }
  const weigh = copying(n, Float32Array.from(found));
  return headOf({ t: n, s: n, cost: 1, weigh, shows: null, entropy: null, received: null });
}
