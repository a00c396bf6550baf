/** Weights as a table for other programs: CSV, or JSON with what they are of. */

import { errorOf, namesOf } from "./data.js";
import { headsName } from "./readings.js";
import { download, fileName } from "./save.js";
import { digitsOf } from "./words.js";

/** Most weights in one file; of a larger matrix the window that is seen is saved. */
const WEIGHTS = 1_000_000;

/**
 * Save the weights of the head that is seen, with no digits below their error.
 * @param {import("./data.js").Page} page
 * @param {import("./state.js").State} state
 * @param {import("./attention.js").HeadSource} source
 * @param {"csv" | "json"} kind
 */
export async function saveTable(page, state, source, kind) {
  const { item, entry, heads } = state;
  const { name, t, s } = page.meta.items[item].entries[entry];
  const whole = t * s <= WEIGHTS;
  const [r0, r1] = whole ? [0, t] : [Math.floor(state.r0), Math.ceil(state.r1)];
  const [c0, c1] = whole ? [0, s] : [Math.floor(state.c0), Math.ceil(state.c1)];
  if ((r1 - r0) * (c1 - c0) > WEIGHTS) {
    throw new Error(`the part that is seen has more than ${WEIGHTS.toLocaleString("en")} weights: zoom in, and save again`);
  }
  const head = await source.open(item, entry, heads);
  const weights = await head.tile(r0, r1, c0, c1);
  const names = namesOf(page.meta, item, entry);
  const error = errorOf(page.meta);
  const digits = Math.min(7, digitsOf(error));
  const rows = Array.from({ length: r1 - r0 }, (_, i) =>
    Array.from(weights.subarray(i * (c1 - c0), (i + 1) * (c1 - c0)), (w) => (Number.isFinite(w) ? Number(w.toFixed(digits)) : null)),
  );
  const [queries, keys] = [names.rows.slice(r0, r1), names.columns.slice(c0, c1)];
  const writes = names.writes?.slice(r0, r1) ?? null;
  const detail = `${name} · ${headsName(page, item, entry, heads)} weights`;
  const file = fileName(page.meta.items[item].name, detail);
  if (kind === "csv") {
    const lines = [["", ...keys], ...rows.map((row, i) => [queries[i], ...row])];
    download(new Blob([csvOf(lines)], { type: "text/csv" }), `${file}.csv`);
    return;
  }
  const about = { text: page.meta.items[item].name, layer: name, heads, rows: [r0, r1], columns: [c0, c1], size: [t, s], error };
  download(new Blob([JSON.stringify({ ...about, queries, writes, keys, weights: rows })], { type: "application/json" }), `${file}.json`);
}

/**
 * Lines of cells as CSV (RFC 4180). A token that a spreadsheet would take for a formula gets an
 * apostrophe before it.
 * @param {(string | number | null)[][]} lines
 */
function csvOf(lines) {
  const cell = (/** @type {string | number | null} */ value) => {
    if (typeof value !== "string") return value === null ? "" : String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return `${lines.map((line) => line.map(cell).join(",")).join("\r\n")}\r\n`;
}
