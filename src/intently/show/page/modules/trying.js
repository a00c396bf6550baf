/** What one can drag beside and in the picture: the numbers of the query, τ, and words left out. */

import { SHARE, attended, enlivened, spelled, told } from "./dragging.js";

/**
 * @param {import("./dragging.js").Live} live @param {any[]} opening the shapes of the scene that follows the numbers
 * @param {(shapes: any[] | null, caption: string) => void} show null for the shapes as they were
 */
export function trying(live, opening, show) {
  const panel = /** @type {HTMLElement} */ (document.getElementById("try"));
  const { query, features, names } = live;
  const first = live.formula.q?.[query] ?? [];
  const most = Math.max(...(live.formula.q ?? [[1]]).flat().map(Math.abs)) || 1;
  const step = 10 ** (Math.floor(Math.log10(most)) - 1);
  const end = step * Math.ceil((2 * most) / step);
  /** @type {import("./dragging.js").State} */
  const state = { q: null, tau: 1, dropped: new Set() };

  /** @template {keyof HTMLElementTagNameMap} T @param {T} name @param {string} [text] */
  function made(name, text = "") {
    const part = document.createElement(name);
    part.textContent = text;
    return part;
  }

  /** A slider with its name and number. @param {string} name @param {number} low @param {number} high @param {number} by */
  function slider(name, low, high, by) {
    const [label, input, output] = [made("label"), made("input"), made("output")];
    input.type = "range";
    [input.min, input.max, input.step] = [low, high, by].map(String);
    label.append(made("span", name), input, output);
    panel.append(label);
    return { input, output };
  }

  panel.hidden = false;
  const drag = features.length ? "Drag a number of the query, move τ" : "Move τ";
  panel.append(made("p", `${drag} or click a word to leave it out: the first step follows.`));
  const sliders = features.map((name, n) => {
    const found = slider(name, -end, end, step);
    found.input.addEventListener("input", () => set(n, Number(found.input.value)));
    return found;
  });
  const heat = slider("τ", -4, 4, 0.05);
  heat.input.addEventListener("input", () => {
    state.tau = 2 ** Number(heat.input.value);
    changed();
  });
  const words = made("div");
  const buttons = names.map((_, j) => {
    const button = made("button");
    button.type = "button";
    button.addEventListener("click", () => leave(j));
    words.append(button);
    return button;
  });
  const reset = made("button", "as it was");
  reset.type = "button";
  reset.id = "reset";
  reset.addEventListener("click", () => {
    [state.q, state.tau] = [null, 1];
    state.dropped.clear();
    changed();
  });
  words.append(reset);
  panel.append(words);

  /** @param {number} n @param {number} value */
  function set(n, value) {
    state.q = [...(state.q ?? first)];
    state.q[n] = Math.max(-end, Math.min(end, value));
    changed();
  }

  /** @param {number} j */
  function leave(j) {
    if (!state.dropped.delete(j)) state.dropped.add(j);
    changed();
  }

  function changed() {
    say();
    const same = !state.q && state.tau === 1 && !state.dropped.size;
    show(same ? null : enlivened(opening, live, state), told(live, state));
  }

  function say() {
    const { q, weights } = attended(live, state);
    sliders.forEach(({ input, output }, n) => {
      input.value = String(q[n]);
      output.textContent = String(Number(q[n].toPrecision(3))).replace("-", "−");
      input.setAttribute("aria-valuetext", output.textContent);
    });
    heat.input.value = String(Math.log2(state.tau));
    heat.output.textContent = String(Number(state.tau.toPrecision(3)));
    heat.input.setAttribute("aria-valuetext", heat.output.textContent);
    buttons.forEach((button, j) => {
      button.textContent = `${names[j]} ${spelled(weights[j], SHARE)}`;
      button.setAttribute("aria-pressed", String(state.dropped.has(j)));
      button.setAttribute("aria-label", `leave out ${names[j]}, weight ${spelled(weights[j], SHARE)}`);
    });
  }

  /**
   * The number of the query or the word at a place of the picture, if the picture still shows it.
   * @param {any[]} seen @param {number} x @param {number} y @returns {{number?: number, word?: number}}
   */
  function at(seen, x, y) {
    const box = features.length && seen.find((shape) => shape.key === "query");
    if (box && x >= box.x && y >= box.y && y < box.y + box.cell[1]) {
      const n = Math.floor((x - box.x) / box.cell[0]);
      if (n < features.length) return { number: n };
    }
    const word = names.findIndex((_, j) => {
      const name = seen.find((shape) => shape.key === `name.${j}`);
      return name && Math.abs(y - name.y) < 12 && x < name.x + 6;
    });
    return word < 0 ? {} : { word };
  }

  /** Let a pointer drag and click in the picture. @param {HTMLCanvasElement} canvas @param {(event: PointerEvent) => [any[], number, number]} place */
  function follow(canvas, place) {
    /** @type {{n: number, x: number, from: number} | null} */
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      const [seen, x, y] = place(event);
      const { number, word } = at(seen, x, y);
      if (word !== undefined) leave(word);
      if (number === undefined) return;
      held = { n: number, x, from: attended(live, state).q[number] };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [seen, x, y] = place(event);
      const { number, word } = at(seen, x, y);
      canvas.style.cursor = held || number !== undefined ? "ew-resize" : word === undefined ? "" : "pointer";
      if (held) set(held.n, step * Math.round((held.from + ((x - held.x) * most) / 80) / step));
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => { held = null; });
    }
  }

  say();
  return { follow };
}
