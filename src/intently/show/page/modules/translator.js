/** The translator of `intently.tasks.translation`: a text in, its translation and every weight out. */

import { forcedOf, search } from "./search.js";
import { EOS_ID, UNK_ID, tokenizerOf, wordSpans, wordsIn } from "./tokenizer.js";
import { transformerOf } from "./transformer.js";
import { visible } from "./words.js";

/** @typedef {import("./changes.js").Change} Change */
/**
 * A line as it was read: its tokens, its words with the positions of their tokens, where words stand
 * that the model does not know, and notes.
 * @typedef {{
 *   text: string, ids: number[], words: string[], groups: number[][], unknown: TextSpan[], notes: string[]
 * }} Line
 */
/** @typedef {import("./transformer.js").Attended} Attended */
/** @typedef {import("./tokenizer.js").TextSpan} TextSpan */
/** @typedef {import("./tokenizer.js").TokenizerMeta} TokenizerMeta */
/**
 * What the file says of a translator. `weights` names the block of each parameter.
 * @typedef {{
 *   format: string, options: import("./transformer.js").ModelOptions, max_length: number,
 *   alignment_head: [string, number] | null, source: TokenizerMeta, target: TokenizerMeta,
 *   weights: Record<string, number>,
 *   blocks: import("./data.js").BlockMeta[]
 * }} Description
 */
/**
 * A translation. `written` are its tokens, the end token included, with a log-probability each in
 * nats; `likely` are the likeliest tokens at each step.
 * @typedef {{
 *   text: string, source: string[], written: string[], ids: number[], logProbabilities: number[],
 *   logProbability: number, score: number, ended: boolean, notes: string[],
 *   read: string, unknown: TextSpan[],
 *   layers: {name: string, heads: number, t: number, s: number, rows: string[], columns: string[], weights: Float32Array}[],
 *   likely: {token: string, logProbability: number}[][]
 * }} Result
 */
/** @typedef {{text: string, beams: number, changes: Change[]}} Request */
/**
 * `before` is the translation without the changes, and `forced` how likely the changed model finds
 * each of its tokens; both null without changes.
 * @typedef {{now: Result, before: Result | null, forced: number[] | null}} Translated
 */

/** @type {Result} */
const NOTHING = {
  ...{ text: "", source: [], written: [], ids: [], logProbabilities: [], logProbability: 0 },
  ...{ score: 0, ended: true, notes: [], read: "", unknown: [], layers: [], likely: [] },
};

/** @param {Description} description @param {(name: string) => Float32Array | null} numbers of a parameter */
export function createTranslator(description, numbers) {
  const { options, max_length, alignment_head } = description;
  const model = transformerOf(options, numbers);
  const [source, target] = [tokenizerOf(description.source), tokenizerOf(description.target)];
  const forbid = target.complete ? [UNK_ID] : [];
  /** @type {{key: string, result: Result} | null} */
  let latest = null;

  /**
   * @param {Line} line
   * @param {import("./transformer.js").Encoding} encoding
   * @param {number} beams
   * @param {Change[]} changes
   * @returns {Result}
   */
  function written(line, encoding, beams, changes) {
    const limit = 2 * line.ids.length + 10;
    const found = search(model, encoding, { beams, limit, forbid }, changes);
    const said = found.ended ? found.ids.slice(0, -1) : found.ids;
    const tokens = target.tokens(found.ids);
    const sources = [...source.tokens(line.ids), "</s>"];
    const inputs = ["<s>", ...tokens.slice(0, -1)];
    const attended = model.attendedBy(found.past, encoding, tokens.length);
    return {
      text: said.includes(UNK_ID) ? copied(line, said, attended) : target.decode(said),
      source: sources,
      written: tokens,
      ids: found.ids,
      logProbabilities: found.logProbabilities,
      logProbability: found.total,
      score: found.score,
      ended: found.ended,
      notes: line.notes,
      read: line.text,
      unknown: line.unknown,
      layers: attended.map((layer) => ({
        ...layer,
        heads: model.heads,
        rows: layer.name.startsWith("encoder") ? sources : tokens,
        columns: layer.name.startsWith("decoder") && layer.name.endsWith("self_attention") ? inputs : sources,
      })),
      likely: found.likely.map((step) => step.map(({ id, logProbability }) => ({ token: target.tokens([id])[0], logProbability }))),
    };
  }

  /**
   * The text in which each unknown token is replaced by its aligned source word (Luong et al. 2015,
   * "Addressing the Rare Word Problem", section 3.3).
   * @param {Line} line
   * @param {number[]} ids
   * @param {Attended[]} attended
   */
  function copied(line, ids, attended) {
    const starts = wordSpans(line.text).map(({ start }) => start);
    let text = "";
    ids.forEach((id, row) => {
      let piece = target.tokens([id])[0].replaceAll("▁", " ");
      if (id === UNK_ID) {
        const word = looked(line, attended, row);
        const spaced = /[\s]/u.test(line.text[starts[word] - 1] ?? "") || /[\p{L}\p{N}]$/u.test(text);
        const apart = spaced && text !== "" && !/['’]$/.test(text);
        piece = `${apart ? " " : ""}${line.words[word]}`;
      }
      text += text ? piece : piece.replace(/^ /, "");
    });
    return text;
  }

  /**
   * The source word that a written token looks at most, by the alignment head, or on average in the
   * last cross-attention but one.
   * @param {Line} line
   * @param {Attended[]} attended
   * @param {number} row
   */
  function looked(line, attended, row) {
    const cross = attended.filter(({ name }) => name.endsWith("cross_attention"));
    const layer = cross.find(({ name }) => name === alignment_head?.[0]) ?? cross.at(-2) ?? cross[cross.length - 1];
    const heads = alignment_head ? [alignment_head[1]] : Array.from({ length: model.heads }, (_, n) => n);
    const weight = (/** @type {number} */ j) => heads.reduce((sum, head) => sum + layer.weights[(head * layer.t + row) * layer.s + j], 0);
    const sums = line.groups.map((group) => group.reduce((sum, j) => sum + weight(j), 0));
    return sums.indexOf(Math.max(...sums));
  }

  return {
    /** Translate a text, with the changes and without. @param {Request} request @returns {Translated} */
    translate({ text, beams, changes }) {
      const line = readLine(text, source, max_length);
      if (!line.ids.length) return { now: { ...NOTHING, notes: line.notes, read: line.text, unknown: line.unknown }, before: null, forced: null };
      const ids = [...line.ids, EOS_ID];
      const key = `${beams} ${text}`;
      const plain = latest?.key === key ? latest.result : written(line, model.encode(ids, []), beams, []);
      latest = { key, result: plain };
      if (!changes.length) return { now: plain, before: null, forced: null };
      const encoding = model.encode(ids, changes);
      const now = written(line, encoding, beams, changes);
      return { now, before: plain, forced: forcedOf(model, encoding, plain.ids, changes) };
    },
  };
}

const EDGES = /^[\s\u001c-\u001f\u0085]+|[\s\u001c-\u001f\u0085]+$/g;
/** Unknown words that a note names. */
const NAMED_WORDS = 8;

/**
 * Read a line, cut after `most` tokens, as `intently.tasks.translation.states.read_line` does.
 * @param {string} line
 * @param {import("./tokenizer.js").TextTokenizer} tokenizer
 * @param {number} most
 * @returns {Line}
 */
function readLine(line, tokenizer, most) {
  let text = line.replace(EDGES, "");
  const notes = [];
  let read = tokenizer.encode(text);
  if (read.ids.length > most) {
    notes.push(`${read.ids.length.toLocaleString("en-US")} tokens, cut after ${most}`);
    let end = most;
    while (end && read.spans[end].start < read.spans[end - 1].end) end--; // bytes of one character
    text = end ? text.slice(0, read.spans[end - 1].end) : "";
    read = tokenizer.encode(text);
  }
  const strange = tokenizer.unknown(text);
  const unknown = wordSpans(text).filter(({ start, end }) => strange.includes(text.slice(start, end)));
  if (strange.length) {
    const named = strange.slice(0, NAMED_WORDS).map((word) => visible(word));
    if (strange.length > NAMED_WORDS) named.push("…");
    notes.push(`not in the model's vocabulary: ${named.join(", ")}`);
  }
  const ids = read.ids.slice(0, most);
  const groups = read.groups.map((group) => group.filter((i) => i < ids.length));
  const words = wordsIn(text).filter((_, n) => groups[n]?.length);
  return { text, ids, words, groups: groups.filter((group) => group.length), unknown, notes };
}
