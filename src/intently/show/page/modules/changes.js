/**
 * Changes of what heads attend, as `intently.observe.edits` makes them: cells forbidden or set, heads off,
 * rows sharpened.
 */

/** @typedef {{layer: string, head: number | null}} ChangedHead head null: every head of the layer */
/**
 * @typedef {{kind: "forbid", row: number, column: number} & ChangedHead
 *   | {kind: "weight", row: number, column: number, weight: number} & ChangedHead
 *   | {kind: "off"} & ChangedHead | {kind: "sharpen", power: number} & ChangedHead} Change
 */
/**
 * What changes in a layer: the power of a head's weights, whether the head is off, and for a row
 * the keys that are forbidden and the weights that are set.
 * @typedef {{
 *   power: (head: number) => number, off: (head: number) => boolean,
 *   cells: (head: number, row: number) => {forbidden: Set<number>, set: Map<number, number>} | null
 * }} LayerChanges
 */

/**
 * The changes of one layer; null where there are none.
 * @param {Change[]} changes
 * @param {string} layer
 * @returns {LayerChanges | null}
 */
export function changesOf(changes, layer) {
  const own = changes.filter((change) => change.layer === layer);
  if (!own.length) return null;
  const about = (/** @type {number} */ head) => own.filter((change) => change.head === null || change.head === head);
  return {
    power: (head) => about(head).reduce((power, change) => (change.kind === "sharpen" ? power * change.power : power), 1),
    off: (head) => about(head).some(({ kind }) => kind === "off"),
    cells(head, row) {
      const forbidden = new Set();
      const set = new Map();
      for (const change of about(head)) {
        if (change.kind === "forbid" && change.row === row) forbidden.add(change.column);
        if (change.kind === "weight" && change.row === row) set.set(change.column, change.weight);
      }
      return forbidden.size || set.size ? { forbidden, set } : null;
    },
  };
}

/**
 * Weights from the scores of one query, in place: softmax of them to a power, forbidden keys
 * without weight, set weights held together while the others rescale. Nothing allowed: all zero.
 * @param {Float64Array} scores
 * @param {number} count
 * @param {LayerChanges | null} changes
 * @param {number} head
 * @param {number} row
 */
export function weightsOf(scores, count, changes, head, row) {
  const cells = changes?.cells(head, row) ?? null;
  const power = changes?.power(head) ?? 1;
  let most = -Infinity;
  for (let j = 0; j < count; j++) {
    scores[j] = cells?.forbidden.has(j) ? -Infinity : power * scores[j];
    if (scores[j] > most) most = scores[j];
  }
  let sum = 0;
  for (let j = 0; j < count; j++) {
    scores[j] = most === -Infinity ? 0 : Math.exp(scores[j] - most);
    sum += scores[j];
  }
  if (sum) for (let j = 0; j < count; j++) scores[j] /= sum;
  if (cells?.set.size) hold(scores, count, cells);
}

/**
 * @param {Float64Array} weights
 * @param {number} count
 * @param {{forbidden: Set<number>, set: Map<number, number>}} cells
 */
function hold(weights, count, { forbidden, set }) {
  const held = [...set].filter(([column]) => column < count && !forbidden.has(column));
  if (!held.length) return;
  const total = held.reduce((sum, [, weight]) => sum + weight, 0);
  for (const [column] of held) weights[column] = 0;
  let rest = 0;
  for (let j = 0; j < count; j++) rest += weights[j];
  const full = total >= 1 || rest === 0;
  const others = full ? 0 : (1 - total) / rest;
  for (let j = 0; j < count; j++) weights[j] *= others;
  for (const [column, weight] of held) weights[column] = full && total ? weight / total : weight;
}
