/**
 * A text whose words are shaded by weights: a list with one word to choose.
 * @typedef {{
 *   root: HTMLElement, list: HTMLElement, wordAt: (unit: number) => HTMLElement | null,
 *   paint: (weights: Float32Array | null, share: (weight: number) => number) => void,
 *   repaint: () => void,
 *   mark: (kind: string, units: number[]) => void
 * }} Panel
 * @typedef {{point: (unit: number | null) => void, pick: (unit: number, extend?: boolean) => void,
 *   brush?: (first: number, last: number) => void}} Hears
 */
import { inkOn, ramp, shade } from "./colours.js";
import { neighbour } from "./keys.js";
import { element, rightToLeft, spelled, visible } from "./words.js";

const CHUNK = 128;
const LEVELS = 64;
const WRITTEN = "written by the model from here on";
/** The word of a long text that is kept in sight: the last one asked for. */
let held = new AbortController();
/** How texts of at most so many words are set. */
const SIZES = /** @type {[number, string][]} */ ([
  [48, "short"],
  [400, "middle"],
  [1500, "long"],
  [Infinity, "endless"],
]);

/**
 * A panel of a side that is text. Words are told apart by colour only where their share of the
 * scale differs by a step, and those out of sight are coloured when they come into it.
 * @param {import("./readings.js").Words} words
 * @param {string} label what the list is, for those who hear it
 * @param {Hears} hears
 * @returns {Panel}
 */
export function tokenPanel(words, label, hears) {
  const list = element("div", { class: "words", role: "listbox", "aria-label": label, "data-keys": true });
  list.dataset.size = SIZES.find(([most]) => words.units.length <= most)?.[1];
  /** @type {HTMLElement[]} */
  const spans = [];
  /** @type {WeakMap<Element, number>} */
  const numbers = new WeakMap();
  const shown = spelled(words.units);
  if (rightToLeft(words.units)) list.dir = "rtl";
  /** @type {Map<Element, number>} */
  const starts = new Map();
  for (let start = 0; start < shown.length; start += CHUNK) {
    const chunk = element("span", { class: "chunk", role: "presentation" });
    starts.set(chunk, start);
    shown.slice(start, start + CHUNK).forEach(({ text, gap, end }, n) => {
      const unit = start + n;
      const span = element("span", { class: "word", role: "option", tabindex: -1, dir: "auto" }, text);
      if (!gap) {
        span.classList.add("joined");
        spans.at(-1)?.classList.add("meets");
      }
      if (unit >= words.produced) span.classList.add("produced");
      if (text.endsWith("…")) span.title = visible(words.units[unit], 400);
      numbers.set(span, unit);
      spans.push(span);
      if (gap && unit) chunk.append(" ");
      if (unit === words.produced) chunk.append(element("span", { class: "begins", title: WRITTEN }));
      chunk.append(span, end ? element("br") : "");
    });
    list.append(chunk);
  }
  if (spans.length) spans[0].tabIndex = 0;

  /** @type {Uint8Array} */
  const levels = new Uint8Array(spans.length);
  const painted = new Uint8Array(spans.length);
  /** @type {object | null} */
  let colours = null;
  /** @type {string[][]} ground and ink of every level */
  let dress = [];
  /** @type {Set<Element>} */
  const inSight = new Set();
  const sight = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      if (isIntersecting) inSight.add(target);
      else inSight.delete(target);
      if (isIntersecting) paintChunk(target);
    }
  });
  for (const chunk of starts.keys()) {
    inSight.add(chunk);
    if (starts.size > 1) sight.observe(chunk);
  }

  /** Learn the colours of every level, where they are not known or have changed. */
  function dressLevels() {
    if (colours === ramp(list)) return;
    colours = ramp(list);
    painted.fill(255);
    const shares = Array.from({ length: LEVELS - 1 }, (_, level) => level / (LEVELS - 2));
    dress = [["", ""], ...shares.map((part) => [shade(list, part), inkOn(list, part)])];
  }

  /** @param {Element} chunk */
  function paintChunk(chunk) {
    const start = starts.get(chunk) ?? 0;
    const end = Math.min(start + CHUNK, spans.length);
    for (let n = start; n < end; n++) {
      if (levels[n] === painted[n]) continue;
      painted[n] = levels[n];
      const { style } = spans[n];
      [style.backgroundColor, style.color] = dress[levels[n]];
    }
  }

  const unitOf = (/** @type {EventTarget | null} */ target) => {
    const span = target instanceof Element ? target.closest(".word") : null;
    return (span && numbers.get(span)) ?? -1;
  };
  let pointed = -1;
  list.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse" && event.pointerType !== "pen") return;
    const unit = unitOf(event.target);
    if (unit === pointed || unit < 0) return;
    pointed = unit;
    hears.point(unit);
  });
  list.addEventListener("pointerleave", () => {
    if (pointed < 0) return;
    pointed = -1;
    hears.point(null);
  });
  list.addEventListener("click", (event) => {
    const unit = unitOf(event.target);
    if (unit >= 0) hears.pick(unit, event.shiftKey);
  });
  let brushed = -1;
  list.addEventListener("pointerdown", (event) => {
    brushed = event.pointerType === "touch" || event.shiftKey ? -1 : unitOf(event.target);
  });
  list.addEventListener("pointerup", (event) => {
    const unit = unitOf(event.target);
    if (brushed >= 0 && unit >= 0 && unit !== brushed) {
      getSelection()?.removeAllRanges();
      hears.brush?.(brushed, unit);
    }
    brushed = -1;
  });
  list.addEventListener("focusin", (event) => {
    const unit = unitOf(event.target);
    if (unit < 0) return;
    rove(unit);
    if (spans[unit].matches(":focus-visible")) hears.point(unit);
  });
  list.addEventListener("focusout", (event) => {
    if (!list.contains(/** @type {Node | null} */ (event.relatedTarget))) hears.point(null);
  });
  list.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const unit = Math.max(0, spans.findIndex((span) => span.tabIndex === 0));
    const next = neighbour(spans, unit, event.key, list.dir === "rtl");
    if (event.key === "Enter" || event.key === " ") hears.pick(unit, event.shiftKey);
    else if (next === null) return;
    else spans[next]?.focus();
    event.preventDefault();
  });

  /** @param {number} unit */
  function rove(unit) {
    for (const span of list.querySelectorAll('[tabindex="0"]')) {
      /** @type {HTMLElement} */ (span).tabIndex = -1;
    }
    if (spans[unit]) spans[unit].tabIndex = 0;
  }

  /**
   * Scroll to a word of a long text once, if it is not in sight. A list that is not shown yet has
   * no height to judge by: then as soon as it has.
   * @param {string} kind
   * @param {number} unit
   */
  function reveal(kind, unit) {
    const span = spans[unit];
    if (!span || unit === revealed.get(kind)) return;
    revealed.set(kind, unit);
    held.abort();
    const end = (held = new AbortController());
    const shown = new ResizeObserver(() => {
      if (!list.offsetHeight) return;
      shown.disconnect();
      if (list.offsetHeight >= innerHeight) keepInSight(span, end);
    });
    end.signal.addEventListener("abort", () => shown.disconnect());
    shown.observe(list);
  }

  /**
   * Keep a word in sight while the chunks around it get their real heights, which they have only
   * once they are near: for 30 frames, or until the reader moves.
   * @param {HTMLElement} span
   * @param {AbortController} end
   */
  function keepInSight(span, end) {
    let frames = 30;
    for (const move of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      addEventListener(move, () => end.abort(), { signal: end.signal, passive: true });
    }
    const look = () => {
      if (end.signal.aborted) return;
      const { top, bottom } = span.getBoundingClientRect();
      if (top < 100 || bottom > innerHeight - 60) span.scrollIntoView({ block: "center" });
      if (frames-- > 0) requestAnimationFrame(look);
      else end.abort();
    };
    look();
  }

  /** @type {Map<string, number>} */
  const revealed = new Map();
  /** @type {Map<string, number[]>} */
  const marks = new Map();
  return {
    root: list,
    list,
    wordAt: (unit) => spans[unit] ?? null,
    paint(weights, share) {
      for (let n = 0; n < spans.length; n++) {
        const weight = weights ? weights[n] : NaN;
        levels[n] = Number.isNaN(weight) ? 0 : 1 + Math.round((LEVELS - 2) * share(weight));
      }
      dressLevels();
      for (const chunk of inSight) paintChunk(chunk);
    },
    repaint() {
      dressLevels();
      for (const chunk of starts.keys()) paintChunk(chunk); // paper shows those out of sight, too
    },
    mark(kind, units) {
      for (const unit of marks.get(kind) ?? []) {
        spans[unit]?.classList.remove(kind);
        if (kind === "pinned") spans[unit]?.removeAttribute("aria-selected");
      }
      marks.set(kind, units);
      for (const unit of units) {
        spans[unit]?.classList.add(kind);
        if (kind === "pinned") spans[unit]?.setAttribute("aria-selected", "true");
      }
      if (!units.length || list.matches(":focus-within") || !["pinned", "partner"].includes(kind)) return;
      if (kind === "pinned") rove(units[0]);
      if (!list.matches(":hover") && !(list.getRootNode() instanceof ShadowRoot)) reveal(kind, units[0]);
    },
  };
}
