/** Which heads the overview shows, and in which order: filters and sorting as pure functions. */

/** @typedef {import("./data.js").Entry} Entry */
/** @typedef {{entry: number, head: number}} Place */

const COMPARED = /^([\p{L}_]+)\s*(>=|<=|>|<|=)\s*(\d*\.?\d+)$/u;
const COUNTED = /^(layer|head)\s*(\d+)$/iu;

/**
 * The heads of all entries that pass a filter: terms between commas, all of which must hold, such
 * as "induction > 0.3, layer 4, cross". What is not understood is told, and passes everything.
 * @param {Entry[]} entries
 * @param {string} filter
 * @param {string[]} statistics
 * @returns {{places: Place[], unknown: string[]}}
 */
export function filtered(entries, filter, statistics) {
  /** @type {string[]} */
  const unknown = [];
  const terms = filter
    .split(",")
    .map((term) => term.trim())
    .filter(Boolean)
    .map((term) => passing(term, entries, statistics) ?? (unknown.push(term), () => true));
  const places = entries.flatMap((about, entry) =>
    Array.from({ length: about.heads }, (_, head) => ({ entry, head })),
  );
  return { places: places.filter((place) => terms.every((passes) => passes(place))), unknown };
}

/**
 * @param {string} term
 * @param {Entry[]} entries
 * @param {string[]} statistics
 * @returns {((place: Place) => boolean) | null}
 */
function passing(term, entries, statistics) {
  const compared = COMPARED.exec(term);
  const name = compared?.[1].toLowerCase() ?? "";
  if (compared && ["layer", "head", ...statistics].includes(name)) {
    const [, , sign, text] = compared;
    return (place) => holds(valueOf(entries, place, name), sign, Number(text));
  }
  const counted = COUNTED.exec(term);
  if (counted) return (place) => valueOf(entries, place, counted[1].toLowerCase()) === Number(counted[2]);
  const words = term.toLowerCase();
  const named = entries.some(({ name, kind }) => kind === words || name.toLowerCase().includes(words));
  if (!named) return null;
  return ({ entry }) => entries[entry].kind === words || entries[entry].name.toLowerCase().includes(words);
}

/** @param {number | null} value @param {string} sign @param {number} limit */
function holds(value, sign, limit) {
  if (value === null) return false;
  if (sign === "=") return Math.abs(value - limit) < 1e-9;
  if (sign === ">") return value > limit;
  if (sign === "<") return value < limit;
  return sign === ">=" ? value >= limit : value <= limit;
}

/**
 * A statistic of a head, its layer or its number; null where it is not known.
 * @param {Entry[]} entries
 * @param {Place} place
 * @param {string} name
 * @returns {number | null}
 */
export function valueOf(entries, { entry, head }, name) {
  if (name === "layer") return entries[entry].layer;
  if (name === "head") return head;
  return entries[entry].statistics[name]?.[head] ?? null;
}

/**
 * Places by a statistic, largest first, or with "-" before its name smallest first; unknown last.
 * @param {Entry[]} entries
 * @param {Place[]} places
 * @param {string} sort
 * @returns {Place[]}
 */
export function sorted(entries, places, sort) {
  if (!sort) return places;
  const [name, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  return [...places].sort((a, b) => {
    const [x, y] = [valueOf(entries, a, name), valueOf(entries, b, name)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    return sign * (y - x) || a.entry - b.entry || a.head - b.head;
  });
}
