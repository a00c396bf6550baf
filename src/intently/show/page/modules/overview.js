/** All heads at a glance: layers down, heads across, or in the order of a statistic. */

import { filtered, sorted, valueOf } from "./choosing.js";
import { ramp } from "./colours.js";
import { errorOf, saidOf } from "./data.js";
import { overviewOf } from "./exact.js";
import { neighbour } from "./keys.js";
import { offerPicture, titled } from "./save.js";
import { announce, element, format, visible } from "./words.js";

/** @typedef {import("./attention.js").HeadSource} HeadSource */
/** @typedef {import("./choosing.js").Place} Place */
/** @typedef {import("./data.js").Entry} Entry */
/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./painter.js").Pixels} Pixels */
/** @typedef {import("./state.js").Store} Store */
/** A head, or the mean of a layer. @typedef {{place: Place, mean: boolean, button: HTMLButtonElement, canvas: HTMLCanvasElement}} Tile */

const TILE = { least: 56, most: 132, large: 300, gap: 8, name: 132 };
const NARROW = 640;
const MEANING =
  "Words under a picture say what a head does in texts of random tokens, measured beside chance: what it looks for.";

/** Rows of tiles that should be seen at once, and what stands above and below them, in pixels. */
const ROWS = 8;
const AROUND_TILES = 260;

/**
 * Show the pictures of all heads of the item; a click opens one.
 * @param {HTMLElement} root
 * @param {Page} page
 * @param {Store} store
 * @param {HeadSource} _heads
 */
export function overviewView(root, page, store, _heads) {
  const { form, sort, turn, filter, count } = controls(page);
  const error = errorOf(page.meta);
  const grid = element("div", { class: "overview-grid" });
  const quoted = element("ul", { class: "overview-said" });
  const scales = element("p", { class: "overview-scales" });
  root.append(form, quoted, grid, scales);
  /** @type {Tile[]} */
  let tiles = [];
  let built = "";
  const near = new IntersectionObserver(
    (seen) => {
      for (const { isIntersecting, target } of seen) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        const tile = tiles.find(({ button }) => button === target);
        if (tile) fill(tile);
      }
    },
    { rootMargin: "300px" },
  );
  const entries = () => page.meta.items[store.get().item].entries;

  /** @param {Tile} tile */
  async function fill({ place, mean, canvas }) {
    const { width, height, data } = await thumbnail(page, store.get().item, place, mean, ramp(root).rgb);
    Object.assign(canvas, { width, height });
    canvas.getContext("2d")?.putImageData(new ImageData(data, width, height), 0, 0);
  }

  const heads = () => tiles.filter(({ mean }) => !mean);

  /** Lay out the heads that pass, in their order. */
  function build() {
    if (!root.clientWidth) return;
    const { item, sort: by, filter: words } = store.get();
    built = [page.edition, item, by, words].join("\n");
    const { places, unknown } = filtered(entries(), words, page.meta.statistics);
    near.disconnect();
    tiles = [];
    grid.style.setProperty("--tile", `${tileSize(root.clientWidth, entries())}px`);
    grid.replaceChildren(...(by ? ranked(sorted(entries(), places, by)) : layered(places)));
    const every = entries().reduce((sum, { heads }) => sum + heads, 0);
    const of = places.length === every ? "" : `${places.length} of `;
    const said = `${of}${every} ${every === 1 ? "head" : "heads"}`;
    const marked = places.some(kindOf);
    scales.textContent = pooledTo(page, entries()) + (marked ? ` ${MEANING}` : "");
    count.textContent = unknown.length ? `‘${visible(unknown[0], 30)}’ is no statistic or layer` : said;
    count.classList.toggle("overview-unknown", unknown.length > 0);
    sort.value = by.replace(/^-/, "");
    turn.hidden = !by;
    turn.textContent = by.startsWith("-") ? "least first ↑" : "most first ↓";
    if (filter.value !== words) filter.value = words;
    quoted.replaceChildren(...highlights());
    quoted.hidden = !quoted.children.length;
    mark();
    for (const { button } of tiles) near.observe(button);
  }

  /** What is said of heads of this item; each opens its head. */
  function highlights() {
    const { item } = store.get();
    const own = (page.meta.highlights ?? []).filter((mark) => mark.item === item);
    return own.map(({ entry, head, text }) => {
      const name = `${visible(entries()[entry].name, 60)}, head ${head}`;
      const click = () => open({ entry, head });
      const button = element("button", { type: "button", class: "overview-open-said", click }, name);
      return element("li", {}, button, element("span", {}, visible(text, 300)));
    });
  }

  /** @param {Place} place */
  function open({ entry, head }) {
    store.set({ entry, heads: String(head), view: "head" }, { push: true });
  }

  /** @param {Place[]} places */
  function ranked(places) {
    if (!places.length) return [element("p", { class: "overview-none" }, "No head passes this filter.")];
    return [element("div", { class: "overview-tiles" }, ...places.map((place) => tileOf(place, true)))];
  }

  /** @param {Place[]} places */
  function layered(places) {
    const found = entries().flatMap((about, entry) => {
      const own = places.filter((place) => place.entry === entry);
      if (!own.length) return [];
      const name = element("h3", { class: "overview-name" }, element("bdi", {}, ...broken(visible(about.name, 60))));
      const tilesOf = own.map((place) => tileOf(place, false));
      if (own.length === about.heads && about.heads > 1) tilesOf.push(meanOf(entry));
      const row = element("div", { class: "overview-tiles" }, ...tilesOf);
      return [element("section", { class: "overview-layer", "aria-label": about.name }, name, row)];
    });
    return found.length ? found : ranked([]);
  }

  /** @param {Place} place @param {boolean} alone whether its layer is not beside it */
  function tileOf(place, alone) {
    const about = entries()[place.entry];
    const by = store.get().sort.replace(/^-/, "");
    const value = by ? valueOf(entries(), place, by) : null;
    const label = element("span", { class: "overview-label" }, alone ? `${layerName(about)} · ${place.head}` : String(place.head));
    const kind = kindOf(place);
    if (kind) label.append(element("span", { class: "overview-pattern" }, ` ${kind}`));
    const button = tile(place, false, told(place), label);
    button.tabIndex = -1;
    if (noteOf(place)) button.firstElementChild?.append(element("span", { class: "overview-mark" }));
    if (by) button.append(element("span", { class: "overview-value" }, value === null ? "–" : format(value, error)));
    button.addEventListener("focus", () => announce(root, told(place)));
    return button;
  }

  /** The mean of all heads of a layer, after them. @param {number} entry */
  function meanOf(entry) {
    const { name, heads: count } = entries()[entry];
    const title = `${visible(name, 80)}, mean of ${count} heads`;
    return tile({ entry, head: 0 }, true, title, element("span", { class: "overview-label" }, "mean"));
  }

  /** @param {Place} place @param {boolean} mean @param {string} title @param {HTMLElement} label */
  function tile(place, mean, title, label) {
    const { t, s } = entries()[place.entry];
    const canvas = element("canvas", { "aria-hidden": "true" });
    canvas.style.aspectRatio = `${Math.max(0.35, Math.min(2.8, s / t))}`;
    const look = { type: "button", class: mean ? "overview-mean" : "overview-tile", title, "aria-label": title };
    const click = () => (mean ? store.set({ entry: place.entry, heads: "mean", view: "head" }, { push: true }) : open(place));
    const button = element("button", { ...look, click }, element("span", { class: "overview-frame" }, canvas), label);
    tiles.push({ place, mean, button, canvas });
    return button;
  }

  /** What a head does, as the table says that the page was given. @param {Place} place */
  function kindOf({ entry, head }) {
    return page.meta.kinds?.[entries()[entry].name]?.[head] ?? "";
  }

  /** @param {Place} place */
  function noteOf({ entry, head }) {
    const text = saidOf(page.meta, store.get().item, entry, String(head));
    return text && visible(text, 300);
  }

  /** A head in words, with its statistics. @param {Place} place */
  function told(place) {
    const about = entries()[place.entry];
    const known = page.meta.statistics.flatMap((name) => {
      const value = valueOf(entries(), place, name);
      return value === null ? [] : [`${name} ${format(value, error)}`];
    });
    const head = `${visible(about.name, 80)}, head ${place.head}`;
    const words = [head, noteOf(place), kindOf(place), known.join(", ")];
    return words.filter(Boolean).join(". ");
  }

  /** Mark the head that is open; it, or the first, is where Tab arrives. */
  function mark() {
    const { entry, heads: chosen } = store.get();
    const current = heads().find(({ place }) => place.entry === entry && String(place.head) === chosen);
    for (const tile of heads()) {
      tile.button.classList.toggle("overview-open", tile === current);
      tile.button.tabIndex = tile === (current ?? heads()[0]) ? 0 : -1;
    }
  }

  grid.addEventListener("keydown", (event) => {
    const buttons = heads().map(({ button }) => button);
    const from = buttons.findIndex((button) => button === document.activeElement || button.matches(":focus"));
    const to = from < 0 || event.ctrlKey || event.metaKey || event.altKey ? null : neighbour(buttons, from, event.key);
    if (to === null) return;
    event.preventDefault();
    event.stopPropagation();
    buttons[from].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  });
  sort.addEventListener("change", () => store.set({ sort: sort.value }, { push: true }));
  turn.addEventListener("click", () => {
    const { sort: by } = store.get();
    store.set({ sort: by.startsWith("-") ? by.slice(1) : `-${by}` }, { push: true });
  });
  filter.addEventListener("input", () => store.set({ filter: filter.value }));
  form.addEventListener("submit", (event) => event.preventDefault());

  store.subscribe((_, changed) => {
    if (!root.clientWidth) return;
    if (["item", "sort", "filter"].some((key) => changed.has(key))) build();
    else if (changed.has("entry") || changed.has("heads")) mark();
  });
  let width = 0;
  new ResizeObserver(() => {
    const { item, sort: by, filter: words } = store.get();
    if (!root.clientWidth) return;
    if (built !== [page.edition, item, by, words].join("\n")) build();
    else if (root.clientWidth !== width) {
      grid.style.setProperty("--tile", `${tileSize(root.clientWidth, entries())}px`);
    }
    width = root.clientWidth;
    mark();
  }).observe(root);
  const whole = root.closest(".intently");
  whole?.addEventListener("colours", () => {
    if (root.clientWidth) tiles.forEach(fill);
  });
  whole?.addEventListener("statistics", build);

  offerPicture(root, async () => {
    const { rgb, paper, ink, quiet, frame, accent } = ramp(root);
    const all = grid.getBoundingClientRect();
    const [left, top] = [TILE.gap + 4 - all.left, TILE.gap - all.top];
    const placed = await Promise.all(
      tiles.map(async ({ place, mean, canvas }) => ({
        pixels: await thumbnail(page, store.get().item, place, mean, rgb),
        box: canvas.getBoundingClientRect(),
        marked: !mean && noteOf(place) !== "",
      })),
    );
    const texts = textsOf(grid);
    const right = Math.max(...placed.map(({ box }) => box.right), ...texts.map((text) => text.right));
    /** @param {import("./painter.js").Painter} painter */
    function paint(painter) {
      for (const { pixels, box, marked } of placed) {
        const [x, y] = [box.left + left, box.top + top];
        painter.image(pixels, x, y, box.width, box.height);
        painter.rect(x, y, box.width, box.height, { stroke: frame, width: 0.7 });
        if (marked) painter.rect(x + box.width - 5, y - 4, 9, 9, { fill: accent, stroke: paper, width: 2 });
      }
      for (const { x, y, text, size, strong } of texts) {
        painter.text(x + left, y + top, text, { fill: strong ? ink : quiet, size });
      }
    }
    const size = { width: right + left + TILE.gap, height: all.height + 2 * TILE.gap };
    return titled(page.meta, store.get().item, "all heads", { ...size, paint }, { paper, ink, quiet });
  });
}

/** The texts of an element and where they stand, to paint them again. @param {Element} root */
function textsOf(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    range.selectNodeContents(node);
    const { left, right, top, height } = range.getBoundingClientRect();
    const parent = /** @type {Element} */ (node.parentElement);
    const size = Number.parseFloat(getComputedStyle(parent).fontSize);
    const strong = parent.classList.contains("overview-value");
    found.push({ x: left, y: top + height / 2, right, text: node.textContent ?? "", size, strong });
  }
  return found;
}

/** @param {Page} page */
function controls(page) {
  const sort = /** @type {HTMLSelectElement} */ (
    element(
      "select",
      { class: "overview-sort" },
      element("option", { value: "" }, "layer and head"),
      ...page.meta.statistics.map((name) => element("option", { value: name }, name.replaceAll("_", " "))),
    )
  );
  const turn = element("button", { type: "button", class: "overview-turn", hidden: true });
  const filter = element("input", {
      class: "overview-filter", type: "search", autocomplete: "off", spellcheck: "false", "aria-keyshortcuts": "/",
      placeholder: page.meta.statistics.includes("induction") ? "induction > 0.3, layer 4" : "entropy < 1, layer 4",
    });
  const count = element("p", { class: "overview-count", role: "status" });
  const form = element(
    "form",
    { class: "overview-controls", role: "search" },
    element("label", {}, element("span", {}, "Sort by"), sort),
    turn,
    element("label", {}, element("span", {}, "Filter"), filter),
    count,
  );
  return { form, sort, turn, filter, count };
}

/**
 * The picture of a head, or of the mean of its layer, from the stored overview.
 * @param {Page} page
 * @param {number} item
 * @param {Place} place
 * @param {boolean} mean
 * @param {Uint8ClampedArray} rgb
 * @returns {Promise<Pixels>}
 */
async function thumbnail(page, item, { entry, head }, mean, rgb) {
  const { overview } = page.meta.items[item].entries[entry];
  const [, height, width] = page.meta.blocks[overview].shape;
  /** @type {import("./data.js").Numbers} */
  let levels = (await page.block(overview)).subarray(head * height * width, (head + 1) * height * width);
  if (mean) {
    const { values } = await overviewOf(page, item, entry, "mean");
    const most = Math.max(1e-9, ...values);
    levels = values.map((value) => Math.round(255 * Math.sqrt(value / most)));
  }
  const data = new Uint8ClampedArray(4 * height * width);
  for (let n = 0; n < levels.length; n++) {
    for (let c = 0; c < 3; c++) data[4 * n + c] = rgb[3 * levels[n] + c];
    data[4 * n + 3] = 255;
  }
  return { width, height, data };
}

/**
 * As large as lets all heads of a layer stand side by side, within limits.
 * @param {number} width
 * @param {Entry[]} entries
 */
function tileSize(width, entries) {
  const most = Math.max(1, ...entries.map(({ heads }) => heads + (heads > 1 ? 1 : 0)));
  const room = width - (width < NARROW ? 0 : TILE.name) + TILE.gap;
  const fitting = Math.max(1, Math.floor(room / (TILE.least + TILE.gap)));
  const across = Math.min(most, fitting);
  const rows = Math.min(ROWS, entries.length);
  const high = Math.floor((innerHeight - AROUND_TILES) / rows) - 3 * TILE.gap;
  const largest = Math.max(TILE.most, Math.min(TILE.large, high));
  return Math.min(largest, Math.floor(room / across) - TILE.gap);
}

/** A name of a module that may break after its dots and underscores. @param {string} name */
function broken(name) {
  return name.split(/(?<=[._])/u).flatMap((part) => [part, element("wbr")]);
}

/**
 * What a cell of the pictures shows, in words: where weights share one, their mean.
 * @param {Page} page
 * @param {Entry[]} entries
 */
function pooledTo({ meta }, entries) {
  const most = Math.max(...entries.flatMap(({ t, s, overview }) => {
    const [, h, w] = meta.blocks[overview].shape;
    return [t / h, s / w];
  }));
  const cells = most > 1 ? `; a cell is the mean of up to ${Math.ceil(most)} × ${Math.ceil(most)} weights` : "";
  const some = meta.sampled ? "; of long texts, queries are sampled" : "";
  return `Each picture is shaded by the square root of its weights, scaled to its own largest cell${cells}${some}.`;
}

/** The end of a name that tells layers apart. @param {Entry} about */
function layerName({ name, layer }) {
  const parts = name.split(".");
  const at = parts.findLastIndex((part) => /^\d+/.test(part));
  const kind = at > 0 && name.length <= 26 ? parts.slice(Math.max(0, at - 1)).join(".") : `layer ${layer}`;
  return visible(parts.length <= 2 && name.length <= 22 ? name : kind, 26);
}
