/**
 * Words, and tokens of a text: the same as `intently.tasks.text` finds with the regular expressions and
 * the tokenizers of its library.
 */

/**
 * A tokenizer as the file holds it: `entries` by id, and the pairs that subwords are merged from,
 * first ones first.
 * @typedef {{kind: "word" | "character" | "subword", entries: string[], merges: [string, string][]}} TokenizerMeta
 */
/** From `start` to `end` in the text. @typedef {{start: number, end: number}} TextSpan */
/**
 * The tokens of a text, where each stands, and the positions of the tokens of each of its words.
 * @typedef {{ids: number[], spans: TextSpan[], groups: number[][]}} Encoded
 */
/** @typedef {ReturnType<typeof tokenizerOf>} TextTokenizer */

export const SOS_ID = 1;
export const EOS_ID = 2;
export const UNK_ID = 3;
const SPECIAL_IDS = 4;

const WORD_CHARACTER = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]/u;
const INSIDE_WORD = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u00AD\u200C\u200D]/u;
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}ーｰ]/u;
const BLANK = /\p{White_Space}/u;
const NEGATED = /(?:(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}ーｰ])[\p{L}\p{M}])*[nN]['’][tT](?![\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])/uy;
const CLITIC = /(?:[sSſ]|[mM]|[rR][eE]|[vV][eE]|[lL][lL]|[dD]|[tT])(?![\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])/uy;
const BYTE = /^<0x([0-9A-F]{2})>$/;

/** The character at a place, "" at the end. @param {string} text @param {number} at */
function characterAt(text, at) {
  const code = text.codePointAt(at);
  return code === undefined ? "" : String.fromCodePoint(code);
}

/** @param {string} sign */
function isApostrophe(sign) {
  return sign === "'" || sign === "’";
}

/** Where a match of a sticky pattern ends, −1 without one. @param {RegExp} pattern @param {string} text @param {number} at */
function matchEnd(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : -1;
}

/**
 * Where the letters and digits from a place on end, hyphens between them included.
 * @param {string} text
 * @param {number} start
 */
function stemEnd(text, start) {
  let at = start;
  for (;;) {
    const from = at;
    for (let sign = characterAt(text, at); sign; sign = characterAt(text, at)) {
      if (!(at === from ? WORD_CHARACTER : INSIDE_WORD).test(sign) || UNSPACED.test(sign)) break;
      at += sign.length;
    }
    if (at === from) return from === start ? start : from - 1; // a hyphen that nothing follows
    if (!["-", "‐", "‑"].includes(text[at])) return at;
    at++;
  }
}

/**
 * Where the word that starts at a place ends; the place itself where none starts.
 * @param {string} text
 * @param {number} at
 * @param {Set<number>} graphemes where characters as a reader sees them begin
 */
function wordEnd(text, at, graphemes) {
  const first = characterAt(text, at);
  if (!first || BLANK.test(first)) return at;
  const stem = stemEnd(text, at);
  if (stem > at && !isApostrophe(text[stem] ?? "")) return stem;
  const negated = matchEnd(NEGATED, text, at);
  if (negated > 0) return negated;
  if (stem > at) {
    const elided = WORD_CHARACTER.test(characterAt(text, stem + 1)) && matchEnd(CLITIC, text, stem + 1) < 0;
    return elided ? stem + 1 : stem;
  }
  if (isApostrophe(first) && at > 0 && !BLANK.test(text[at - 1])) {
    const clitic = matchEnd(CLITIC, text, at + 1);
    if (clitic > 0) return clitic;
  }
  let end = at + first.length;
  for (let sign = characterAt(text, end); sign && !graphemes.has(end) && !BLANK.test(sign); sign = characterAt(text, end)) {
    end += sign.length;
  }
  return end;
}

/** Where the graphemes of a text begin. @param {string} text */
function graphemesOf(text) {
  const plain = /^[\x20-\x7e\u00a0-\u02ff’‘“”…–—]*$/.test(text);
  if (plain) return new Set(Array.from({ length: text.length }, (_, n) => n));
  const found = new Intl.Segmenter("en", { granularity: "grapheme" }).segment(text);
  return new Set(Array.from(found, ({ index }) => index));
}

/** Where each word of a text starts and ends. @param {string} text @returns {TextSpan[]} */
export function wordSpans(text) {
  const graphemes = graphemesOf(text);
  const found = [];
  for (let at = 0; at < text.length; ) {
    const end = wordEnd(text, at, graphemes);
    if (end > at) found.push({ start: at, end });
    at = end > at ? end : at + characterAt(text, at).length;
  }
  return found;
}

/** The words of a text. @param {string} text */
export function wordsIn(text) {
  return wordSpans(text).map(({ start, end }) => text.slice(start, end));
}

/**
 * Cut a text into words, each with the blank before it, and other blanks.
 * @param {string} text
 * @returns {(TextSpan & {word: boolean})[]}
 */
function piecesOf(text) {
  const graphemes = graphemesOf(text);
  const found = [];
  for (let at = 0; at < text.length; ) {
    const led = text[at] === " " ? wordEnd(text, at + 1, graphemes) : at + 1;
    const end = led > at + 1 ? led : wordEnd(text, at, graphemes);
    const word = end > at;
    found.push({ start: at, end: word ? end : at + characterAt(text, at).length, word });
    at = found[found.length - 1].end;
  }
  return found;
}

/** A tokenizer: texts to ids and back. @param {TokenizerMeta} meta */
export function tokenizerOf({ kind, entries, merges }) {
  const ids = new Map(entries.map((entry, id) => [entry, id]));
  const ranks = new Map(merges.map(([left, right], rank) => [`${left}\n${right}`, rank]));

  /**
   * The entries of a piece, each with the characters it covers.
   * @param {string} piece
   * @returns {{entry: string, start: number, end: number}[]}
   */
  function entriesOf(piece) {
    if (kind === "word") return [{ entry: piece, start: 0, end: piece.length }];
    /** @type {{entry: string, start: number, end: number}[]} */
    const parts = [];
    let at = 0;
    for (const sign of piece) {
      const place = { start: at, end: at + sign.length };
      if (kind === "character" || ids.has(sign)) parts.push({ entry: sign, ...place });
      else {
        for (const byte of new TextEncoder().encode(sign)) {
          parts.push({ entry: `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`, ...place });
        }
      }
      at = place.end;
    }
    while (kind === "subword") {
      let [best, where] = [Infinity, -1];
      for (let n = 0; n + 1 < parts.length; n++) {
        const rank = ranks.get(`${parts[n].entry}\n${parts[n + 1].entry}`) ?? Infinity;
        if (rank < best) [best, where] = [rank, n];
      }
      if (where < 0) break;
      const [left, right] = parts.slice(where, where + 2);
      parts.splice(where, 2, { entry: left.entry + right.entry, start: left.start, end: right.end });
    }
    return parts;
  }

  /** @param {string} text @returns {Encoded} */
  function encode(text) {
    /** @type {Encoded} */
    const found = { ids: [], spans: [], groups: [] };
    const plain = kind === "word" ? text.replace(/\p{White_Space}+/gu, " ").replace(/^ | $/g, "") : text;
    const led = kind === "character" || !plain ? 0 : 1;
    const originals = kind === "word" ? wordSpans(text) : [];
    const whole = led ? ` ${plain}` : plain;
    for (const { start, end, word } of piecesOf(whole)) {
      const group = [];
      for (const part of entriesOf(whole.slice(start, end))) {
        group.push(found.ids.length);
        found.ids.push(ids.get(part.entry) ?? UNK_ID);
        const [from, to] = [start + part.start - led, start + part.end - led];
        const original = originals[found.groups.length];
        found.spans.push(original ?? { start: Math.max(0, from), end: Math.max(0, to) });
      }
      if (word) found.groups.push(group);
    }
    return found;
  }

  /** The text of ids, without special tokens. @param {number[]} given */
  function decode(given) {
    let text = "";
    /** @type {number[]} */
    let run = [];
    const flush = () => {
      try {
        text += new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(run));
      } catch {
        text += "\ufffd".repeat(run.length);
      }
      run = [];
    };
    for (const id of given) {
      if (id < SPECIAL_IDS) continue;
      const byte = kind === "subword" ? BYTE.exec(entries[id]) : null;
      if (byte) run.push(parseInt(byte[1], 16));
      else {
        if (run.length) flush();
        text += entries[id];
      }
    }
    if (run.length) flush();
    return kind !== "character" && text.startsWith(" ") ? text.slice(1) : text;
  }

  return {
    size: entries.length,
    /** Whether every text can be encoded. */
    complete: kind === "subword",
    encode,
    decode,
    /** Entries in readable form: a blank as ▁. @param {number[]} given */
    tokens: (given) => given.map((id) => entries[id].replaceAll(" ", "▁")),
    /** The words of a text with a token that is not in the vocabulary, each once. @param {string} text */
    unknown(text) {
      if (kind === "subword") return [];
      const { ids: read, groups } = encode(text);
      const every = wordsIn(text);
      return [...new Set(every.filter((_, n) => groups[n]?.some((i) => read[i] === UNK_ID)))];
    },
  };
}
