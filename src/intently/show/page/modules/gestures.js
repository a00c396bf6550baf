/** Zooming and moving a window over a matrix: wheel, drag, pinch, double click and keys. */

import { ARROWS } from "./keys.js";

/** @typedef {import("./frame.js").Sheet} Sheet */
/** @typedef {import("./frame.js").Span} Span */
/**
 * What a matrix lets gestures do. `jump` moves at once, `glide` slowly where motion is welcome.
 * @typedef {{
 *   sheet: () => Sheet | null, span: () => Span, size: () => {t: number, s: number},
 *   jump: (span: Span) => void, glide: (span: Span) => void,
 *   point: (place: {i: number, j: number} | null) => void,
 *   pin: (place: {i: number, j: number}) => void,
 *   cursor: () => {i: number, j: number}, move: (i: number, j: number) => void, unpin: () => void,
 *   hand: () => Hand | null
 * }} Handled
 */
/**
 * A hand that changes weights: it takes a cell, turns it by pixels upwards, and releases it, `still`
 * if it never moved; some keys do the same. `strokes` are the cells that it changed.
 * @typedef {{
 *   take: (place: {i: number, j: number}) => boolean, turn: (up: number) => void,
 *   release: (still: boolean) => void, press: (key: string, place: {i: number, j: number}) => boolean,
 *   strokes: () => import("./strokes.js").Stroke[]
 * }} Hand
 */

/** The least number of rows and columns that are seen. */
const CLOSEST = 3;
const WHEEL = 0.0016;
const PINCH = 0.012;
const STEPPED = 1.6;
const STILL = 4;

/**
 * The window after zooming by a factor about a place, inside the matrix.
 * @param {Span} span
 * @param {number} factor below 1 shows less
 * @param {{row: number, column: number}} at
 * @param {{t: number, s: number}} size
 * @returns {Span}
 */
export function zoomed({ r0, r1, c0, c1 }, factor, { row, column }, { t, s }) {
  const [a, b] = zoomedAxis(r0, r1, t, factor, row);
  const [c, e] = zoomedAxis(c0, c1, s, factor, column);
  return { r0: a, r1: b, c0: c, c1: e };
}

/** @type {(from: number, to: number, n: number, factor: number, at: number) => [number, number]} */
function zoomedAxis(from, to, n, factor, at) {
  const size = Math.max(Math.min(CLOSEST, n), Math.min(n, (to - from) * factor));
  if (size > n * 0.995) return [0, n];
  const start = at - ((at - from) / (to - from)) * size;
  return within(start, size, n);
}

/** @type {(start: number, size: number, n: number) => [number, number]} */
function within(start, size, n) {
  const from = Math.max(0, Math.min(start, n - size));
  return [from, from + size];
}

/**
 * The window moved by rows and columns, inside the matrix.
 * @param {Span} span
 * @param {number} down
 * @param {number} across
 * @param {{t: number, s: number}} size
 * @returns {Span}
 */
export function moved({ r0, r1, c0, c1 }, down, across, { t, s }) {
  const [a, b] = within(r0 + down, r1 - r0, t);
  const [c, e] = within(c0 + across, c1 - c0, s);
  return { r0: a, r1: b, c0: c, c1: e };
}

/**
 * Move the window as little as shows a cell.
 * @param {Span} span
 * @param {number} i
 * @param {number} j
 * @param {{t: number, s: number}} size
 * @returns {Span}
 */
export function revealing(span, i, j, size) {
  const down = Math.min(0, i - span.r0) + Math.max(0, i + 1 - span.r1);
  const across = Math.min(0, j - span.c0) + Math.max(0, j + 1 - span.c1);
  return down || across ? moved(span, down, across, size) : span;
}

/** Listen to a canvas that shows a sheet. @param {HTMLCanvasElement} canvas @param {Handled} handled */
export function listen(canvas, handled) {
  /** @type {Map<number, {x: number, y: number}>} */
  const fingers = new Map();
  let travelled = 0;
  /** Where a cell was taken by a hand that changes it. @type {number | null} */
  let taken = null;

  /** @param {{clientX: number, clientY: number}} event */
  function placeOn({ clientX, clientY }) {
    const bounds = canvas.getBoundingClientRect();
    const sheet = handled.sheet();
    if (!sheet) return null;
    const { r0, r1, c0, c1 } = handled.span();
    const [across, down] = [(clientX - bounds.left - sheet.x) / sheet.w, (clientY - bounds.top - sheet.y) / sheet.h];
    const inside = across >= 0 && across < 1 && down >= 0 && down < 1;
    const { t, s } = handled.size();
    const [row, column] = [r0 + down * (r1 - r0), c0 + across * (c1 - c0)];
    const [i, j] = [Math.max(0, Math.min(t - 1, Math.floor(row))), Math.max(0, Math.min(s - 1, Math.floor(column)))];
    return { inside, row, column, i, j };
  }

  /** Whether all is seen: then there is nowhere to move to, and a drag points. */
  function whole() {
    const { t, s } = handled.size();
    return same(handled.span(), { r0: 0, r1: t, c0: 0, c1: s });
  }

  /** Pixels to rows and columns. @param {number} x @param {number} y */
  function stepsOf(x, y) {
    const sheet = handled.sheet();
    const { r0, r1, c0, c1 } = handled.span();
    return sheet ? { down: (y / sheet.h) * (r1 - r0), across: (x / sheet.w) * (c1 - c0) } : { down: 0, across: 0 };
  }

  canvas.addEventListener(
    "wheel",
    (event) => {
      const at = placeOn(event);
      if (!at?.inside) return;
      const lines = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
      const amount = Math.max(-240, Math.min(240, event.deltaY * lines));
      const next = zoomed(handled.span(), Math.exp(amount * (event.ctrlKey ? PINCH : WHEEL)), at, handled.size());
      if (same(next, handled.span()) && !event.ctrlKey) return;
      event.preventDefault();
      handled.jump(next);
    },
    { passive: false },
  );

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (fingers.size === 1) travelled = 0;
    const at = placeOn(event);
    if (!at?.inside) return;
    canvas.setPointerCapture(event.pointerId);
    const alone = fingers.size === 1 && event.pointerType !== "touch";
    if (alone && handled.hand()?.take({ i: at.i, j: at.j })) taken = event.clientY;
  });

  canvas.addEventListener("pointermove", (event) => {
    const at = placeOn(event);
    const before = fingers.get(event.pointerId);
    if (!before) return handled.point(at?.inside ? at : null);
    const [x, y] = [event.clientX - before.x, event.clientY - before.y];
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    travelled += Math.hypot(x, y);
    if (travelled < STILL) return;
    if (taken !== null) return handled.hand()?.turn(taken - event.clientY);
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (other) {
      const then = Math.hypot(before.x - other.x, before.y - other.y);
      const now = Math.hypot(event.clientX - other.x, event.clientY - other.y);
      const middle = placeOn({ clientX: (event.clientX + other.x) / 2, clientY: (event.clientY + other.y) / 2 });
      if (middle && now > 0) handled.jump(zoomed(handled.span(), then / now, middle, handled.size()));
    }
    if (!other && whole()) return handled.point(at?.inside ? at : null);
    const { down, across } = stepsOf(x, y);
    const share = other ? 0.5 : 1;
    handled.jump(moved(handled.span(), -down * share, -across * share, handled.size()));
  });

  /** @param {PointerEvent} event */
  function lift(event) {
    const held = fingers.delete(event.pointerId);
    const at = placeOn(event);
    if (held && taken !== null) {
      taken = null;
      return handled.hand()?.release(travelled < STILL && event.type === "pointerup");
    }
    if (held && !fingers.size && travelled < STILL && at?.inside && event.type === "pointerup") handled.pin(at);
  }
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => handled.point(null));
  canvas.addEventListener("dblclick", (event) => {
    const at = placeOn(event);
    if (at?.inside) handled.glide(zoomed(handled.span(), event.shiftKey ? 2.5 : 0.4, at, handled.size()));
  });

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (!pressed(event.key, event.shiftKey, handled)) return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/**
 * @param {string} key
 * @param {boolean} shift
 * @param {Handled} handled
 * @returns {boolean} whether the key means something here
 */
function pressed(key, shift, handled) {
  const { i, j } = handled.cursor();
  if (handled.hand()?.press(key, { i, j })) return true;
  const { t, s } = handled.size();
  const far = shift ? 10 : 1;
  const page = Math.max(1, Math.round((handled.span().r1 - handled.span().r0) / 2));
  /** @type {Record<string, () => void>} */
  const means = {
    ...Object.fromEntries(Object.entries(ARROWS).map(([arrow, [down, across]]) => [arrow, () => handled.move(i + far * down, j + far * across)])),
    PageUp: () => handled.move(i - page, j),
    PageDown: () => handled.move(i + page, j),
    Home: () => handled.move(i, 0),
    End: () => handled.move(i, s - 1),
    "+": () => near(1 / STEPPED),
    "=": () => near(1 / STEPPED),
    "-": () => near(STEPPED),
    0: () => handled.glide({ r0: 0, r1: t, c0: 0, c1: s }),
    Enter: () => handled.pin({ i, j }),
    Escape: () => handled.unpin(),
  };
  /** @param {number} factor */
  function near(factor) {
    handled.glide(zoomed(handled.span(), factor, { row: i + 0.5, column: j + 0.5 }, handled.size()));
  }
  if (!Object.hasOwn(means, key)) return false;
  means[key]();
  return true;
}

/** @param {Span} a @param {Span} b */
export function same(a, b) {
  return a.r0 === b.r0 && a.r1 === b.r1 && a.c0 === b.c0 && a.c1 === b.c1;
}

/**
 * A window on the way from one to another.
 * @param {Span} a
 * @param {Span} b
 * @param {number} share
 * @returns {Span}
 */
export function between(a, b, share) {
  /** @param {keyof Span} key */
  const mixed = (key) => a[key] + (b[key] - a[key]) * share;
  return share === 1 ? b : { r0: mixed("r0"), r1: mixed("r1"), c0: mixed("c0"), c1: mixed("c1") };
}
