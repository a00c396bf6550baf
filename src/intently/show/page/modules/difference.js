/** What is pinned as A beside the head that is seen, B, and the difference of their weights. */

import { ramp, rgbOf } from "./colours.js";
import { errorOf, namesOf } from "./data.js";
import { layout, paintNames, widestOf } from "./frame.js";
import { sized } from "./painter.js";
import { headsName } from "./readings.js";
import { pinOf } from "./state.js";
import { element, format, named, orSay, rowName, visible } from "./words.js";

/** Most rows and columns of cells; larger matrices are pooled by their mean. */
const CELLS_SHOWN = 200;
const HIGHEST = 560;
/** From this width on, the two pictures stand beside each other. */
const APART_FROM = 720;

/**
 * Show A and B − A below the matrix, where both are of one size.
 * @param {HTMLElement} root
 * @param {import("./data.js").Page} page
 * @param {import("./state.js").Store} store
 * @param {import("./attention.js").HeadSource} source
 */
export function differenceView(root, page, store, source) {
  const [first, apart] = [figure(), figure()];
  const reading = element("p", { class: "difference-reading", role: "status" });
  const both = element("div", { class: "difference" }, first.root, apart.root);
  const swap = element("button", { type: "button", class: "toggle", "data-do": "swap", title: "See A, and pin B" }, "Swap A, B");
  const whole = element("div", { class: "difference-whole", hidden: true }, both, reading, swap);
  root.append(whole);
  const error = errorOf(page.meta);
  let asked = 0;

  function figure() {
    const canvas = element("canvas", { role: "img" });
    const caption = element("figcaption");
    const legend = element("p", { class: "difference-legend" });
    return { root: element("figure", {}, caption, canvas, legend), canvas, caption, legend };
  }

  /** @param {{item: number, entry: number, heads: string}} of */
  const titleOf = ({ item, entry, heads }) =>
    `${visible(page.meta.items[item].entries[entry].name, 60)} · ${headsName(page, item, entry, heads)}`;

  async function show() {
    const turn = ++asked;
    const state = store.get();
    const a = pinOf(page.meta, state.pin);
    whole.hidden = !a;
    if (!a || !root.clientWidth) return;
    const { item, entry, heads, row, column, r0, r1, c0, c1 } = state;
    const [here, there] = await Promise.all([source.open(item, entry, heads), source.open(a.item, a.entry, a.heads)]);
    if (turn !== asked) return;
    both.hidden = here.t !== there.t || here.s !== there.s;
    if (both.hidden) {
      reading.textContent = `A, ${titleOf(a)}, has ${there.t} × ${there.s} weights, B ${here.t} × ${here.s}: compare them by their words.`;
      return;
    }
    const size = { high: Math.min(CELLS_SHOWN, Math.ceil(r1 - r0)), wide: Math.min(CELLS_SHOWN, Math.ceil(c1 - c0)) };
    const window = /** @type {const} */ ([Math.floor(r0), Math.ceil(r1), Math.floor(c0), Math.ceil(c1), size.high, size.wide]);
    const [b, old] = await Promise.all([here.pooled(...window), there.pooled(...window)]);
    if (turn !== asked) return;
    const span = { r0: window[0], r1: window[1], c0: window[2], c1: window[3] };
    const names = namesOf(page.meta, item, entry);
    const most = Math.max(1e-9, ...Array.from(old, (w) => (w > 0 ? w : 0)));
    const { rgb } = ramp(root);
    draw(first.canvas, span, namesOf(page.meta, a.item, a.entry), size, (n) => {
      const level = 3 * Math.round(255 * Math.max(0, Math.min(1, old[n] / most)));
      return [rgb[level], rgb[level + 1], rgb[level + 2]];
    });
    first.caption.textContent = `A: ${titleOf(a)}`;
    first.canvas.setAttribute("aria-label", `Weights of ${first.caption.textContent}`);
    first.legend.textContent = `0 (light) to ${format(most, error)} (dark)`;
    const far = Math.max(1e-9, ...Array.from(b, (w, n) => Math.abs(w - old[n]) || 0));
    const { blue, accent, paper } = ramp(root);
    const [more, less, none] = [blue, accent, paper].map(rgbOf);
    draw(apart.canvas, span, names, size, (n) => {
      const share = (b[n] - old[n]) / far || 0;
      const [to, by] = [share > 0 ? more : less, Math.abs(share)];
      return none.map((from, i) => Math.round(from + by * (to[i] - from)));
    });
    apart.caption.textContent = `B − A: ${titleOf(state)}, less A`;
    apart.canvas.setAttribute("aria-label", apart.caption.textContent);
    apart.legend.textContent = `white 0; full blue ${format(far, error)} more than in A, full orange ${format(far, error)} less`;
    if (row === null || column === null) {
      reading.textContent = "Choose a cell to read both weights and their difference.";
      return;
    }
    const [one, two] = await Promise.all([here.row(row), there.row(row)]);
    if (turn !== asked) return;
    const by = one[column] - two[column];
    const cell = `‘${rowName(names.rows[row], names.writes?.[row])}’ → ‘${named(names.columns[column])}’`;
    reading.textContent =
      `${cell}: A ${format(two[column], error)}, B ${format(one[column], error)}, ` +
      `difference ${by < 0 ? "−" : "+"}${format(Math.abs(by), error)}`;
  }

  /**
   * Cells under their names, as wide as there is room.
   * @param {HTMLCanvasElement} canvas
   * @param {import("./frame.js").Span} span
   * @param {import("./data.js").Names} names
   * @param {{high: number, wide: number}} size
   * @param {(n: number) => number[]} colourOf
   */
  function draw(canvas, span, names, { high, wide }, colourOf) {
    const width = both.clientWidth;
    const room = width >= APART_FROM ? (width - 24) / 2 : width;
    const widest = { rows: widestOf(names.rows, names.writes), columns: widestOf(names.columns) };
    const sheet = layout(room, HIGHEST, span.r1 - span.r0, span.c1 - span.c0, widest);
    const painter = sized(canvas, sheet.x + sheet.w + 4, sheet.y + sheet.h + 4);
    const data = new Uint8ClampedArray(4 * high * wide);
    for (let n = 0; n < high * wide; n++) data.set([...colourOf(n), 255], 4 * n);
    painter.image({ width: wide, height: high, data }, sheet.x, sheet.y, sheet.w, sheet.h);
    painter.rect(sheet.x, sheet.y, sheet.w, sheet.h, { stroke: ramp(root).frame, width: 1 });
    paintNames(painter, sheet, span, names, ramp(root));
  }

  const again = () => root.clientWidth && void orSay(root, show());
  store.subscribe(again);
  root.closest(".intently")?.addEventListener("colours", again);
  new ResizeObserver(again).observe(root);
}
