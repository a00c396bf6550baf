/** The keyboard: what every key does, in one table that the help shows, too. */

import { element } from "./words.js";

/** @typedef {{keys: string[], says: string, do?: string}} Binding */

/** @type {Binding[]} */
const BINDINGS = [
  { keys: ["o"], says: "all heads", do: "overview" },
  { keys: ["m"], says: "the matrix", do: "matrix" },
  { keys: ["t"], says: "the words", do: "text" },
  { keys: ["[", "]"], says: "head before, next head", do: "head" },
  { keys: ["{", "}"], says: "layer before, next layer", do: "entry" },
  { keys: ["←", "→", "↑", "↓"], says: "move among words, heads or weights" },
  { keys: ["Enter"], says: "hold a word, open a head; with Shift, a stretch of words" },
  { keys: ["+", "−"], says: "zoom" },
  { keys: ["0"], says: "the whole matrix" },
  { keys: ["f"], says: "what a word looks at, or who looks at it", do: "flip" },
  { keys: ["p"], says: "pin what is seen as A, to compare; unpin", do: "pin" },
  { keys: ["/"], says: "filter heads", do: "filter" },
  { keys: ["g"], says: "find a token, go to a position", do: "find" },
  { keys: ["s"], says: "save what is seen", do: "save" },
  { keys: ["?"], says: "this help", do: "help" },
];

/** How far each arrow leads: rows, columns. @type {Record<string, [number, number]>} */
export const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

const HANDED = new Set([
  ...[...Object.keys(ARROWS), "Home", "End", "PageUp", "PageDown"],
  ...["+", "=", "-", "0", "Enter", "Escape", "x", ",", "."],
]);

/**
 * Listen to keys. Those that move inside a view are handed to it when something else has the focus;
 * the others become doings: "head-" for the first key of a pair, "head+" for the second.
 * @param {HTMLElement} root
 * @param {EventTarget} target what hears the keys: the document of a page, the root of a widget
 * @param {(doing: string) => void} act
 */
export function listenToKeys(root, target, act) {
  target.addEventListener("keydown", (given) => {
    const event = /** @type {KeyboardEvent} */ (given);
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.isComposing) return;
    const at = event.composedPath()[0];
    if (!(at instanceof Element) || at.closest("input, select, textarea, dialog")) return;
    const binding = BINDINGS.find(({ keys, do: doing }) => doing && keys.includes(event.key));
    if (binding) {
      const pair = binding.keys.length === 2 ? ["-", "+"][binding.keys.indexOf(event.key)] : "";
      act(`${binding.do}${pair}`);
    } else if (!HANDED.has(event.key) || !handed(root, at, event)) return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** @param {HTMLElement} root @param {Element} at where the key was heard @param {KeyboardEvent} event */
function handed(root, at, event) {
  const view = root.querySelector("[data-view]:not([hidden]) [data-keys]");
  if (!view || view.contains(at)) return false;
  if (at.closest("button, a, summary, [tabindex]") && ["Enter", "Escape"].includes(event.key)) return false;
  const { key, shiftKey } = event;
  return !view.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, cancelable: true }));
}

/** The table of keys, for the help. @returns {HTMLElement} */
export function keyTable() {
  const rows = BINDINGS.map(({ keys, says }) => {
    const signs = keys.map((key) => element("kbd", {}, key));
    return element("div", {}, element("dt", {}, ...signs), element("dd", {}, says));
  });
  return element("dl", { class: "keys" }, ...rows);
}

/**
 * Where a key leads among elements that are set in lines: on, back, to an end, or to the nearest of the
 * next line; null where it leads nowhere.
 * @param {HTMLElement[]} elements
 * @param {number} from
 * @param {string} key
 * @param {boolean} [rtl]
 */
export function neighbour(elements, from, key, rtl = false) {
  if (key === "Home") return 0;
  if (key === "End") return elements.length - 1;
  const [down, across] = ARROWS[key] ?? [0, 0];
  if (across) return Math.max(0, Math.min(elements.length - 1, from + (rtl ? -across : across)));
  if (!down) return null;
  const here = elements[from].getBoundingClientRect();
  let [best, nearest, line] = [/** @type {number | null} */ (null), Infinity, NaN];
  for (let n = from + down; n >= 0 && n < elements.length; n += down) {
    const there = elements[n].getBoundingClientRect();
    if (Math.abs(there.top - here.top) < here.height / 2) continue;
    if (Number.isNaN(line)) line = there.top;
    if (Math.abs(there.top - line) > here.height / 2) break;
    const apart = Math.abs(there.left + there.right - here.left - here.right);
    if (apart < nearest) [best, nearest] = [n, apart];
  }
  return best;
}
