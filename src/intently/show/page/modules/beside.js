/** Beside the matrix, in words: the weight under the crosshair, and the heaviest of its row and column. */

import { largest } from "./scales.js";
import { barLine, element, format, named, rowName } from "./words.js";

/** @typedef {import("./frame.js").Names} Names */
/** @typedef {{i: number, j: number, weight: number, row: Float32Array, column: Float32Array, pinned: boolean}} Told */

const HEAVIEST = 6;
const HINT = "Point at the matrix, or move with the arrow keys. A click or Enter pins a weight.";

/**
 * @param {HTMLElement} root
 * @param {number} error
 * @returns {{tell: (told: Told | null, names: Names) => void}}
 */
export function beside(root, error) {
  const pair = element("p", { class: "beside-pair" });
  const weight = element("p", { class: "beside-weight" });
  const [at, by] = [list(error), list(error)];
  const hint = element("p", { class: "beside-hint" }, HINT);
  const body = element("div", { class: "beside-body" }, pair, weight, at.section, by.section);
  root.append(hint, body);
  body.hidden = true;

  return {
    tell(told, names) {
      hint.hidden = told !== null;
      body.hidden = told === null;
      if (!told) return;
      const [query, key] = [rowName(names.rows[told.i], names.writes?.[told.i]), named(names.columns[told.j])];
      pair.replaceChildren(word(query), element("span", { class: "beside-arrow" }, " → "), word(key));
      weight.replaceChildren(
        element("strong", {}, format(told.weight, error)),
        element("span", {}, ` weight · query ${told.i} → key ${told.j}${told.pinned ? " · pinned" : ""}`),
      );
      at.tell([word(query), " looks at"], told.row, (j) => named(names.columns[j], 20));
      by.tell([word(key), " is looked at by"], told.column, (i) => rowName(names.rows[i], names.writes?.[i], 20));
    },
  };
}

/** A word whose script does not disturb the line. @param {string} text */
function word(text) {
  return element("bdi", { class: "beside-word" }, text);
}

/** A heading, and the heaviest weights as bars. @param {number} error */
function list(error) {
  const heading = element("h3");
  const rows = element("ol");
  return {
    section: element("section", {}, heading, rows),
    /** @param {(Node | string)[]} title @param {Float32Array} weights @param {(n: number) => string} nameOf */
    tell(title, weights, nameOf) {
      heading.replaceChildren(...title);
      const best = largest(weights, HEAVIEST);
      rows.replaceChildren(
        ...best.map((n) => element("li", {}, ...barLine(nameOf(n), String(n), weights[n] / weights[best[0]], format(weights[n], error)))),
      );
    },
  };
}
