/** Six guided moments, in the order in which attention is taught, with the model that runs here. */

/** @typedef {import("./translator.js").Result} Result */
/** @typedef {import("./translator.js").Change} Change */
/** @typedef {{layer: string, head: number} | null} Pointed a head that the model's description names */
/**
 * `place` says where to look once the sentence is translated.
 * @typedef {{
 *   title: string, says: string, task: string, text: string, upto: number | null, changes: Change[],
 *   place: {view: string, layer: string, heads: string, row?: string, column?: string}
 * }} Moment
 */

const ROAD = "The animal didn't cross the road because it was too wide.";
const SHORT = "The road was too wide.";

/**
 * The moments of a translator: its own sentence where it is not the embedded one.
 * @param {{alignment: Pointed, guided: Pointed, embedded: boolean, layers: string[], text: string}} model
 * @returns {Moment[]}
 */
export function momentsOf({ alignment, guided, embedded, layers, text }) {
  const last = (/** @type {string} */ kind) => layers.filter((name) => name.endsWith(kind)).at(-1) ?? layers[0];
  const cross = alignment?.layer ?? last("cross_attention");
  const aligned = String(alignment?.head ?? 0);
  const encoder = guided?.layer ?? layers.filter((name) => name.startsWith("encoder")).at(-1) ?? layers[0];
  const reader = String(guided?.head ?? 0);
  const own = layers.find((name) => name.startsWith("decoder") && name.endsWith("self_attention")) ?? layers[0];
  const [short, long] = embedded ? [SHORT, ROAD] : [text, text];
  const plain = { upto: null, changes: [] };
  const taught = guided ? " This head was taught to look from a pronoun at its noun." : "";
  return [
    {
      ...plain,
      title: "A query looks",
      text: short,
      says: "Each word that the model writes is a query. It compares itself with every source word, the keys, and reads most from those that match best.",
      task: embedded ? "Choose another word of the translation. Then write ‘long’ for ‘wide’." : "Choose another word of the translation.",
      place: { view: "text", layer: cross, heads: aligned, row: embedded ? "large" : undefined },
    },
    {
      ...plain,
      title: "Softmax",
      text: short,
      says: "Softmax turns the scores of a query into weights that sum to 1. Raising the weights to a power and dividing by their sum again is a lower temperature: the largest wins.",
      task: "Set Sharpen to 4, then to ¼, and watch the rows and the translation.",
      place: { view: "head", layer: cross, heads: aligned },
    },
    {
      ...plain,
      title: "Several heads",
      text: short,
      says: "Every layer has several heads. Each has its own queries and keys, so each looks at the same sentence differently.",
      task: "Open two heads of one layer, and see what the same word looks at.",
      place: { view: "overview", layer: encoder, heads: "0" },
    },
    {
      ...plain,
      upto: 1,
      title: "The mask while it writes",
      text: short,
      says: "The decoder writes one word after the other. A word that is not written yet cannot be looked at, so the weights above the diagonal are zero.",
      task: "Press ▸ to write the next word, and see one more row appear.",
      place: { view: "head", layer: own, heads: "0" },
    },
    {
      ...plain,
      title: "What an encoder adds",
      text: long,
      says: `The encoder adds to each word what it reads from the others, so that a pronoun can carry its noun.${taught}`,
      task: embedded
        ? "Write ‘tired’ for ‘wide’: ‘it’ looks at another noun, and ‘elle’ becomes ‘il’."
        : "Change a word of the sentence, and see who looks at it.",
      place: { view: "head", layer: encoder, heads: reader, row: embedded ? "it" : undefined, column: embedded ? "road" : undefined },
    },
    {
      ...plain,
      title: "Cross something out",
      text: long,
      says: "Weights show where a head looks, not what the model needs. To find out, forbid a cell or switch a head off, and see whether the translation changes.",
      task: embedded
        ? "Cross out ‘it’ → ‘road’: its weight goes to ‘animal’, and ‘elle’ becomes ‘il’. Undo, then switch the whole head off: ‘elle’ becomes ‘il’, too."
        : "Cross out a dark cell, then undo, and switch the head off.",
      place: { view: "head", layer: encoder, heads: reader, row: embedded ? "it" : undefined, column: embedded ? "road" : undefined },
    },
  ];
}

/**
 * The state of the page at a moment.
 * @param {Moment["place"]} place
 * @param {Result} result
 * @returns {Partial<import("./state.js").State>}
 */
export function stateOf({ view, layer, heads, row, column }, result) {
  const entry = Math.max(0, result.layers.findIndex(({ name }) => name === layer));
  const { rows = [], columns = [] } = result.layers[entry] ?? {};
  const find = (/** @type {string[]} */ names, /** @type {string | undefined} */ word) => {
    const at = word === undefined ? -1 : names.findIndex((name) => name.replace(/^[▁Ġ ]/u, "") === word);
    return at < 0 ? null : at;
  };
  return { item: 0, view, entry, heads, row: find(rows, row), column: find(columns, column), looks: "at", sink: "show" };
}
