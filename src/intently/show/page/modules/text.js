/** The text: what a word looks at, or who looks at it, shaded where it stands. */

import { readingCard } from "./cards.js";
import { compared } from "./compare.js";
import { errorOf } from "./data.js";
import { headsName, readingOf, wordName } from "./readings.js";
import { offerPicture } from "./save.js";
import { largest } from "./scales.js";
import { seenOf } from "./snapshot.js";
import { pinOf } from "./state.js";
import { announce, element, format, orSay } from "./words.js";

/** What a reading depends on. */
const READ = ["view", "item", "entry", "heads", "looks", "row", "column", "scale", "sink", "pin", "through"];

/**
 * @param {HTMLElement} section
 * @param {import("./data.js").Page} page
 * @param {import("./state.js").Store} store
 * @param {import("./attention.js").HeadSource} source
 */
export function textView(section, page, store, source) {
  /** @type {import("./readings.js").Place | null} */
  let pointed = null;
  let frame = 0;
  const error = errorOf(page.meta);
  const now = readingCard(page, source, {
    point(looks, token) {
      const { item, entry, heads } = store.get();
      pointed = token === null ? null : { item, entry, heads, looks, token };
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        void orSay(section, showNow());
      });
    },
    pick(looks, token, extend) {
      const state = store.get();
      const which = looks === "at" ? "row" : "column";
      if (extend && state.looks === looks && state[which] !== null && state[which] !== token) {
        pointed = null;
        store.set({ through: token });
        return;
      }
      const same = state.looks === looks && state[which] === token;
      pointed = null;
      store.set({ looks, [which]: same ? null : token });
    },
    brush(looks, first, last) {
      pointed = null;
      store.set({ looks, [looks === "at" ? "row" : "column"]: first, through: last });
    },
    partner(token) {
      const { looks, row, column } = store.get();
      if (looks === "at") store.set({ column: column === token ? null : token });
      else store.set({ row: row === token ? null : token });
    },
  });
  const held = readingCard(page, source, null);
  held.root.classList.add("held");
  const apart = element("p", { class: "apart", hidden: true });
  held.buttons.append(element("button", { type: "button", "data-do": "swap", title: "See A, and pin B" }, "Swap"));
  const cards = element("div", { class: "cards" }, held.root, now.root);
  section.append(cards, apart);

  /** @type {import("./cards.js").Shown | null} */
  let heldShown = null;
  /** @type {import("./cards.js").Shown | null} */
  let nowShown = null;

  async function showNow() {
    const state = store.get();
    now.root.dataset.looks = state.looks;
    const reading = pointed ?? readingOf(state);
    const partner = pointed ? null : state.looks === "at" ? state.column : state.row;
    const look = { log: state.scale === "log", hideSink: state.sink === "hide", partner, pinned: !pointed };
    if (reading) {
      const shown = await now.read(reading, look);
      if (!shown) return;
      nowShown = shown;
      tell(shown, partner);
    } else {
      nowShown = null;
      await now.rest(state.item, state.entry, state.heads, look);
    }
    if (pinOf(page.meta, state.pin)?.token === null) await showHeld();
    else showApart();
  }

  /** What is pinned as A: its own word or, of pinned heads, the one that is read in B. */
  async function showHeld() {
    const state = store.get();
    const pin = pinOf(page.meta, state.pin);
    held.root.hidden = !pin;
    cards.classList.toggle("pair", !!pin);
    heldShown = null;
    if (pin) {
      const look = { log: state.scale === "log", hideSink: state.sink === "hide", partner: null, pinned: true };
      const reading = pin.token === null ? (pointed ?? readingOf(state)) : { ...pin, token: pin.token };
      const { item, entry, heads } = pin;
      const { t, s } = page.meta.items[item].entries[entry];
      if (!reading || reading.token >= (reading.looks === "at" ? t : s)) await held.rest(item, entry, heads, look);
      else heldShown = (await held.read({ ...reading, item, entry, heads }, look)) ?? heldShown; // a later one stands
    }
    showApart();
  }

  function showApart() {
    const text = heldShown && nowShown && !held.root.hidden ? compared(heldShown, nowShown, error) : "";
    apart.textContent = text;
    apart.hidden = !text;
  }

  /** @param {import("./cards.js").Shown} shown @param {number | null} partner */
  function tell({ place, both, weights, name }, partner) {
    const to = place.looks === "at" ? both.keys : both.queries;
    const best = partner === null ? largest(weights, 1)[0] : partner + to.shift;
    if (best === undefined) return;
    const other = wordName(to, best);
    const [query, key] = place.looks === "at" ? [name, other] : [other, name];
    announce(section, `query ‘${query}’ → key ‘${key}’: ${format(weights[best], error)}`);
  }

  const drawn = () => !section.hidden;
  store.subscribe((_, changed) => {
    if (!drawn()) return;
    if (["item", "entry"].some((key) => changed.has(key))) pointed = null;
    if (["view", "pin", "scale", "sink"].some((key) => changed.has(key))) void orSay(section, showHeld());
    if (READ.some((key) => changed.has(key))) void orSay(section, showNow());
  });
  section.closest(".intently")?.addEventListener("colours", () => {
    if (!drawn()) return;
    for (const card of [held, now]) card.repaint(); // at once: paper does not wait
    void orSay(section, showHeld());
    void orSay(section, showNow());
  });
  offerPicture(section, () => {
    const { item, entry, heads } = store.get();
    const { name, entries } = page.meta.items[item];
    return { name, detail: `${entries[entry].name} · ${headsName(page, item, entry, heads)} text`, ...seenOf(section) };
  });
  if (drawn()) {
    void orSay(section, showHeld());
    void orSay(section, showNow());
  }
}
