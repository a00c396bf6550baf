/**
 * How a line is read, and what a translator cannot know in it: the same as
 * `intently.translation.reading` and `intently.translation.familiar`.
 */

import { EOS_ID, SOS_ID, UNK_ID, wordSpans, wordsIn } from "./tokenizer.js";
import { visible } from "./words.js";

/** @typedef {import("./tokenizer.js").TextTokenizer} TextTokenizer */
/**
 * @typedef {{
 *   capital: boolean, ends: Record<string, string>, classes: number[], names: number[],
 *   rows: number[], examples: string[]
 * }} FamiliarMeta
 */
/** @typedef {ReturnType<typeof familiarOf>} Familiar */
/**
 * A line as it was read: its tokens, its words with the positions of their tokens, and notes.
 * @typedef {{text: string, ids: number[], words: string[], groups: number[][], notes: string[]}} Line
 */

const EDGES = /^[\s\u001c-\u001f\u0085]+|[\s\u001c-\u001f\u0085]+$/g;
/** Unknown words that a note names. */
const NAMED_WORDS = 8;

/** @param {string} text */
function stripped(text) {
  return text.replace(EDGES, "");
}

/** The number of characters of a text. @param {string} word */
function lengthOf(word) {
  return [...word].length;
}

/** @param {string} word */
function capitalized(word) {
  const [first = "", ...rest] = word;
  return first.toUpperCase() + rest.join("").toLowerCase();
}

/** @param {string} text */
function allUpper(text) {
  return /\p{Lu}/u.test(text) && !/[\p{Ll}\p{Lt}]/u.test(text);
}

/** @param {string} text */
function allLower(text) {
  return /\p{Lowercase}/u.test(text) && !/[\p{Lu}\p{Lt}]/u.test(text);
}

/**
 * The forms of an unknown word that differ in case.
 * @param {string} word
 * @param {number} start
 */
function formsOf(word, start) {
  const [lower, title] = [word.toLowerCase(), capitalized(word)];
  if (lengthOf(word) > 1 && allUpper(word)) return start ? [lower, title] : [title, lower];
  if (allLower(word)) return [title];
  return start ? [] : [lower];
}

/**
 * What the sentences that a translator learned from look like.
 * @param {FamiliarMeta} meta
 * @param {TextTokenizer} tokenizer
 */
export function familiarOf({ capital, ends, classes, names, rows, examples }, tokenizer) {
  const known = new Set(rows);
  const named = new Set(names);
  const count = classes.reduce((most, one) => Math.max(most, one), 0) + 1;

  /** Classes of a sentence, null for what is unknown. @param {number[]} ids */
  const classesOf = (ids) => [SOS_ID, ...ids, EOS_ID].map((id) => (id === UNK_ID ? null : classes[id]));

  /** Every three classes in a row as a number. @param {(number | null)[]} given */
  function rowsOf(given) {
    const padded = [0, ...given];
    return padded.slice(2).map((c, n) => {
      const [a, b] = [padded[n], padded[n + 1]];
      return a === null || b === null || c === null ? null : (a * count + b) * count + c;
    });
  }

  /** Whether a form is known; inside a sentence with a capital only if it is a name. @param {string} form @param {number} start */
  function fits(form, start) {
    const [entry] = tokenizer.encode(form).ids;
    const inside = start > 0 && /^\p{Lu}/u.test(form);
    return entry !== UNK_ID && !(inside && !named.has(classes[entry]));
  }

  /** @param {string} line */
  function tidy(line) {
    let text = stripped(line);
    if (!text) return text;
    if (tokenizer.unknown(text).some((word) => word.includes("’"))) text = text.replaceAll("’", "'");
    const [first] = text;
    if (capital && allLower(first)) text = first.toUpperCase() + text.slice(first.length);
    const unknown = new Set(tokenizer.unknown(text));
    for (const { start, end } of unknown.size ? wordSpans(text).reverse() : []) {
      const word = text.slice(start, end);
      if (!unknown.has(word)) continue;
      const form = formsOf(word, start).find((one) => fits(one, start)) ?? word;
      text = text.slice(0, start) + form + text.slice(end);
    }
    const last = [...text].at(-1) ?? "";
    if (/[\p{L}\p{N}]/u.test(last) && Object.hasOwn(ends, "")) {
      const opening = openingOf(text);
      text += Object.hasOwn(ends, opening) ? ends[opening] : ends[""];
    }
    return text;
  }

  /** The first word after the last comma. @param {string} text */
  function openingOf(text) {
    return wordsIn(stripped(text.slice(text.lastIndexOf(",") + 1)) || text)[0].toLowerCase();
  }

  /** The first words that follow each other as nowhere in the training text. @param {string} text */
  function strange(text) {
    const { ids } = tokenizer.encode(text);
    const at = rowsOf(classesOf(ids)).findIndex((row) => row !== null && !known.has(row));
    if (at < 0) return null;
    return tokenizer.tokens(ids.slice(Math.max(0, at - 1), at + 2)).join("").replaceAll("▁", " ").trim();
  }

  /** The unknown words of a text, less those with a capital at the place of a name. @param {string} text */
  function misplaced(text) {
    const { ids, groups } = tokenizer.encode(text);
    const own = classesOf(ids);
    const found = wordsIn(text).filter((word, n) => {
      const unknown = groups[n].filter((i) => ids[i] === UNK_ID);
      return unknown.length && !(/^\p{Lu}/u.test(word) && nameFits(own, unknown[0] + 1));
    });
    return [...new Set(found)];
  }

  /** Whether a name may stand at a place. @param {(number | null)[]} own @param {number} at */
  function nameFits(own, at) {
    return names.some((name) => {
      const tried = own.with(at, name);
      return rowsOf(tried).every((row) => row === null || known.has(row));
    });
  }

  /** The example that shares most words with a text. @param {string} text */
  function example(text) {
    const given = new Set(wordsIn(text).map((word) => word.toLowerCase()));
    let [best, most] = ["", -1];
    for (const one of examples) {
      const own = new Set(wordsIn(one).map((word) => word.toLowerCase()));
      const both = [...own].filter((word) => given.has(word)).length;
      const share = both / (own.size + given.size - both);
      if (share > most) [best, most] = [one, share];
    }
    return best;
  }
  return { tidy, strange, misplaced, example };
}

/**
 * Read a line, cut after `most` tokens.
 * @param {string} line
 * @param {TextTokenizer} tokenizer
 * @param {number} most
 * @param {Familiar | null} familiar
 * @returns {Line}
 */
export function readLine(line, tokenizer, most, familiar) {
  let text = stripped(line);
  const notes = [];
  let knows = familiar;
  let read = tokenizer.encode(text);
  if (read.ids.length > most) {
    notes.push(`${read.ids.length.toLocaleString("en-US")} tokens, cut after ${most}`);
    let end = most;
    while (end && read.spans[end].start < read.spans[end - 1].end) end--; // bytes of one character
    text = end ? text.slice(0, read.spans[end - 1].end) : "";
    knows = null; // the end of no sentence
    read = tokenizer.encode(text);
  } else if (knows) {
    text = knows.tidy(text);
    read = tokenizer.encode(text);
  }
  notes.push(...notesOn(text, tokenizer, knows));
  const ids = read.ids.slice(0, most);
  const groups = read.groups.map((group) => group.filter((i) => i < ids.length));
  const words = wordsIn(text).filter((_, n) => groups[n]?.length);
  return { text, ids, words, groups: groups.filter((group) => group.length), notes };
}

/**
 * What a model cannot know in a text: its words, or how they follow each other.
 * @param {string} text
 * @param {TextTokenizer} tokenizer
 * @param {Familiar | null} familiar
 */
function notesOn(text, tokenizer, familiar) {
  const unknown = familiar ? familiar.misplaced(text) : tokenizer.unknown(text);
  const strange = familiar?.strange(text) ?? null;
  const other = familiar && (unknown.length || strange) ? `; it knows, for example: ${familiar.example(text)}` : "";
  if (unknown.length) {
    const told = unknown.slice(0, NAMED_WORDS).map((word) => visible(word));
    if (unknown.length > NAMED_WORDS) told.push("…");
    return [`not in the model's vocabulary: ${told.join(", ")}${other}`];
  }
  return strange ? [`unlike the sentences the model learned from, at “${visible(strange)}”${other}`] : [];
}
