/** What is known of the weights of a head: a preview, the whole, a window, and the scale they share. */

import { windowCells } from "./exact.js";
import { same } from "./gestures.js";
import { scaleOf } from "./scales.js";
import { SINGLE_WEIGHT, unitOf } from "./shading.js";

/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./frame.js").Span} Span */
/** @typedef {import("./scales.js").Scale} Scale */
/** @typedef {import("./shading.js").Cells} Cells */
/** @typedef {import("./state.js").State} State */
/**
 * `whole` lies under `exact`, the window; `fixed` is the head as it was first drawn whole.
 * @typedef {{whole: Cells | null, exact: Cells | null, fixed: Cells | null, scale: Scale}} Known
 */

/**
 * @param {number} error
 * @param {() => State} state
 * @param {() => void} news called when something new is known
 */
export function looking(error, state, news) {
  /** @type {Known} */
  const known = { whole: null, exact: null, fixed: null, scale: scaleOf(new Float32Array(0), false, error) };
  let asked = new AbortController();

  /** Make the scale: of the whole head, so that a colour means the same at every zoom, or of the view. */
  function rescale() {
    const { whole, exact, fixed } = known;
    const of = state().range === "view" ? (exact ?? whole) : (fixed ?? whole);
    const scale = scaleOf(of?.values ?? new Float32Array(0), state().scale === "log", error);
    const beyond = scale.beyond || (exact?.values.some((w) => w > scale.high) ?? false);
    known.scale = { ...scale, beyond };
    news();
  }

  /**
   * Compute what a window shows and, unless it is known, the whole head for the scale. What was
   * being computed for another window is given up.
   * @param {Head} head
   * @param {Span} goal
   * @param {{high: number, wide: number}} pixels
   */
  async function look(head, goal, pixels) {
    asked.abort();
    const { signal } = (asked = new AbortController());
    const how = /** @type {import("./attention.js").How} */ (state().cells);
    const what = { hidden: state().sink === "hide", how };
    const all = { r0: 0, r1: head.t, c0: 0, c1: head.s };
    try {
      const cells = await windowCells(head, goal, pixels, what, signal);
      if (signal.aborted) return;
      known.exact = cells;
      if (same(goal, all)) known.fixed ??= known.whole = cells;
      rescale();
      if (known.fixed) return;
      const every = await windowCells(head, all, pixels, what, signal);
      if (signal.aborted) return;
      known.fixed = known.whole = every;
      rescale();
    } catch (fault) {
      if (!signal.aborted) throw fault;
    }
  }

  return {
    known,
    look,
    rescale,
    /** Another head is opened. */
    forget() {
      asked.abort();
      Object.assign(known, { whole: null, exact: null, fixed: null });
    },
    /** The whole head has to be seen again: more of it is known, or other weights are shown. */
    renew() {
      known.fixed = null;
    },
    /** @param {Cells} cells */
    preview(cells) {
      if (known.exact) return;
      known.whole = cells;
      rescale();
    },
    /** Whether cells hold several weights each. */
    pooled: () => known.exact !== null && unitOf(known.exact) !== SINGLE_WEIGHT,
    /** What is said of the scale: nothing while all is seen. @param {boolean} zoomed */
    said(zoomed) {
      if (!zoomed) return "";
      return state().range === "view" ? "scale of this view only" : "scale of the whole head";
    },
  };
}
