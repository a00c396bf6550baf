/** Queries on the left, keys on the right, and between them lines as wide as the weights. */

import { ramp } from "./colours.js";
import { errorOf } from "./data.js";
import { canvasPainter } from "./painter.js";
import { bothSides, headsName, wordName } from "./readings.js";
import { offerPicture } from "./save.js";
import { scaleOf, shareOf } from "./scales.js";
import { paintsItself, seenOf } from "./snapshot.js";
import { paintStubs, restOf, stubsOf } from "./stubs.js";
import { tokenPanel } from "./tokens.js";
import { announce, digitsOf, element, format, orSay } from "./words.js";

/** Words of each side that stand below each other at most. */
const SIDE_WORDS = 80;
/** Letters of what a row reads and writes. */
const ROW_LETTERS = 14;
const LINE_STEP = 26;
const LINE_WIDEST = 7;
/** Lines that take less of the scale are left out. */
const LINE_LEAST = 0.02;
/** Where a curve begins to turn, as a share of its way. */
const BEND = 0.45;



/**
 * @param {HTMLElement} section
 * @param {import("./data.js").Page} page
 * @param {import("./state.js").Store} store
 * @param {import("./attention.js").HeadSource} source
 */
export function linesView(section, page, store, source) {
  const title = element("h2");
  const under = element("p", { class: "under" });
  const left = element("div", { class: "column queries" });
  const all = /** @type {HTMLCanvasElement} */ (element("canvas"));
  const some = /** @type {HTMLCanvasElement} */ (element("canvas"));
  const middle = element("div", { class: "between", "aria-hidden": "true" }, all, some);
  const right = element("div", { class: "column" });
  const above = [element("h3", { class: "queries" }, "Queries"), element("span"), element("h3", {}, "Keys")];
  const board = element("div", { class: "board" }, ...above, left, middle, right);
  section.append(element("div", { class: "heading" }, element("div", {}, title, under)), board);

  /** @type {{queries: import("./tokens.js").Panel, keys: import("./tokens.js").Panel} | null} */
  let panels = null;
  /** @type {import("./stubs.js").Line[]} */
  let lines = [];
  /** @type {import("./stubs.js").Line[]} */
  let chosenLines = [];
  /** @type {import("./scales.js").Scale} */
  let scale = { log: false, low: 0, high: 1, beyond: false };
  const error = errorOf(page.meta);
  /** @type {import("./attention.js").Head | null} */
  let opened = null;
  /** @type {import("./stubs.js").Rest} */
  let rest = { query: new Float32Array(0), key: null, word: "" };
  /** @type {[number, number]} */
  let from = [0, 0];
  /** @type {{looks: string, token: number} | null} */
  let pointed = null;
  let asked = 0;

  /**
   * The words of a side that stand there, around the chosen one where there are too many.
   *
   * @param {import("./readings.js").Words} words
   * @param {number | null} chosen
   */
  function stretch(words, chosen) {
    const start = Math.max(0, Math.min((chosen ?? 0) - SIDE_WORDS / 2, words.count - SIDE_WORDS));
    const [first, last] = [words.shift + start, words.shift + Math.min(words.count, start + SIDE_WORDS)];
    const units = words.units.slice(first, last).map((unit, n) => (words.writes ? wordName(words, first + n, ROW_LETTERS) : unit));
    return { start, words: { ...words, units, count: units.length, shift: 0, produced: Infinity, writes: null } };
  }

  async function show() {
    const turn = ++asked;
    const state = store.get();
    const { item, entry, heads } = state;
    const about = page.meta.items[item].entries[entry];
    const both = bothSides(page, item, entry);
    const [queries, keys] = [stretch(both.queries, state.row), stretch(both.keys, state.column ?? state.row)];
    const head = await source.open(item, entry, heads);
    const [t, s] = [queries.words.units.length, keys.words.units.length];
    const weights = await head.tile(queries.start, queries.start + t, keys.start, keys.start + s);
    if (turn !== asked) return;
    opened = head;
    from = [queries.start, keys.start];
    const hear = (/** @type {"at" | "from"} */ looks, /** @type {number} */ first) => ({
      point(/** @type {number | null} */ unit) {
        pointed = unit === null ? null : { looks, token: unit + first };
        light();
      },
      pick(/** @type {number} */ unit) {
        const now = store.get();
        const which = looks === "at" ? "row" : "column";
        pointed = null;
        store.set({ looks, [which]: now.looks === looks && now[which] === unit + first ? null : unit + first });
      },
    });
    panels = {
      queries: tokenPanel(queries.words, "Queries", hear("at", queries.start)),
      keys: tokenPanel(keys.words, "Keys", hear("from", keys.start)),
    };
    left.replaceChildren(panels.queries.root);
    right.replaceChildren(panels.keys.root);
    const hidden = state.sink === "hide" && keys.start === 0;
    scale = scaleOf(hidden ? weights.filter((_, n) => n % s !== 0) : weights, state.scale === "log", error);
    lines = [];
    for (let i = 0; i < t; i++) {
      for (let j = hidden ? 1 : 0; j < s; j++) {
        const w = weights[i * s + j];
        const share = shareOf(scale, w);
        if (share < LINE_LEAST) continue;
        lines.push({ i: i + from[0], j: j + from[1], w, share });
      }
    }
    lines.sort((a, b) => a.share - b.share);
    const longest = Math.max(both.queries.count, both.keys.count);
    title.textContent = longest > SIDE_WORDS ? `${SIDE_WORDS} words around the chosen one` : "All weights as lines";
    under.textContent = `${about.name} · ${headsName(page, item, entry, heads)}`;
    rest = { query: new Float32Array(0), key: null, word: longest > SIDE_WORDS ? "outside" : "not drawn" };
    place();
    light();
    const query = await restOf(head, queries.start, t, lines);
    if (turn !== asked) return;
    rest = { ...rest, query };
    const most = Math.max(0, ...query);
    if (most >= 10 ** -digitsOf(error)) {
      const where = rest.word === "outside" ? "is on words outside this range" : "is too small for lines, or hidden";
      under.textContent += ` · up to ${format(most, error)} of the weight of a word ${where}`;
    }
    place();
    light();
  }

  /** Lay the lines from word to word. */
  function place() {
    if (!panels) return;
    const words = [panels.queries, panels.keys].map(({ list }) => list.querySelectorAll(".word").length);
    middle.style.height = `${Math.max(...words) * LINE_STEP}px`;
    stroke(all, lines, (share) => 0.12 + 0.7 * share);
    stroke(some, chosenLines, () => 0.95);
  }

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {import("./stubs.js").Line[]} which
   * @param {(share: number) => number} strength
   */
  function stroke(canvas, which, strength) {
    const { clientWidth: width, clientHeight: height } = middle;
    const sharp = Math.min(devicePixelRatio || 1, 2);
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    const brush = canvas.getContext("2d");
    if (!brush || !width) return;
    brush.scale(sharp, sharp);
    brush.strokeStyle = getComputedStyle(middle).color;
    for (const line of which) {
      const [y0, y1] = ends(line);
      brush.beginPath();
      brush.moveTo(0, y0);
      brush.bezierCurveTo(BEND * width, y0, (1 - BEND) * width, y1, width, y1);
      brush.globalAlpha = strength(line.share);
      brush.lineWidth = Math.max(0.6, LINE_WIDEST * line.share);
      brush.stroke();
    }
    const now = which === chosenLines ? chosenNow() : null;
    if (which === chosenLines && !now) return;
    brush.globalAlpha = now ? 1 : 0.7;
    paintStubs(canvasPainter(brush), stubsOf(rest, now, from, error), sheetAt(0, 0, width), inks());
  }

  /** The word that is pointed at, or chosen. */
  function chosenNow() {
    const { looks, row, column } = store.get();
    const chosen = looks === "at" ? row : column;
    return pointed ?? (chosen === null ? null : { looks, token: chosen });
  }

  /** @param {number} x @param {number} y @param {number} width */
  function sheetAt(x, y, width) {
    return { x, y, width, step: LINE_STEP, widest: LINE_WIDEST };
  }

  function inks() {
    const { ink, paper } = ramp(section);
    return { line: getComputedStyle(middle).color, ink, paper };
  }

  /** Learn what other queries than those that are drawn weigh on a key. @param {number} token */
  async function learnKey(token) {
    const [head, turn] = [opened, asked];
    if (!head || rest.key?.token === token) return;
    const column = await head.column(token);
    if (turn !== asked) return;
    const drawn = lines.reduce((sum, { j, w }) => sum + (j === token ? w : 0), 0);
    const all = column.reduce((sum, w) => sum + (w > 0 ? w : 0), 0);
    rest = { ...rest, key: { token, rest: Math.max(0, all - drawn) } };
    stroke(some, chosenLines, () => 0.95);
  }

  /** @param {import("./stubs.js").Line} line */
  function ends({ i, j }) {
    return [(i - from[0] + 0.5) * LINE_STEP, (j - from[1] + 0.5) * LINE_STEP];
  }

  /** Bring out the lines of the word that is pointed at or chosen. */
  function light() {
    if (!panels) return;
    const state = store.get();
    const now = chosenNow();
    const own = now && (now.looks === "at" ? panels.queries : panels.keys);
    const first = now?.looks === "at" ? from[0] : from[1];
    for (const panel of [panels.queries, panels.keys]) {
      for (const kind of ["anchor", "pinned"]) panel.mark(kind, []);
      panel.paint(null, () => 0);
    }
    own?.mark(pointed ? "anchor" : "pinned", now ? [now.token - first] : []);
    const shown = new Float32Array(2 * SIDE_WORDS).fill(NaN);
    chosenLines = now ? lines.filter(({ i, j }) => (now.looks === "at" ? i : j) === now.token) : [];
    for (const { i, j, w } of chosenLines) shown[now?.looks === "at" ? j - from[1] : i - from[0]] = w;
    all.style.opacity = now ? "0.12" : "1";
    stroke(some, chosenLines, () => 0.95);
    const best = chosenLines.at(-1);
    if (!now) return;
    if (now.looks === "from") void orSay(section, learnKey(now.token));
    (now.looks === "at" ? panels.keys : panels.queries).paint(shown, (w) => shareOf(scale, w));
    if (best) {
      const { queries, keys } = bothSides(page, state.item, state.entry);
      const [query, key] = [wordName(queries, best.i + queries.shift), wordName(keys, best.j + keys.shift)];
      announce(section, `query ‘${query}’ → key ‘${key}’: ${format(best.w, error)}`);
    }
  }

  store.subscribe((_, changed) => {
    if (section.hidden) return;
    if (["item", "entry", "heads"].some((key) => changed.has(key))) pointed = null;
    const again = ["view", "item", "entry", "heads", "scale", "sink"].some((key) => changed.has(key));
    if (again) void orSay(section, show());
    else if (["row", "column", "looks"].some((key) => changed.has(key))) light();
  });
  section.closest(".intently")?.addEventListener("colours", () => {
    if (section.hidden) return;
    place();
    light();
  });
  new ResizeObserver(() => !section.hidden && place()).observe(board);
  offerPicture(section, () => {
    const { item, entry, heads } = store.get();
    const { name, entries } = page.meta.items[item];
    const detail = `${entries[entry].name} · ${headsName(page, item, entry, heads)} lines`;
    return { name, detail, says: `${title.textContent}: ${under.textContent}`, ...seenOf(section) };
  });
  paintsItself(middle, (painter, { x, y, width }) => {
    const colour = getComputedStyle(middle).color.match(/[\d.]+/g)?.slice(0, 3).join(", ");
    const faint = chosenLines.length ? 0.12 : 1;
    const strokes = [
      ...lines.map((line) => ({ line, strength: faint * (0.12 + 0.7 * line.share) })),
      ...chosenLines.map((line) => ({ line, strength: 0.95 })),
    ];
    for (const { line, strength } of strokes) {
      const [y0, y1] = ends(line);
      const how = { stroke: `rgba(${colour}, ${strength.toFixed(3)})`, width: Math.max(0.6, LINE_WIDEST * line.share) };
      painter.line(bent(x, y + y0, x + width, y + y1), how);
    }
    paintStubs(painter, stubsOf(rest, chosenNow(), from, error), sheetAt(x, y, width), inks());
  });
  if (!section.hidden) void orSay(section, show());
}

/**
 * Points of the curve that a line follows (a cubic with level ends).
 *
 * @param {number} x0
 * @param {number} y0
 * @param {number} x1
 * @param {number} y1
 */
function bent(x0, y0, x1, y1) {
  return Array.from({ length: 25 }, (_, n) => {
    const u = n / 24;
    const [a, b, c, d] = [(1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u * u * (1 - u), u ** 3];
    const x = a * x0 + b * (x0 + BEND * (x1 - x0)) + c * (x1 - BEND * (x1 - x0)) + d * x1;
    return [x, (a + b) * y0 + (c + d) * y1];
  });
}
