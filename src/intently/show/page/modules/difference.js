/** A second head beside the one that is seen, and the difference of the two. */

import { ramp } from "./colours.js";
import { errorOf, namesOf } from "./data.js";
import { layout, paintNames, widestOf } from "./frame.js";
import { canvasPainter } from "./painter.js";
import { headChoices, headsName } from "./readings.js";
import { element, format, named, orSay, rowName, visible } from "./words.js";

/** Most rows and columns of cells; larger matrices are pooled by their mean. */
const CELLS_SHOWN = 200;
const HIGHEST = 560;
/** From this width on, the two pictures stand beside each other. */
const APART_FROM = 720;

/**
 * Show what the state names as `against` below the matrix: "entry.heads" of the same size.
 * @param {HTMLElement} root
 * @param {import("./data.js").Page} page
 * @param {import("./state.js").Store} store
 * @param {import("./attention.js").HeadSource} source
 */
export function differenceView(root, page, store, source) {
  const pick = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Compare with another head" }));
  const label = element("label", { class: "against-pick" }, element("span", {}, "Compare with"), pick);
  const [other, apart] = [figure(), figure()];
  const reading = element("p", { class: "against-reading", role: "status" });
  const both = element("div", { class: "against" }, other.root, apart.root);
  root.append(element("div", { class: "against-whole" }, label, both, reading));
  const error = errorOf(page.meta);
  let asked = 0;
  let filled = "";

  function figure() {
    const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img" }));
    const caption = element("figcaption");
    const legend = element("p", { class: "against-legend" });
    return { root: element("figure", {}, caption, canvas, legend), canvas, caption, legend };
  }

  /** @param {number} entry @param {string} heads */
  const titleOf = (entry, heads) =>
    `${visible(page.meta.items[store.get().item].entries[entry].name, 60)} · ${headsName(page, store.get().item, entry, heads)}`;

  /** Offer every head of the same size but the one that is seen. */
  function offer() {
    const { item, entry, heads, against } = store.get();
    const { entries } = page.meta.items[item];
    const own = entries[entry];
    const alike = entries.flatMap(({ t, s }, n) => {
      if (t !== own.t || s !== own.s) return [];
      return headChoices(entries, n).map((head) => `${n}.${head}`).filter((value) => value !== `${entry}.${heads}`);
    });
    const key = [page.edition, item, ...alike].join();
    if (key !== filled) {
      filled = key;
      const options = alike.map((value) => element("option", { value }, titleOf(...partsOf(value))));
      pick.replaceChildren(element("option", { value: "" }, "no other head"), ...options);
    }
    label.hidden = !alike.length;
    pick.value = against ?? "";
  }

  async function show() {
    const turn = ++asked;
    offer();
    const { item, entry, heads, against, r0, r1, c0, c1 } = store.get();
    both.hidden = reading.hidden = !against;
    if (!against || !root.clientWidth) return;
    const [otherEntry, otherHeads] = partsOf(against);
    const [here, there] = await Promise.all([source.open(item, entry, heads), source.open(item, otherEntry, otherHeads)]);
    const size = { high: Math.min(CELLS_SHOWN, Math.ceil(r1 - r0)), wide: Math.min(CELLS_SHOWN, Math.ceil(c1 - c0)) };
    const window = /** @type {const} */ ([Math.floor(r0), Math.ceil(r1), Math.floor(c0), Math.ceil(c1), size.high, size.wide]);
    const [a, b] = await Promise.all([here.pooled(...window), there.pooled(...window)]);
    if (turn !== asked) return;
    const span = { r0: window[0], r1: window[1], c0: window[2], c1: window[3] };
    const names = namesOf(page.meta, item, entry);
    const title = titleOf(otherEntry, otherHeads);
    const most = Math.max(1e-9, ...Array.from(b, (w) => (w > 0 ? w : 0)));
    const { rgb } = ramp(root);
    draw(other.canvas, span, names, size, (n) => {
      const level = 3 * Math.round(255 * Math.max(0, Math.min(1, b[n] / most)));
      return [rgb[level], rgb[level + 1], rgb[level + 2]];
    });
    other.caption.textContent = title;
    other.canvas.setAttribute("aria-label", `Weights of ${title}`);
    other.legend.textContent = `0 (light) to ${format(most, error)} (dark)`;
    const far = Math.max(1e-9, ...Array.from(a, (w, n) => Math.abs(w - b[n]) || 0));
    const [more, less, none] = ["blue", "accent", "paper"].map((name) => partsOfColour(root, name));
    draw(apart.canvas, span, names, size, (n) => {
      const share = (a[n] - b[n]) / far || 0;
      const [to, by] = [share > 0 ? more : less, Math.abs(share)];
      return none.map((from, i) => Math.round(from + by * (to[i] - from)));
    });
    apart.caption.textContent = `difference: ${titleOf(entry, heads)}, less ${title}`;
    apart.canvas.setAttribute("aria-label", apart.caption.textContent);
    apart.legend.textContent = `white 0; full blue ${format(far, error)} more than there, full orange ${format(far, error)} less`;
    const { row, column } = store.get();
    if (row === null || column === null) {
      reading.textContent = "Choose a cell to read both weights and their difference.";
      return;
    }
    const [one, two] = await Promise.all([here.row(row), there.row(row)]);
    if (turn !== asked) return;
    const by = one[column] - two[column];
    const cell = `‘${rowName(names.rows[row], names.writes?.[row])}’ → ‘${named(names.columns[column])}’`;
    reading.textContent =
      `${cell}: ${format(one[column], error)} here, ${format(two[column], error)} there, ` +
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
    const [across, down] = [sheet.x + sheet.w + 4, sheet.y + sheet.h + 4];
    const sharp = devicePixelRatio || 1;
    canvas.width = Math.round(across * sharp);
    canvas.height = Math.round(down * sharp);
    Object.assign(canvas.style, { width: `${across}px`, height: `${down}px` });
    const context = canvas.getContext("2d");
    if (!context) return;
    context.scale(sharp, sharp);
    const painter = canvasPainter(context);
    const data = new Uint8ClampedArray(4 * high * wide);
    for (let n = 0; n < high * wide; n++) data.set([...colourOf(n), 255], 4 * n);
    painter.image({ width: wide, height: high, data }, sheet.x, sheet.y, sheet.w, sheet.h);
    painter.rect(sheet.x, sheet.y, sheet.w, sheet.h, { stroke: ramp(root).frame, width: 1 });
    paintNames(painter, sheet, span, names, ramp(root));
  }

  pick.addEventListener("change", () => store.set({ against: pick.value || null }, { push: true }));
  const again = () => root.clientWidth && void orSay(root, show());
  store.subscribe(again);
  root.closest(".intently")?.addEventListener("colours", again);
  new ResizeObserver(again).observe(root);
}

/** An entry and its heads, of "3.mean". @param {string} against @returns {[number, string]} */
function partsOf(against) {
  const at = against.indexOf(".");
  return [Number(against.slice(0, at)), against.slice(at + 1)];
}

/** Red, green and blue of a colour of the style. @param {Element} root @param {string} name */
function partsOfColour(root, name) {
  const text = getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}
