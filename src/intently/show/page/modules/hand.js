/** The pass the works: cells crossed out or set, heads and layers switched off, weights sharpened. */

import { changeAt, withChange, withoutChange } from "./interventions.js";
import { announce, element, format, named } from "./words.js";

/** @typedef {import("./translator.js").Change} Change */
/** @typedef {import("./translator.js").Result} Result */
/** @typedef {import("./gestures.js").Hand} Hand */
/** @typedef {{i: number, j: number}} Cell */
/**
 * What the hand works on. `change` takes new changes; `begin` first, so that undo returns to what
 * was before.
 * @typedef {{
 *   store: import("./state.js").Store, result: () => Result | null, changes: () => Change[],
 *   begin: () => void, change: (changes: Change[]) => void
 * }} Works
 */

/** Pixels up that a weight needs from 0 to 1. */
const TRAVEL = 160;
/** What a key adds to a weight. */
const NUDGE = 0.1;
const POWERS = [
  ["0.25", "¼"],
  ["0.5", "½"],
  ["1", "1"],
  ["2", "2"],
  ["4", "4"],
];

/**
 * The heads that are seen: numbers, or null for every head of the layer.
 * @param {string} heads
 * @returns {(number | null)[]}
 */
function headsOf(heads) {
  return heads === "mean" ? [null] : heads.split(",").map(Number);
}

/** @param {Works} works */
function seenLayer({ store, result }) {
  if (store.get().heads === "rollout") return null; // many layers at once: there is no cell to change
  return result()?.layers[store.get().entry] ?? null;
}

/** The weight of a cell in the heads that are seen, on average. @param {Works} works @param {Cell} cell */
function weightAt(works, { i, j }) {
  const layer = seenLayer(works);
  if (!layer) return 0;
  const chosen = headsOf(works.store.get().heads);
  const heads = chosen[0] === null ? Array.from({ length: layer.heads }, (_, n) => n) : chosen;
  const all = heads.map((head) => layer.weights[(Number(head) * layer.t + i) * layer.s + j] ?? 0);
  return all.reduce((sum, w) => sum + w, 0) / all.length;
}

/**
 * Forbid a cell of the heads that are seen, set its weight, or give it back.
 * @param {Works} works
 * @param {Cell} cell
 * @param {"forbid" | "free" | number} how
 */
function touch(works, { i, j }, how) {
  const layer = seenLayer(works);
  if (!layer) return;
  let next = works.changes();
  for (const head of headsOf(works.store.get().heads)) {
    const cell = { layer: layer.name, head, row: i, column: j };
    const change = typeof how === "number" ? { ...cell, kind: /** @type {const} */ ("weight"), weight: how } : { ...cell, kind: /** @type {const} */ ("forbid") };
    next = how === "free" ? withoutChange(next, change) : withChange(next, change);
  }
  works.change(next);
}

/** The change of a cell in all heads that are seen. @param {Works} works @param {Cell} cell */
function touched(works, cell) {
  const layer = seenLayer(works);
  const [head] = headsOf(works.store.get().heads);
  return layer ? changeAt(works.changes(), layer.name, head, cell) : undefined;
}

/**
 * Whether a query may look at a key at all; where it may not, say so.
 * @param {Works} works
 * @param {Element} root
 * @param {Cell} cell
 */
function allowed(works, root, { i, j }) {
  const layer = seenLayer(works);
  const future = layer?.name.startsWith("decoder") && layer.name.endsWith("self_attention") && j > i;
  if (future) announce(root, "This word is not written yet: the causal mask keeps its weight at 0.");
  return !future;
}

/**
 * The hand that works in the matrix while `active` says so.
 * @param {Works} works
 * @param {Element} root
 * @param {() => boolean} active
 * @returns {Hand}
 */
export function handOf(works, root, active) {
  /** @type {{cell: Cell, weight: number, begun: boolean} | null} */
  let held = null;
  let frame = 0;

  /** @param {Cell} cell */
  function cross(cell) {
    works.begin();
    touch(works, cell, touched(works, cell) ? "free" : "forbid");
  }

  return {
    take(cell) {
      if (!active() || !seenLayer(works)) return false;
      held = allowed(works, root, cell) ? { cell, weight: weightAt(works, cell), begun: false } : null;
      return true;
    },
    turn(up) {
      if (!held) return;
      if (!held.begun) works.begin();
      held.begun = true;
      const [{ cell }, weight] = [held, Math.max(0, Math.min(1, held.weight + up / TRAVEL))];
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => touch(works, cell, weight));
    },
    release(still) {
      if (held && still) cross(held.cell);
      held = null;
    },
    press(key, cell) {
      if (!["x", "Delete", ",", "."].includes(key) || !seenLayer(works)) return false;
      if (!allowed(works, root, cell)) return true;
      if (key === "x" || key === "Delete") cross(cell);
      else {
        works.begin();
        const weight = weightAt(works, cell) + (key === "." ? NUDGE : -NUDGE);
        touch(works, cell, Math.max(0, Math.min(1, weight)));
      }
      return true;
    },
    strokes() {
      const layer = seenLayer(works);
      const { heads } = works.store.get();
      const [head] = headsOf(heads);
      return works.changes().flatMap((change) => {
        if (!layer || !("row" in change) || change.layer !== layer.name) return [];
        if (change.head !== head && change.head !== null) return [];
        return [{ i: change.row, j: change.column, crossed: change.kind === "forbid" }];
      });
    },
  };
}

/**
 * The tools over the matrix: for the head that is seen, and for the cell that is held.
 * @param {Works} works
 * @param {(active: boolean) => void} activate whether a click changes a cell, or holds it
 */
export function toolsOf(works, activate) {
  const root = element("div", { class: "hand", role: "group", "aria-label": "Change the model" });
  const off = button("Switch head off", () => flip("off"));
  const layerOff = button("Switch layer off", () => flip("layer"));
  const power = element("select", { "aria-label": "Sharpen: weights to the power" });
  power.append(...POWERS.map(([value, name]) => element("option", { value }, name)));
  const click = button("Click changes", () => {
    const active = click.getAttribute("aria-pressed") !== "true";
    click.setAttribute("aria-pressed", String(active));
    activate(active);
  });
  click.setAttribute("aria-pressed", "true");
  click.title = "A click crosses a cell out, a drag up or down sets its weight. Switch it off to select cells and to move the window.";
  const cellName = element("span", { class: "hand-cell" });
  const cross = button("Cross out", () => cellDo("forbid"));
  const weight = element("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": "Weight of this cell" });
  const number = element("span", { class: "hand-number" });
  const free = button("As it was", () => cellDo("free"));
  const sharpen = element("label", { class: "hand-power" }, element("span", {}, "Sharpen"), power);
  const ofCell = element("div", { class: "hand-row" }, cellName, cross, weight, number, free);
  const hint = element("p", { class: "hand-hint" });
  root.append(element("div", { class: "hand-row" }, click, off, layerOff, sharpen, hint), ofCell);

  /** @param {string} text @param {() => void} act */
  function button(text, act) {
    return element("button", { type: "button", class: "toggle", click: act }, text);
  }

  /** @returns {Cell | null} */
  function cell() {
    const { row, column } = works.store.get();
    return row === null || column === null ? null : { i: row, j: column };
  }

  /** @param {"forbid" | "free" | number} how */
  function cellDo(how) {
    const at = cell();
    if (!at || !allowed(works, root, at)) return;
    works.begin();
    touch(works, at, how);
  }

  /** @param {"off" | "layer"} which */
  function flip(which) {
    const layer = seenLayer(works);
    if (!layer) return;
    const heads = which === "layer" ? [null] : headsOf(works.store.get().heads);
    works.begin();
    let next = works.changes();
    const isOff = switchedOff(layer.name, heads);
    for (const head of heads) {
      const change = { kind: /** @type {const} */ ("off"), layer: layer.name, head };
      next = isOff ? withoutChange(next, change) : withChange(next, change);
    }
    works.change(next);
  }

  /** @param {string} layer @param {(number | null)[]} heads */
  function switchedOff(layer, heads) {
    return heads.every((head) => works.changes().some((one) => one.kind === "off" && one.layer === layer && one.head === head));
  }

  power.addEventListener("change", () => {
    const layer = seenLayer(works);
    if (!layer) return;
    works.begin();
    let next = works.changes();
    for (const head of headsOf(works.store.get().heads)) {
      const change = { kind: /** @type {const} */ ("sharpen"), layer: layer.name, head, power: Number(power.value) };
      next = change.power === 1 ? withoutChange(next, change) : withChange(next, change);
    }
    works.change(next);
  });
  weight.addEventListener("pointerdown", () => works.begin());
  weight.addEventListener("keydown", (event) => event.key.startsWith("Arrow") && works.begin());
  weight.addEventListener("input", () => {
    const at = cell();
    if (at && allowed(works, root, at)) touch(works, at, Number(weight.value));
  });

  function show() {
    const layer = seenLayer(works);
    root.hidden = !layer;
    if (!layer) return;
    const { heads } = works.store.get();
    const chosen = headsOf(heads);
    const every = chosen[0] === null;
    const isOff = switchedOff(layer.name, chosen);
    off.hidden = every;
    off.textContent = isOff ? "Switch head on" : "Switch head off";
    off.setAttribute("aria-pressed", String(isOff));
    const layerIsOff = switchedOff(layer.name, [null]);
    layerOff.textContent = layerIsOff ? "Switch layer on" : "Switch layer off";
    layerOff.setAttribute("aria-pressed", String(layerIsOff));
    const sharpened = works.changes().find((one) => one.kind === "sharpen" && one.layer === layer.name && one.head === chosen[0]);
    const value = String(sharpened && "power" in sharpened ? sharpened.power : 1);
    if (![...power.options].some((option) => option.value === value)) power.append(element("option", { value }, value));
    power.value = value;
    const at = cell();
    const stands = at && at.i < layer.t && at.j < layer.s ? at : null;
    ofCell.hidden = !stands;
    const fine = !matchMedia("(pointer: coarse)").matches;
    hint.textContent =
      fine && click.getAttribute("aria-pressed") === "true"
        ? "Click a cell to cross it out, drag it up or down to set its weight. Keys: x, comma, full stop; u undoes."
        : `${fine ? "Click" : "Tap"} a cell to select it, then change it here.`;
    if (!stands) return;
    const now = weightAt(works, stands);
    cellName.textContent = `‘${named(layer.rows[stands.i])}’ → ‘${named(layer.columns[stands.j])}’`;
    weight.value = String(now);
    number.textContent = format(now, 1e-4);
    const change = touched(works, stands);
    cross.setAttribute("aria-pressed", String(change?.kind === "forbid"));
    free.toggleAttribute("disabled", !change);
  }
  works.store.subscribe(show);
  return { root, show };
}
