/** Greedy and beam search over one sentence, as `intently.tasks.decoding.beams` does it. */

import { largest } from "./scales.js";
import { EOS_ID, SOS_ID } from "./tokenizer.js";

/** @typedef {import("./transformer.js").RunningTransformer} RunningTransformer */
/** @typedef {import("./transformer.js").Encoding} Encoding */
/** @typedef {import("./transformer.js").Past} Past */
/** @typedef {import("./changes.js").Change} Change */
/** @typedef {{id: number, logProbability: number}} Choice */
/**
 * What a beam wrote: `ids` with the end token if it ended, a log-probability for each, and the
 * likeliest tokens at each step.
 * @typedef {{
 *   ids: number[], logProbabilities: number[], likely: Choice[][], total: number, score: number,
 *   ended: boolean, past: Past
 * }} Hypothesis
 */

const PAD_ID = 0;
const ALPHA = 0.6;
const LIKELY = 5;

/** What a log-probability is divided by (Wu et al. 2016, equation 14). @param {number} length */
function penaltyOf(length) {
  return ((5 + length) / 6) ** ALPHA;
}

/**
 * Logits of one row to log-probabilities.
 * @param {Float32Array} logits
 * @param {number} from
 * @param {number} size
 */
function logSoftmax(logits, from, size) {
  const found = new Float64Array(size);
  let [most, sum] = [-Infinity, 0];
  for (let v = 0; v < size; v++) if (logits[from + v] > most) most = logits[from + v];
  for (let v = 0; v < size; v++) sum += Math.exp(logits[from + v] - most);
  const shift = most + Math.log(sum);
  for (let v = 0; v < size; v++) found[v] = logits[from + v] - shift;
  return found;
}

/**
 * The best output for a source.
 * @param {RunningTransformer} model
 * @param {Encoding} encoding
 * @param {{beams: number, limit: number, forbid: number[]}} options
 * @param {Change[]} changes
 * @returns {Hypothesis}
 */
export function search(model, encoding, { beams, limit, forbid }, changes) {
  /** @type {Hypothesis[]} */
  let live = [{ ids: [], logProbabilities: [], likely: [], total: 0, score: 0, ended: false, past: model.begun() }];
  /** @type {Hypothesis[]} */
  const left = [];
  let free = beams;
  for (let length = 1; ; length++) {
    const tokens = live.map(({ ids }) => ids.at(-1) ?? SOS_ID);
    const logits = model.step(tokens, live.map(({ past }) => past), encoding, changes);
    /** @type {{row: number, id: number, total: number, own: number}[]} */
    const found = [];
    live.forEach((beam, row) => {
      const scores = logSoftmax(logits, row * model.vocabulary, model.vocabulary);
      for (const id of [PAD_ID, SOS_ID, ...forbid]) scores[id] = -Infinity;
      const near = largest(scores, Math.max(beams, LIKELY), -Infinity);
      beam.likely = [...beam.likely, near.slice(0, LIKELY).map((id) => ({ id, logProbability: scores[id] }))];
      for (const id of near.slice(0, beams)) found.push({ row, id, total: beam.total + scores[id], own: scores[id] });
    });
    found.sort((a, b) => b.total - a.total || a.row - b.row || a.id - b.id);
    const taken = found.slice(0, free);
    /** @type {Hypothesis[]} */
    const next = [];
    const uses = new Map();
    for (const { row } of taken) uses.set(row, (uses.get(row) ?? 0) + 1);
    for (const { row, id, total, own } of taken) {
      const { ids, logProbabilities, likely, past } = live[row];
      const ended = id === EOS_ID;
      const kept = {
        ids: [...ids, id],
        logProbabilities: [...logProbabilities, own],
        likely,
        total,
        score: total / penaltyOf(length),
        ended,
        past: uses.get(row) > 1 ? model.forked(past) : past,
      };
      if (ended) free--;
      if (ended || length === limit) left.push(kept);
      else next.push(kept);
    }
    live = next;
    const most = Math.max(-Infinity, ...live.map(({ total }) => total));
    const best = Math.max(-Infinity, ...left.filter(({ ended }) => ended).map(({ score }) => score));
    const bound = Math.max(most / penaltyOf(length + 1), most / penaltyOf(limit));
    if (!live.length || best >= bound) break;
  }
  if (!left.length) throw new Error("the model writes nothing: its weights are not finite numbers");
  left.sort((a, b) => Number(b.ended) - Number(a.ended) || b.score - a.score);
  return left[0];
}

/**
 * The log-probability of each token of a given output.
 * @param {RunningTransformer} model
 * @param {Encoding} encoding
 * @param {number[]} ids
 * @param {Change[]} changes
 */
export function forcedOf(model, encoding, ids, changes) {
  const past = model.begun();
  return ids.map((id, n) => {
    const logits = model.step([n ? ids[n - 1] : SOS_ID], [past], encoding, changes);
    return logSoftmax(logits, 0, model.vocabulary)[id];
  });
}
