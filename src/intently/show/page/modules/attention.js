/**
 * Heads, opened from the numbers in the page; the mean of several; and those that are kept open.
 *
 * Weights are computed when they are asked for. Nothing of size t × s is ever kept.
 */

import { rolledOut, stackOf } from "./rollout.js";
import { headOf } from "./sweeping.js";
import { copying, visibility, weighing } from "./weighing.js";

/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./data.js").Entry} Entry */
/** @typedef {import("./data.js").Numbers} Numbers */
/** What a cell shows of its weights. @typedef {"mean" | "max"} How */
/**
 * A matrix of weights (t, s), asked for parts. What takes long can be given up by a signal.
 * @typedef {{
 *   t: number, s: number,
 *   row: (i: number) => Promise<Float32Array>,
 *   column: (j: number) => Promise<Float32Array>,
 *   tile: (r0: number, r1: number, c0: number, c1: number, signal?: AbortSignal) => Promise<Float32Array>,
 *   pooled: (r0: number, r1: number, c0: number, c1: number, h: number, w: number, how?: How, signal?: AbortSignal) => Promise<Float32Array>,
 *   entropy: (signal?: AbortSignal) => Promise<Float32Array>,
 *   received: (signal?: AbortSignal) => Promise<Float32Array>,
 *   masked?: (r0: number, r1: number, c0: number, c1: number, h: number, w: number, signal?: AbortSignal) => Promise<Uint8Array>,
 *   local?: Local, whenExact?: (then: () => void) => void, exactness?: () => string
 * }} Head
 */
/**
 * What a head is computed from. `weigh` writes the weights of one row, columns c0 … c1 − 1, to
 * `out`; `cost` is the work of one weight; `shows` says whether a query may attend to a key.
 * @typedef {{
 *   t: number, s: number, cost: number,
 *   weigh: import("./weighing.js").Weigh, shows: import("./weighing.js").Shows | null,
 *   entropy: Float32Array | null, received: Float32Array | null
 * }} Local
 */
/** @typedef {{open: (item: number, entry: number, heads: string) => Promise<Head>}} HeadSource */

/** Open heads that are kept. */
const OPEN = 16;

/**
 * The matrix of one head, from the numbers in the page.
 * @param {Page} page
 * @param {number} item
 * @param {number} entry
 * @param {number} head
 * @returns {Promise<Head>}
 */
async function openHead(page, item, entry, head) {
  const about = page.meta.items[item]?.entries[entry];
  if (!about || !(head >= 0 && head < about.heads)) {
    throw new Error(`there is no head ${head} of entry ${entry} of item ${item}`);
  }
  /** @param {number[]} blocks @param {number} at */
  const floats = async (blocks, at) => /** @type {Float32Array} */ (await page.block(blocks[at]));
  const { mask, bias, score } = about;
  const [entropy, received, bits, added] = await Promise.all([
    floats(about.entropy, head),
    floats(about.received, head),
    mask ? page.block(mask.block) : null,
    bias ? floats(bias.blocks, bias.blocks.length > 1 ? head : 0) : null,
  ]);
  const shows = bits && mask ? visibility(bits, about, mask.heads > 1 ? head : 0) : null;
  const kept = { t: about.t, s: about.s, shows, entropy, received };
  if (score.kind === "weights") {
    return headOf({ ...kept, cost: 1, weigh: copying(about.s, await floats(score.blocks, head)) });
  }
  const [q, k, lse] = await Promise.all([
    floats(about.q, head),
    floats(about.k, Math.floor(head / about.group)),
    page.block(about.lse[head]),
  ]);
  const every = score.kind === "additive" ? await page.block(score.energy) : null;
  const energy = every?.subarray(head * about.d, (head + 1) * about.d) ?? null;
  const weigh = weighing(about, { q, k, lse, energy, bias: added, shows });
  return headOf({ ...kept, cost: about.d * (energy ? 20 : 1), weigh });
}

/** The mean of heads, of a layer or of any set, as one matrix. @param {Head[]} heads @returns {Head} */
function averageOf(heads) {
  const parts = heads.map(({ local }) => {
    if (!local) throw new Error("only heads computed in this browser can be averaged here");
    return local;
  });
  if (parts.length === 1) return heads[0];
  const { t, s } = parts[0];
  const n = parts.length;
  let spare = new Float64Array(0);
  return headOf({
    t,
    s,
    cost: parts.reduce((sum, { cost }) => sum + cost, 0),
    entropy: null,
    received: parts.every(({ received }) => received) ? meanOf(parts.map(({ received }) => received)) : null,
    shows: parts.every(({ shows }) => shows)
      ? (i, j) => parts.some(({ shows }) => shows?.(i, j))
      : null,
    weigh(i, c0, c1, out) {
      const wide = c1 - c0;
      if (spare.length < wide) spare = new Float64Array(wide);
      out.fill(0, 0, wide);
      for (const { weigh } of parts) {
        weigh(i, c0, c1, spare);
        for (let j = 0; j < wide; j++) out[j] += spare[j] / n;
      }
    },
  });
}

/** @param {(Float32Array | null)[]} rows @returns {Float32Array} */
function meanOf(rows) {
  const length = rows[0]?.length ?? 0;
  return Float32Array.from({ length }, (_, j) => {
    let sum = 0;
    for (const row of rows) sum += row ? row[j] : 0;
    return sum / rows.length;
  });
}

/**
 * Heads by item, entry and "3", "1,4", "mean" or "rollout"; those opened last are kept.
 * @param {Page} page
 * @param {(page: Page, item: number, entry: number, head: number) => Promise<Head>} open
 * @param {(page: Page, item: number, entry: number, heads: number[]) => Promise<Head>} openMean
 * @returns {HeadSource}
 */
export function headSource(page, open = openHead, openMean = openAverage) {
  /** @type {Map<string, Promise<Head>>} */
  const kept = new Map();

  /** @param {number} item @param {number} entry */
  async function roll(item, entry) {
    const stack = stackOf(page.meta.items[item].entries, entry);
    if (!stack) throw new Error("there is no rollout of this layer");
    const means = stack.map((n) => openMean(page, item, n, chosenHeads(page.meta.items[item].entries[n].heads, "mean")));
    return rolledOut(await Promise.all(means));
  }

  return {
    open(item, entry, heads) {
      const key = `${item}.${entry}.${heads}`;
      const known = kept.get(key);
      kept.delete(key);
      const chosen = chosenHeads(page.meta.items[item]?.entries[entry]?.heads ?? 0, heads);
      const head =
        known ??
        (heads === "rollout"
          ? roll(item, entry)
          : chosen.length === 1
            ? open(page, item, entry, chosen[0])
            : openMean(page, item, entry, chosen));
      kept.set(key, head);
      head.catch(() => kept.delete(key));
      for (const old of kept.keys()) {
        if (kept.size <= OPEN) break;
        kept.delete(old);
      }
      return head;
    },
  };
}

/**
 * The numbers of heads that "3", "1,4" or "mean" stands for.
 * @param {number} count
 * @param {string} heads
 * @returns {number[]}
 */
export function chosenHeads(count, heads) {
  if (heads === "mean") return Array.from({ length: count }, (_, head) => head);
  return heads.split(",").map(Number);
}

/** @type {(page: Page, item: number, entry: number, heads: number[]) => Promise<Head>} */
async function openAverage(page, item, entry, heads) {
  return averageOf(await Promise.all(heads.map((head) => openHead(page, item, entry, head))));
}
