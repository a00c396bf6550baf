/** Cells of a window, exact, while the page stays awake; and before they come, the stored overview. */

import { chosenHeads } from "./attention.js";
import { overviewWeights } from "./shading.js";

/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./frame.js").Span} Span */
/** @typedef {import("./shading.js").Cells} Cells */

/** Cells of a picture on each side at most. */
const FINEST = 1024;

/**
 * The cells that a window takes on so many pixels: single weights where there is room for them.
 * @param {Head} head
 * @param {Span} span
 * @param {{high: number, wide: number}} pixels
 * @param {{hidden: boolean, how: import("./attention.js").How}} what whether the first key is left
 *   out, and what is shown of the weights that share a cell
 * @param {AbortSignal} signal
 * @returns {Promise<Cells>}
 */
export async function windowCells(head, span, pixels, { hidden, how }, signal) {
  const [r0, r1] = [Math.floor(span.r0), Math.min(head.t, Math.ceil(span.r1))];
  const c1 = Math.min(head.s, Math.ceil(span.c1));
  const c0 = Math.min(c1, Math.max(hidden ? 1 : 0, Math.floor(span.c0)));
  const h = Math.min(r1 - r0, FINEST, Math.ceil(pixels.high));
  const w = Math.min(c1 - c0, FINEST, Math.ceil(pixels.wide));
  const single = h === r1 - r0 && w === c1 - c0;
  const values = single
    ? await head.tile(r0, r1, c0, c1, signal)
    : await head.pooled(r0, r1, c0, c1, h, w, how, signal);
  const masked = (await head.masked?.(r0, r1, c0, c1, h, w, signal)) ?? null;
  return { r0, r1, c0, c1, h, w, values, masked, how };
}

/**
 * The stored overview of heads as cells of the whole matrix.
 * @param {Page} page
 * @param {number} item
 * @param {number} entry
 * @param {string} heads
 * @returns {Promise<Cells>}
 */
export async function overviewOf(page, item, entry, heads) {
  const about = page.meta.items[item].entries[entry];
  const [, h, w] = page.meta.blocks[about.overview].shape;
  if (heads === "rollout") throw new Error("a rollout has no overview");
  const chosen = chosenHeads(about.heads, heads);
  const largest = about.overview_max ?? Array.from({ length: about.heads }, () => 1);
  const values = overviewWeights(await page.block(about.overview), { h, w, heads: chosen, largest });
  const relative = !about.overview_max;
  return { r0: 0, r1: about.t, c0: 0, c1: about.s, h, w, values, masked: null, how: "mean", relative };
}

/**
 * A task that is asked for often: while it runs, only the last one asked waits.
 * @param {() => Promise<void>} task
 * @returns {() => Promise<void>}
 */
export function latest(task) {
  let [running, again] = [false, false];
  return async () => {
    again = true;
    if (running) return;
    running = true;
    while (again) {
      again = false;
      await task();
    }
    running = false;
  };
}
