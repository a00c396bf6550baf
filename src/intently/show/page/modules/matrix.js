/** One head as a picture that is zoomed from the whole matrix to single weights. */

import { adjusting } from "./adjusting.js";
import { beside } from "./beside.js";
import { ramp } from "./colours.js";
import { paintCrosshair, paintPlace } from "./crosshair.js";
import { errorOf, namesOf, saidOf } from "./data.js";
import { paintSheet } from "./drawing.js";
import { latest, overviewOf } from "./exact.js";
import { layout, widestOf } from "./frame.js";
import { between, listen, revealing, same } from "./gestures.js";
import { looking } from "./looking.js";
import { sized } from "./painter.js";
import { headsName } from "./readings.js";
import { offerPicture, titled } from "./save.js";
import { largest } from "./scales.js";
import { paintStrokes } from "./strokes.js";
import { announce, element, format, isolated, named, rowName, visible } from "./words.js";

/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./attention.js").HeadSource} HeadSource */
/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./frame.js").Sheet} Sheet */
/** @typedef {import("./frame.js").Span} Span */
/** @typedef {import("./painter.js").Painter} Painter */
/** @typedef {import("./state.js").Store} Store */
/** @typedef {{i: number, j: number}} Place */

/** From this width on, the words stand beside the matrix; how wide they are, with the gap. */
const WIDE = 760;
const WORDS = 300;

/** Room under a wide sheet: switches, a note, and the foot of the page. */
const UNDER = 124;

const GLIDE = 160;
const KEYS = "Arrow keys move, plus and minus zoom, 0 shows all, Enter pins.";
const DENSEST = 2;

/** Weights of a matrix whose description names the largest, and how many of them. */
const DESCRIBED = 65536;
const STRONGEST = 5;

/**
 * Show the head that the state names, and let it be zoomed, moved, pointed at and pinned.
 * @param {HTMLElement} root
 * @param {Page} page
 * @param {Store} store
 * @param {HeadSource} heads
 */
export function matrixView(root, page, store, heads) {
  const base = element("canvas", { class: "matrix-base", "aria-hidden": "true" });
  const over = element("canvas", { class: "matrix-canvas", tabindex: 0, role: "application" });
  const stage = element("div", { class: "matrix-stage" }, base, over);
  const words = element("aside", { class: "beside", "aria-label": "The weight under the crosshair" });
  const note = element("p", { class: "matrix-note" });
  const said = element("p", { class: "matrix-said" });
  const adjust = adjusting(store);
  root.append(said, element("div", { class: "matrix" }, element("div", {}, stage, adjust.root), words), note);
  const error = errorOf(page.meta);
  const panel = beside(words, error);

  let shown = "";
  /** @type {Head | null} */
  let head = null;
  /** @type {Sheet | null} */
  let sheet = null;
  /** @type {import("./data.js").Names} */
  let names = { rows: [], columns: [], writes: null };
  let span = windowOf(store.get());
  let goal = span;
  const seen = looking(error, store.get, () => invalidate());
  /** @type {{entropy: Float32Array | null, received: Float32Array | null}} */
  let margins = { entropy: null, received: null };
  /** @type {Place | null} */
  let pointed = null;
  /** @type {Map<HTMLCanvasElement, Painter>} */
  const painters = new Map();
  let [baseDue, overDue, movedDue] = [false, false, false];

  const titleOf = () => {
    const { item, entry, heads: chosen } = store.get();
    return `${visible(about().name, 80)} · ${headsName(page, item, entry, chosen)}`;
  };
  const about = () => {
    const { item, entry } = store.get();
    return page.meta.items[item].entries[entry];
  };
  /** @returns {Place | null} */
  const pinned = () => {
    const { row, column } = store.get();
    return row === null ? null : { i: row, j: column ?? Math.min(row, about().s - 1) };
  };
  const place = () => pointed ?? pinned();
  /** The matrix in words, for those who do not see it: its size, and the largest of its weights. */
  const described = () => {
    const { t, s } = about();
    const cells = t * s <= DESCRIBED ? seen.known.fixed?.values : null;
    const best = cells?.length === t * s ? largest(Float32Array.from(cells), STRONGEST) : [];
    const told = best.map((n) => {
      const [query, key] = [rowName(names.rows[Math.floor(n / s)], names.writes?.[Math.floor(n / s)]), named(names.columns[n % s])];
      return `‘${query}’ → ‘${key}’ ${format(cells?.[n] ?? 0, error)}`;
    });
    const strongest = told.length ? ` Largest weights: ${told.join(", ")}.` : "";
    return `Attention weights of ${titleOf()}: ${t} queries (rows) by ${s} keys (columns).${strongest}`;
  };
  /** @returns {Span} */
  const everything = () => ({ r0: 0, r1: about().t, c0: 0, c1: about().s });
  const hidden = () => store.get().sink === "hide";

  // --- what is shown --------------------------------------------------------------------------

  /** Lay out the sheet in the room there is; nothing is done while the view is hidden. */
  function arrange() {
    const width = root.clientWidth;
    if (!width) return;
    const { t, s } = about();
    const wide = width >= WIDE;
    const top = stage.getBoundingClientRect().top + scrollY;
    const room = Math.max(wide ? 420 : 380, innerHeight - top - (wide ? UNDER : 0));
    const widest = { rows: widestOf(names.rows, names.writes), columns: widestOf(names.columns) };
    sheet = layout(width - (wide ? WORDS : 0), room, t, s, widest);
    const { width: across, height } = sheet;
    for (const canvas of [base, over]) painters.set(canvas, sized(canvas, across, height));
    Object.assign(stage.style, { width: `${across}px`, height: `${height}px` });
    drawBase();
    drawOver();
  }

  /** Open the head that the state names, unless it is open. */
  async function load() {
    const { item, entry, heads: chosen } = store.get();
    const key = `${page.edition}.${item}.${entry}.${chosen}`;
    if (key === shown || !root.clientWidth) return;
    shown = key;
    seen.forget();
    head = null;
    margins = { entropy: null, received: null };
    names = namesOf(page.meta, item, entry);
    span = goal = windowOf(store.get());
    const { name, t, s } = about();
    const told = `Weights of ${name}, ${headsName(page, item, entry, chosen)}: ${t} queries by ${s} keys.`;
    over.setAttribute("aria-label", `${told} ${KEYS}`);
    note.textContent = "";
    said.textContent = visible(saidOf(page.meta, item, entry, chosen), 300);
    said.hidden = !saidOf(page.meta, item, entry, chosen);
    try {
      arrange();
      overviewOf(page, item, entry, chosen).then((cells) => shown === key && seen.preview(cells), () => {});
      const opened = await heads.open(item, entry, chosen);
      if (shown !== key) return;
      head = opened;
      opened.whenExact?.(() => {
        if (shown !== key) return;
        seen.renew();
        refresh();
      });
      const known = opened.local?.entropy;
      const sides = known ? statistics(opened) : null;
      await refresh();
      say();
      await (sides ?? statistics(opened));
    } catch (fault) {
      if (shown === key) note.textContent = `This head cannot be shown: ${reason(fault)}`;
    }

    /** What stands beside the matrix; what is not stored is computed when the matrix is drawn.
     * @param {Head} opened */
    async function statistics(opened) {
      const [received, entropy] = await Promise.all([opened.received(), opened.entropy()]);
      if (shown !== key) return;
      margins = { entropy, received };
      invalidate();
    }
  }

  /** Compute the window anew. */
  async function refresh() {
    if (!head || !sheet) return;
    movedDue = false;
    const [key, opened] = [shown, head];
    const sharp = Math.min(DENSEST, devicePixelRatio || 1);
    try {
      await seen.look(head, goal, { high: sheet.h * sharp, wide: sheet.w * sharp });
      if (shown === key) note.textContent = seen.pooled() ? (opened.exactness?.() ?? "") : "";
    } catch (fault) {
      if (shown === key) note.textContent = `This window cannot be shown: ${reason(fault)}`;
    }
  }

  // --- drawing --------------------------------------------------------------------------------

  /** Draw in the next frame; then, if the window moved, compute what it shows. */
  function invalidate(moved = false) {
    movedDue ||= moved;
    if (baseDue) return;
    baseDue = true;
    requestAnimationFrame(() => {
      drawBase();
      drawOver();
      if (movedDue) refresh();
    });
  }

  /** @param {HTMLCanvasElement} canvas @param {(painter: Painter) => void} paint */
  function onto(canvas, paint) {
    const context = canvas.getContext("2d");
    if (!context || !sheet) return;
    context.clearRect(0, 0, sheet.width, sheet.height);
    const painter = painters.get(canvas);
    if (painter) paint(painter);
  }

  function drawBase() {
    baseDue = false;
    const zoomed = !same(span, everything());
    over.classList.toggle("matrix-held", zoomed);
    adjust.show({ zoomed, pooled: seen.pooled() });
    onto(base, paint);
  }

  function drawOver() {
    overDue = false;
    onto(over, paintOver);
  }

  /** @param {Painter} painter */
  function paint(painter) {
    if (!sheet) return;
    const range = seen.said(!same(goal, everything()));
    paintSheet(painter, root, { sheet, span, names, ...seen.known, ...margins, hidden: hidden(), range, error });
  }

  /** @param {Painter} painter */
  function paintOver(painter) {
    if (!sheet) return;
    const colours = ramp(root);
    paintStrokes(painter, sheet, span, page.hand?.strokes() ?? [], colours);
    const [read, held] = [place(), pinned()];
    if (held && pointed) paintCrosshair(painter, sheet, span, held, colours, false);
    if (!read) return;
    paintCrosshair(painter, sheet, span, read, colours, true);
    paintPlace(painter, sheet, span, read, names, colours);
  }

  // --- reading a weight -----------------------------------------------------------------------

  /** Tell the weight under the crosshair. */
  const say = latest(tellPlace);

  async function tellPlace() {
    if (!root.clientWidth) return;
    const at = place();
    if (!at || !head) {
      panel.tell(null, names);
      announce(root, titleOf());
      return;
    }
    const { i, j } = at;
    const key = shown;
    try {
      const [row, column] = await Promise.all([head.row(i), head.column(j)]);
      if (key !== shown) return;
      const held = pinned();
      panel.tell({ i, j, weight: row[j], row, column, pinned: held?.i === i && held.j === j }, names);
      const [query, answer] = [rowName(names.rows[i], names.writes?.[i]), named(names.columns[j])].map(isolated);
      announce(root, `query ‘${query}’ → key ‘${answer}’: ${format(row[j], error)}`);
    } catch (fault) {
      note.textContent = `This weight cannot be shown: ${reason(fault)}`;
    }
  }

  /** @param {Place | null} next */
  function point(next) {
    if (next?.i === pointed?.i && next?.j === pointed?.j) return;
    pointed = next && { i: next.i, j: next.j };
    say();
    if (overDue) return;
    overDue = true;
    requestAnimationFrame(drawOver);
  }

  // --- moving ---------------------------------------------------------------------------------

  /** @param {Span} next */
  function jump(next) {
    span = goal = next;
    store.set(next);
    invalidate(true);
  }

  let glides = 0;
  /** @param {Span} next */
  function glide(next) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return jump(next);
    const [from, mine, since] = [span, ++glides, performance.now()];
    goal = next;
    store.set(next);
    refresh();
    requestAnimationFrame(function step(now) {
      if (mine !== glides || goal !== next) return;
      const share = Math.min(1, Math.max(0, (now - since) / GLIDE));
      span = between(from, next, 1 - (1 - share) ** 3);
      drawBase();
      drawOver();
      if (share < 1) requestAnimationFrame(step);
    });
  }

  listen(over, {
    hand: () => page.hand ?? null,
    sheet: () => sheet,
    span: () => span,
    size: () => ({ t: about().t, s: about().s }),
    jump,
    glide,
    point,
    pin({ i, j }) {
      const held = pinned();
      if (held?.i === i && held.j === j) store.set({ row: null, column: null }, { push: true });
      else store.set({ row: i, column: j }, { push: true });
    },
    unpin() {
      pointed = null;
      store.set({ row: null, column: null }, { push: true });
      drawOver();
      say();
    },
    cursor: () => place() ?? { i: Math.floor((span.r0 + span.r1) / 2), j: Math.floor((span.c0 + span.c1) / 2) },
    move(i, j) {
      const { t, s } = about();
      const next = { i: Math.max(0, Math.min(t - 1, i)), j: Math.max(0, Math.min(s - 1, j)) };
      const seen = revealing(goal, next.i, next.j, { t, s });
      if (!same(seen, goal)) jump(seen);
      point(next);
    },
  });

  // --- what happens elsewhere -----------------------------------------------------------------

  let missed = false;
  let stood = `${store.get().item}.${store.get().entry}`;
  store.subscribe((state, changed) => {
    if (!root.clientWidth) {
      missed = true;
      return;
    }
    if (["item", "entry", "heads"].some((key) => changed.has(key))) {
      const here = `${state.item}.${state.entry}`;
      if (stood !== here || (pointed && (pointed.i >= about().t || pointed.j >= about().s))) pointed = null;
      stood = here;
      load();
      return;
    }
    const next = windowOf(state);
    if (!same(next, goal)) glide(next);
    if (changed.has("sink") || changed.has("cells")) {
      seen.renew();
      refresh();
    }
    if (changed.has("scale") || changed.has("range")) seen.rescale();
    invalidate();
    if (changed.has("row") || changed.has("column")) say();
  });
  root.closest(".intently")?.addEventListener("colours", () => {
    if (!root.clientWidth) return;
    drawBase(); // at once: a page that is printed does not wait for a frame
    drawOver();
  });
  /** The view has another size, or is seen again. */
  function resized() {
    if (!root.clientWidth) return;
    const [before, open] = [sheet, shown];
    load();
    if (open !== shown) return;
    if (missed) span = goal = windowOf(store.get());
    arrange();
    if (missed || before?.w !== sheet?.w || before?.h !== sheet?.h) refresh();
    if (missed) say();
    missed = false;
  }
  new ResizeObserver(resized).observe(root);
  addEventListener("resize", resized);

  offerPicture(root, () => {
    const { item } = store.get();
    const { width, height } = sheet ?? { width: 1, height: 1 };
    /** @param {Painter} painter */
    const both = (painter) => {
      paint(painter);
      paintOver(painter);
    };
    const made = titled(page.meta, item, titleOf(), { width, height, paint: both }, ramp(root));
    return { ...made, detail: `${titleOf()} matrix`, says: described() };
  });
}

/** @param {import("./state.js").State} state @returns {Span} */
function windowOf({ r0, r1, c0, c1 }) {
  return { r0, r1, c0, c1 };
}

/** @param {unknown} error */
function reason(error) {
  return error instanceof Error ? error.message : String(error);
}
