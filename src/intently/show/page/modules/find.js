/** Find a token by its text, or go to a position: "#120" is token 120, counted from 0. */

import { bothSides, wordName } from "./readings.js";

/**
 * What is meant by some words: tokens that contain them, whatever their case, or one position.
 * @param {string[]} names
 * @param {string} wanted
 * @returns {number[]}
 */
function hitsOf(names, wanted) {
  const position = /^#(\d{1,9})$/.exec(wanted.trim());
  if (position) return Number(position[1]) < names.length ? [Number(position[1])] : [];
  const text = wanted.trim().toLowerCase();
  if (!text) return [];
  return names.flatMap((name, n) => (name.toLowerCase().includes(text) ? [n] : []));
}

/**
 * Let a field walk through what it finds: Enter goes on, Shift and Enter back, Escape leaves. Queries
 * are looked through first; a token that is only among the keys is chosen there.
 * @param {HTMLInputElement} field
 * @param {HTMLElement} told
 * @param {import("./data.js").Page} page
 * @param {import("./state.js").Store} store
 */
export function finding(field, told, page, store) {
  let at = -1;

  /** @param {number} step */
  function go(step) {
    const { item, entry } = store.get();
    const { queries, keys } = bothSides(page, item, entry);
    const names = (/** @type {import("./readings.js").Words} */ words) =>
      Array.from({ length: words.count }, (_, n) => wordName(words, n + words.shift));
    const rows = hitsOf(names(queries), field.value);
    const columns = rows.length ? [] : hitsOf(names(keys), field.value);
    const hits = rows.length ? rows : columns;
    if (!field.value.trim() || !hits.length) {
      told.textContent = field.value.trim() ? "not found" : "";
      return;
    }
    at = (((at + step) % hits.length) + hits.length) % hits.length;
    told.textContent = `${at + 1} of ${hits.length}${rows.length ? "" : ", a key"}`;
    const token = hits[at];
    store.set({ ...(rows.length ? { row: token, looks: "at" } : { column: token, looks: "from" }), ...windowOn(token, rows.length > 0) });
  }

  /** The window, moved so that a row or column is inside. @param {number} token @param {boolean} row */
  function windowOn(token, row) {
    const state = store.get();
    const { t, s } = page.meta.items[state.item].entries[state.entry];
    const [from, to, n] = row ? [state.r0, state.r1, t] : [state.c0, state.c1, s];
    if (token >= from && token + 1 <= to) return {};
    const size = to - from;
    const start = Math.max(0, Math.min(n - size, token - size / 2));
    return row ? { r0: start, r1: start + size } : { c0: start, c1: start + size };
  }

  field.addEventListener("input", () => {
    at = -1;
    go(1);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") field.blur();
    else return;
    event.preventDefault();
  });
}
