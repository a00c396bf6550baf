/** What a reader changes in a model: cells, heads and layers, as values, as words and in the address. */

import { named } from "./words.js";

/** @typedef {import("./translator.js").Change} Change */
/** @typedef {import("./translator.js").Result} Result */

/** Changes that one address may hold. */
const MOST_CHANGES = 64;

/** @type {Record<string, Change["kind"]>} */
const KINDS = { x: "forbid", w: "weight", o: "off", p: "sharpen" };

/** What a change is about; a second change of the same place takes its place. @param {Change} change */
function placeOf(change) {
  const place = [change.layer, change.head];
  if ("row" in change) return ["cell", ...place, change.row, change.column].join();
  return [change.kind, ...place].join();
}

/**
 * The changes with one more, which replaces an older one of the same place.
 * @param {Change[]} changes
 * @param {Change} change
 */
export function withChange(changes, change) {
  return [...changes.filter((one) => placeOf(one) !== placeOf(change)), change].slice(-MOST_CHANGES);
}

/** The changes without that of the same place. @param {Change[]} changes @param {Change} change */
export function withoutChange(changes, change) {
  return changes.filter((one) => placeOf(one) !== placeOf(change));
}

/**
 * The change of a cell in these heads, if there is one.
 * @param {Change[]} changes
 * @param {string} layer
 * @param {number | null} head
 * @param {{i: number, j: number}} cell
 */
export function changeAt(changes, layer, head, { i, j }) {
  return changes.find(
    (one) => "row" in one && one.layer === layer && one.head === head && one.row === i && one.column === j,
  );
}

/** Changes as a few letters of an address. @param {Change[]} changes */
export function writeChanges(changes) {
  const sign = Object.fromEntries(Object.entries(KINDS).map(([letter, kind]) => [kind, letter]));
  return changes
    .map((change) => {
      const parts = [sign[change.kind], change.layer, change.head ?? "all"];
      if ("row" in change) parts.push(change.row, change.column);
      if (change.kind === "weight") parts.push(Number(change.weight.toFixed(3)));
      if (change.kind === "sharpen") parts.push(change.power);
      return parts.join("~");
    })
    .join("!");
}

/**
 * The changes that an address names; what makes no sense is left out.
 * @param {string} text
 * @returns {Change[]}
 */
export function readChanges(text) {
  return text
    .split("!")
    .slice(0, MOST_CHANGES)
    .map(readChange)
    .filter((change) => change !== null);
}

/** @param {string} word @returns {Change | null} */
function readChange(word) {
  const [letter, layer = "", heads = "", ...rest] = word.split("~");
  const kind = Object.hasOwn(KINDS, letter) ? KINDS[letter] : null;
  const known = /^(encoder\.\d{1,3}\.self|decoder\.\d{1,3}\.(self|cross))_attention$/.test(layer);
  if (!kind || !known || !/^(all|\d{1,3})$/.test(heads)) return null;
  const head = heads === "all" ? null : Number(heads);
  const numbers = rest.map(Number);
  if (rest.some((part) => part === "") || numbers.some((x) => !(x >= 0))) return null;
  const [row, column, weight] = numbers;
  if (kind === "off") return { kind, layer, head };
  if (kind === "sharpen") return row > 0 && row <= 100 ? { kind, layer, head, power: row } : null;
  if (!Number.isInteger(row) || !Number.isInteger(column)) return null;
  if (kind === "forbid") return { kind, layer, head, row, column };
  return weight <= 1 ? { kind, layer, head, row, column, weight } : null;
}

/**
 * A change in words.
 * @param {Change} change
 * @param {Result | null} result whose tokens the rows and columns are
 */
export function sayChange(change, result) {
  const which = change.head === null ? `${change.layer}, every head` : `${change.layer}, head ${change.head}`;
  if (change.kind === "off") return `${which}: off`;
  if (change.kind === "sharpen") return `${which}: weights to the power ${change.power}`;
  const layer = result?.layers.find(({ name }) => name === change.layer);
  const query = named(layer?.rows[change.row] ?? `query ${change.row}`);
  const key = named(layer?.columns[change.column] ?? `key ${change.column}`);
  const cell = `${which}: ‘${query}’ → ‘${key}’`;
  return change.kind === "forbid" ? `${cell} crossed out` : `${cell} set to ${change.weight.toFixed(2)}`;
}

/**
 * Words of a text beside those of another: which stayed, which are new, which are gone.
 * @param {string[]} before
 * @param {string[]} after
 * @returns {{word: string, kind: "same" | "new" | "gone"}[]}
 */
export function difference(before, after) {
  const [n, m] = [before.length, after.length];
  const common = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      const skip = Math.max(common[i + 1][j], common[i][j + 1]);
      common[i][j] = before[i] === after[j] ? common[i + 1][j + 1] + 1 : skip;
    }
  }
  /** @type {{word: string, kind: "same" | "new" | "gone"}[]} */
  const found = [];
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && before[i] === after[j]) {
      found.push({ word: after[j], kind: "same" });
      i++;
      j++;
    } else if (i < n && (j === m || common[i + 1][j] >= common[i][j + 1])) {
      found.push({ word: before[i++], kind: "gone" });
    } else found.push({ word: after[j++], kind: "new" });
  }
  return found;
}
