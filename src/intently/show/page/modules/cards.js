/** A card shows one reading: the words or patches, shaded, and those that weigh most as a list. */

import { shade } from "./colours.js";
import { errorOf, saidOf } from "./data.js";
import { bothSides, headsName, readingWeights, stretchOf, wordName } from "./readings.js";
import { picturePanel } from "./picture.js";
import { largest, scaleOf, shareOf, ticksOf } from "./scales.js";
import { threadsUnder } from "./threads.js";
import { tokenPanel } from "./tokens.js";
import { barLine, digitsOf, element, format, refill, visible } from "./words.js";

/** @typedef {import("./readings.js").Place} Place */
/** @typedef {import("./tokens.js").Panel} Panel */
/**
 * @typedef {{
 *   point: (looks: "at" | "from", token: number | null) => void,
 *   pick: (looks: "at" | "from", token: number, extend: boolean) => void,
 *   brush: (looks: "at" | "from", first: number, last: number) => void,
 *   partner: (token: number) => void
 * }} CardHears what is done to a word: pointed at, chosen, or chosen from the list
 * @typedef {{log: boolean, hideSink: boolean, partner: number | null, pinned: boolean}} Look
 * @typedef {{place: Place, both: import("./readings.js").Both, weights: Float32Array, name: string}} Shown
 * @typedef {{
 *   root: HTMLElement, buttons: HTMLElement,
 *   read: (place: Place, look: Look) => Promise<Shown | null>,
 *   rest: (item: number, entry: number, heads: string, look: Look) => Promise<void>,
 *   repaint: () => void
 * }} Card read: null where another reading was asked for meanwhile; rest: no word is chosen
 */

const TOPMOST = 8;
/** A row of which more than this is missing has a sink, which is no key. */
const WHOLE = 0.02;
/** Threads of one word; texts of more words have none, and of more on a side none but those of one word. */
const THREADS = 40;
const THREADED = 400;
const ALL_THREADS = 80;
/** Threads that take less of the scale are left out. */
const LEAST_SHARE = 0.02;
/** In texts of more words, those of the list have their position, from 0, beside them. */
const COUNTED_FROM = 48;

/**
 * @param {import("./data.js").Page} page
 * @param {import("./attention.js").HeadSource} source
 * @param {CardHears | null} hears null: the card is only looked at
 * @returns {Card}
 */
export function readingCard(page, source, hears) {
  const title = element("h2");
  const under = element("p", { class: "under" });
  const measured = element("p", { class: "measured", hidden: true });
  const panels = element("div", { class: "panels" });
  const threads = threadsUnder(panels);
  const listed = element("ol", { class: "top", "aria-label": "Largest weights" });
  const numbers = element("p", { class: "numbers" });
  const legend = element("div", { class: "legend", "aria-hidden": "true" });
  const aside = element("aside", {}, listed, numbers, legend);
  const buttons = element("div", { class: "buttons" });
  const heading = element("div", { class: "heading" }, element("div", {}, title, under, measured), buttons);
  const root = element("article", { class: "card" }, heading, element("div", { class: "body" }, panels, aside));

  const error = errorOf(page.meta);
  let key = "";
  let asked = 0;
  let listAgain = () => {};
  /** @type {import("./readings.js").Both} */
  let both;
  /** @type {Panel} */
  let keysPanel;
  /** @type {Panel} */
  let queriesPanel;

  /** @param {number} item @param {number} entry @param {string} heads */
  function set(item, entry, heads) {
    const about = page.meta.items[item].entries[entry];
    under.textContent = `${about.name} · ${headsName(page, item, entry, heads)}`;
    if (page.meta.items.length > 1) under.textContent += ` · ${visible(page.meta.items[item].name, 60)}`;
    measured.textContent = saidOf(page.meta, item, entry, heads);
    measured.hidden = !measured.textContent;
    const next = `${page.edition}.${item}.${about.rows}.${about.columns}.${about.t}.${about.s}.${about.row_labels}`;
    both = bothSides(page, item, entry);
    if (next === key) return;
    key = next;
    build(about.kind === "cross");
  }

  /** @param {boolean} cross */
  function build(cross) {
    const own = () => /** @type {"at" | "from"} */ (root.dataset.looks ?? "at");
    const makePanel = (/** @type {"keys" | "queries"} */ which, /** @type {string} */ label) => {
      const words = both[which];
      const token = (/** @type {number} */ unit) => {
        const looks = both.same ? own() : which === "keys" ? "from" : "at";
        const shift = looks === "at" ? both.queries.shift : both.keys.shift;
        const found = unit - shift;
        const count = looks === "at" ? both.queries.count : both.keys.count;
        return /** @type {const} */ ([looks, found >= 0 && found < count ? found : null]);
      };
      const make = words.side.kind === "picture" ? picturePanel : tokenPanel;
      return make(words, label, {
        point: (unit) => hears?.point(...(unit === null ? /** @type {const} */ ([own(), null]) : token(unit))),
        pick(unit, extend = false) {
          const [looks, found] = token(unit);
          if (found !== null) hears?.pick(looks, found, extend);
        },
        brush(first, last) {
          const [[looks, from], [, to]] = [token(first), token(last)];
          if (from !== null && to !== null) hears?.brush(looks, from, to);
        },
      });
    };
    keysPanel = makePanel("keys", cross ? "Source" : "Text");
    queriesPanel = both.same ? keysPanel : makePanel("queries", "Target");
    if (!hears) {
      for (const { root: own } of [keysPanel, queriesPanel]) {
        for (const part of [own, ...own.querySelectorAll("[data-keys], [tabindex], button")]) {
          part.removeAttribute("data-keys");
          part.setAttribute("tabindex", "-1");
        }
      }
    }
    panels.replaceChildren(threads.root);
    panels.classList.toggle("two", !both.same);
    if (both.same) panels.append(keysPanel.root);
    else {
      for (const [panel, name] of /** @type {const} */ ([
        [keysPanel, cross ? "Source (keys)" : "Keys"],
        [queriesPanel, cross ? "Target (queries)" : "Queries"],
      ])) {
        panels.append(element("div", { class: "side" }, element("h3", {}, name), panel.root));
      }
    }
  }

  /** @type {Card["rest"]} */
  async function rest(item, entry, heads, look) {
    const turn = ++asked;
    set(item, entry, heads);
    const head = await source.open(item, entry, heads);
    const received = await head.received();
    if (turn !== asked) return;
    const weights = new Float32Array(both.keys.units.length).fill(NaN);
    weights.set(received.subarray(0, weights.length));
    unmark();
    if (!both.same) queriesPanel.paint(null, () => 0);
    const scale = scaleOf(unsunk(weights, look.hideSink), look.log, error);
    keysPanel.paint(weights, (w) => shareOf(scale, w));
    threads.show([]);
    void allThreads(head, look, turn);
    const each = both.keys.side.kind === "picture" ? "patch" : "word";
    title.textContent = `How much each ${each} is looked at`;
    listAgain = () => list(weights, both.keys, scale, { ...look, partner: null }, false);
    listAgain();
    const how = `Point at a ${each} to see what it looks at; a click, or the arrow keys and Enter, hold it.`;
    numbers.replaceChildren("summed over all queries. ", element("span", { class: "how" }, how));
  }

  /**
   * Every thread between two short texts, while no word is chosen.
   * @param {import("./attention.js").Head} head
   * @param {Look} look
   * @param {number} turn
   */
  async function allThreads({ t, s, tile }, look, turn) {
    if (both.same || Math.max(t, s) > ALL_THREADS || panels.querySelector(".picture")) return;
    const weights = await tile(0, t, 0, s);
    if (turn !== asked) return;
    const kept = weights.map((w, n) => (look.hideSink && n % s === 0 ? 0 : w));
    const scale = scaleOf(kept, look.log, error);
    threads.show(
      Array.from(kept, (w, n) => threadOf(queriesPanel, Math.floor(n / s) + both.queries.shift, keysPanel, (n % s) + both.keys.shift, shareOf(scale, w)))
        .flatMap((thread) => thread ?? []),
      0.7,
    );
  }

  /** @type {Card["read"]} */
  async function read(place, look) {
    const turn = ++asked;
    const { item, entry, heads, looks, token, through = null } = place;
    const stretch = stretchOf(token, through);
    set(item, entry, heads);
    root.dataset.looks = looks;
    const head = await source.open(item, entry, heads);
    const weights = await readingWeights(head, both, looks, token, through);
    if (turn !== asked) return null;
    const [from, to] = looks === "at" ? [both.queries, both.keys] : [both.keys, both.queries];
    const [fromPanel, toPanel] = looks === "at" ? [queriesPanel, keysPanel] : [keysPanel, queriesPanel];
    const scale = scaleOf(unsunk(weights, look.hideSink && looks === "at"), look.log, error);
    if (fromPanel !== toPanel) fromPanel.paint(null, () => 0);
    toPanel.paint(weights, (w) => shareOf(scale, w));
    unmark();
    fromPanel.mark(look.pinned ? "pinned" : "anchor", stretch.map((n) => n + from.shift));
    const middle = stretch[Math.floor(stretch.length / 2)] + from.shift;
    const long = Math.max(from.units.length, to.units.length) > THREADED;
    const most = long ? [] : largest(unsunk(weights, look.hideSink && looks === "at"), THREADS);
    threads.show(most.flatMap((n) => threadOf(fromPanel, middle, toPanel, n, shareOf(scale, weights[n])) ?? []));
    if (look.partner !== null) toPanel.mark("partner", [look.partner + to.shift]);
    const next = token + from.shift + 1;
    if (looks === "at" && from.writes && from.units[next] === from.writes[token]) {
      fromPanel.mark("writes", [next]);
    }
    const ends = [stretch[0], stretch[stretch.length - 1]].map((n) => wordName(from, n + from.shift));
    const name = stretch.length > 1 ? `${ends[0]} … ${ends[1]}` : ends[0];
    const cross = page.meta.items[item].entries[entry].kind === "cross";
    title.replaceChildren(
      ...(looks === "at"
        ? [quoted(name), stretch.length > 1 ? " look at" : cross ? " looked at" : " looks at"]
        : ["who looks at ", quoted(name)]),
      stretch.length > 1 ? `, mean of ${stretch.length} tokens` : "",
    );
    listAgain = () => list(weights, to, scale, look);
    listAgain();
    say(weights, looks, to.count);
    return { place, both, weights, name };
  }

  /** @param {string} text */
  function quoted(text) {
    return element("bdi", {}, `‘${text}’`);
  }

  function unmark() {
    for (const panel of new Set([keysPanel, queriesPanel])) {
      for (const kind of ["anchor", "pinned", "writes", "partner"]) panel.mark(kind, []);
    }
  }

  /**
   * @param {Float32Array} weights
   * @param {import("./readings.js").Words} to
   * @param {import("./scales.js").Scale} scale
   * @param {Look} look
   * @param {boolean} chosen
   */
  function list(weights, to, scale, look, chosen = true) {
    const least = Math.max(0.0005, 10 ** -digitsOf(error));
    const order = largest(weights, TOPMOST).filter((n, at) => !at || weights[n] >= least);
    const top = Math.max(...order.map((n) => weights[n]), 1e-12);
    refill(
      listed,
      order.map((n) => {
        const counted = to.side.kind === "text" && to.units.length > COUNTED_FROM;
        const place = counted ? String(n - to.shift) : "";
        const row = barLine(wordName(to, n, 18), place, weights[n] / top, format(weights[n], error));
        const bar = /** @type {HTMLElement} */ (row[1].firstElementChild);
        bar.style.backgroundColor = shade(root, 0.35 + 0.5 * shareOf(scale, weights[n]));
        const made = hears && chosen
          ? element("button", { type: "button", click: () => hears.partner(n - to.shift) }, ...row)
          : element("span", { class: "line" }, ...row);
        if (look.partner === n - to.shift) made.setAttribute("aria-pressed", "true");
        return element("li", {}, made);
      }).concat(others(weights, order, to)),
    );
    const ends = ticksOf(scale);
    const ground = element("span", { class: "ramp" });
    const stops = Array.from({ length: 9 }, (_, n) => shade(root, n / 8));
    ground.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    const sign = scale.beyond ? "≥ " : "";
    legend.replaceChildren(
      element("span", {}, format(ends[0].value, error)),
      ground,
      element("span", {}, sign + format(ends[ends.length - 1].value, error)),
      element("span", { class: "unit" }, (chosen ? "weight" : "received") + (scale.log ? ", by decades" : "")),
    );
  }

  /** @param {Float32Array} weights @param {"at" | "from"} looks @param {number} count */
  function say(weights, looks, count) {
    let sum = 0;
    let entropy = 0;
    for (const w of weights) {
      if (!(w > 0)) continue;
      sum += w;
      entropy -= w * Math.log(w);
    }
    const sunk = sum > 0 && sum < 1 - WHOLE ? `; ${format(1 - sum, error)} of the weight lies on no key` : "";
    numbers.textContent =
      looks === "at"
        ? `entropy ${entropy.toFixed(2)} nats of at most ${Math.log(count).toFixed(2)}${sunk}`
        : `in all ${format(sum, error)} of the weight of ${count} ${count === 1 ? "query" : "queries"}`;
  }

  /**
   * A line for what all others weigh together, so that the list adds up.
   * @param {Float32Array} weights
   * @param {number[]} listed
   * @param {import("./readings.js").Words} to
   */
  function others(weights, listed, to) {
    let [rest, count] = [0, 0];
    weights.forEach((weight, n) => {
      if (!(weight > 0) || listed.includes(n)) return;
      rest += weight;
      count++;
    });
    if (rest < 10 ** -digitsOf(error)) return [];
    const each = to.side.kind === "picture" ? "patches" : "words";
    const name = count === 1 ? "one more" : `${count.toLocaleString("en")} more ${each}`;
    return [element("li", {}, element("span", { class: "line others" }, ...barLine(name, "", 0, `+${format(rest, error)}`)))];
  }

  return {
    root,
    buttons,
    read,
    rest,
    repaint() {
      for (const panel of new Set([keysPanel, queriesPanel])) panel?.repaint();
      threads.draw();
      listAgain();
    },
  };
}

/**
 * @param {Panel} fromPanel
 * @param {number} from
 * @param {Panel} toPanel
 * @param {number} to
 * @param {number} share
 * @returns {import("./threads.js").Thread | null}
 */
function threadOf(fromPanel, from, toPanel, to, share) {
  const words = [fromPanel.wordAt(from), toPanel.wordAt(to)];
  return share >= LEAST_SHARE && words[0] && words[1] && words[0] !== words[1] ? { from: words[0], to: words[1], share } : null;
}

/**
 * The weights that a scale is made for: what is not there, or hidden, counts nothing.
 * @param {Float32Array} weights
 * @param {boolean} hideSink
 */
function unsunk(weights, hideSink) {
  return weights.map((w, n) => (Number.isNaN(w) || (hideSink && n === 0) ? 0 : w));
}
