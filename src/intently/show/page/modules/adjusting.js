/** Under a matrix: whether its scale follows the view, and what cells of several weights show. */

import { element } from "./words.js";

/** @typedef {{root: HTMLElement, show: (seen: {zoomed: boolean, pooled: boolean}) => void}} Adjusting */

const ADJUSTED = /** @type {const} */ ([
  ["range", "view", "Scale to this view", "By default, the scale covers the whole head; this limits it to the view"],
  ["cells", "max", "Largest weight of each cell", "Mean values hide single peaks"],
]);

/**
 * Two switches, each there where it changes something or is on.
 * @param {import("./state.js").Store} store
 * @returns {Adjusting}
 */
export function adjusting(store) {
  const switches = ADJUSTED.map(([key, on, text, title]) => {
    const off = key === "range" ? "head" : "mean";
    const click = () => store.set({ [key]: store.get()[key] === on ? off : on });
    return { key, on, button: element("button", { type: "button", class: "toggle", title, "data-adjust": key, click }, text) };
  });
  const root = element("div", { class: "matrix-adjust" }, ...switches.map(({ button }) => button));
  return {
    root,
    show({ zoomed, pooled }) {
      for (const { key, on, button } of switches) {
        const pressed = store.get()[key] === on;
        button.hidden = !(pressed || (key === "range" ? zoomed : pooled));
        button.setAttribute("aria-pressed", String(pressed));
      }
    },
  };
}
