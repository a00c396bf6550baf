/** One word in every head of its layer: a strip of its weights for each, to see which head to open. */

import { ramp } from "./colours.js";
import { largest, unsunk } from "./cards.js";
import { errorOf } from "./data.js";
import { bothSides, readingWeights, wordName } from "./readings.js";
import { scaleOf, shareOf } from "./scales.js";
import { element, format, refill, rightToLeft } from "./words.js";

/** Layers of more heads are left to the overview. */
const MOST = 64;
/** Cells of a strip; more words share them, and the largest weight is seen. */
const CELLS = 720;

/**
 * @param {import("./data.js").Page} page
 * @param {import("./attention.js").HeadSource} source
 * @param {(heads: string) => void} choose
 */
export function everyHead(page, source, choose) {
  const title = element("h3");
  const rows = element("div", { class: "strips" });
  const root = element("div", { class: "every", hidden: true }, title, rows);
  const error = errorOf(page.meta);
  let asked = 0;
  let shown = "";

  /**
   * @param {import("./readings.js").Place | null} place
   * @param {{log: boolean, hideSink: boolean}} look
   */
  async function show(place, look) {
    const key = JSON.stringify([place, look.log, look.hideSink, ramp(root).paper]);
    if (key === shown) return;
    const turn = ++asked;
    shown = key;
    const about = place && page.meta.items[place.item].entries[place.entry];
    if (!place || !about || about.heads < 2 || about.heads > MOST) {
      root.hidden = true;
      return;
    }
    const { item, entry, looks, token } = place;
    const both = bothSides(page, item, entry);
    const [from, to] = looks === "at" ? [both.queries, both.keys] : [both.keys, both.queries];
    /** @type {Float32Array[]} */
    const found = [];
    for (let head = 0; head < about.heads; head++) {
      const weights = await readingWeights(await source.open(item, entry, String(head)), both, looks, token);
      if (turn !== asked) return;
      found.push(weights);
    }
    const hide = look.hideSink && looks === "at";
    const all = new Float32Array(found.reduce((sum, { length }) => sum + length, 0));
    found.forEach((weights, head) => all.set(unsunk(weights, hide), head * weights.length));
    const scale = scaleOf(all, look.log, error);
    const name = wordName(from, token + from.shift);
    title.textContent = `${looks === "at" ? "" : "who looks at "}‘${name}’ in every head of ${about.name}`;
    rows.classList.toggle("pictures", to.side.kind === "picture");
    rows.classList.toggle("mirrored", to.side.kind === "text" && rightToLeft(to.units));
    refill(
      rows,
      found.map((weights, head) => {
        const best = largest(weights, 1)[0];
        const most = element("span", { class: "most" }, "nothing");
        if (best !== undefined) {
          most.replaceChildren(element("bdi", {}, wordName(to, best, 14)), ` ${format(weights[best], error)}`);
        }
        const row = element(
          "button",
          {
            type: "button",
            title: "with Shift: the mean of several heads",
            "aria-label": `Head ${head}: most at ${most.textContent}`,
            "aria-pressed": String(place.heads.split(",").includes(String(head))),
          },
          element("span", { class: "which" }, String(head)),
          strip(weights, to, (w) => shareOf(scale, w)),
          most,
        );
        row.addEventListener("click", ({ shiftKey }) => {
          choose(shiftKey ? joinedHeads(place.heads, head) : String(head));
        });
        return row;
      }),
    );
    root.hidden = false;
  }

  /**
   * @param {Float32Array} weights
   * @param {import("./readings.js").Words} to
   * @param {(weight: number) => number} share
   */
  function strip(weights, to, share) {
    const { side } = to;
    const before = side.kind === "picture" ? side.before : to.shift;
    const count = side.kind === "picture" ? side.rows * side.columns : to.count;
    const [width, height] = side.kind === "picture" ? [side.columns, side.rows] : [Math.min(count, CELLS), 1];
    const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { width, height }));
    const brush = canvas.getContext("2d", { willReadFrequently: true });
    if (!brush) return canvas;
    const { rgb } = ramp(root);
    const cells = new Float32Array(width * height);
    for (let n = 0; n < count; n++) {
      const cell = Math.floor((n * cells.length) / count);
      cells[cell] = Math.max(cells[cell], weights[before + n] || 0);
    }
    const picture = brush.createImageData(width, height);
    cells.forEach((weight, n) => {
      const at = 3 * Math.round(255 * share(weight));
      picture.data.set([rgb[at], rgb[at + 1], rgb[at + 2], 255], 4 * n);
    });
    brush.putImageData(picture, 0, 0);
    return canvas;
  }
  return { root, show };
}

/**
 * A set of heads with one more, or one less.
 *
 * @param {string} heads
 * @param {number} head
 */
function joinedHeads(heads, head) {
  const known = /^[\d,]+$/.test(heads) ? heads.split(",").map(Number) : [];
  const next = known.includes(head) ? known.filter((one) => one !== head) : [...known, head];
  return next.length ? next.sort((a, b) => a - b).join(",") : heads;
}
