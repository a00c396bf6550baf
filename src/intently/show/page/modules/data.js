/**
 * What the page holds: META, and blocks of numbers that are decoded when somebody asks.
 *
 * A block is base64 of a zlib stream of its bytes, little endian, all first bytes before all
 * second bytes. Types of META stand here once, for every other module.
 */

/** @typedef {Float32Array | Float64Array | Uint8Array} Numbers */
/** @typedef {{dtype: "float16" | "float32" | "float64" | "uint8" | "bits", shape: number[]}} BlockMeta */
/** @typedef {{kind: "text", tokens: string[], produced?: number | null}} TextSide */
/** @typedef {{kind: "picture", image: string, rows: number, columns: number, before: number}} PictureSide */
/** @typedef {TextSide | PictureSide} Side */
/** @typedef {{kind: "dot"} | {kind: "additive", energy: number} | {kind: "weights", blocks: number[]}} ScoreMeta */
/** @typedef {{kind: "distance" | "key" | "dense", blocks: number[]}} BiasMeta */
/**
 * @typedef {{
 *   name: string, kind: "self" | "cross", layer: number, rows: number, columns: number,
 *   row_labels?: string[] | null, t: number, s: number, heads: number, d: number,
 *   score: ScoreMeta, scale: number, softcap?: number | null, sinks?: number[] | null,
 *   q: number[], k: number[], group: number,
 *   mask?: {block: number, heads: number} | null, bias?: BiasMeta | null,
 *   lse: number[], entropy: number[], received: number[],
 *   overview: number, overview_max: (number | null)[] | null, statistics: Record<string, (number | null)[]>
 * }} Entry
 */
/** @typedef {{name: string, note?: string | null, sides: Side[], entries: Entry[]}} Item */
/**
 * @typedef {{
 *   format: string, title: string, precision: string, source: "file" | "server" | "live", sampled?: boolean,
 *   bound?: {weights: number | null, nan: boolean} | null, blocks: BlockMeta[], items: Item[],
 *   statistics: string[], kinds?: Record<string, Record<number, string>>, state?: Record<string, unknown> | null,
 *   highlights?: {item: number, entry: number, head: number, text: string}[]
 * }} Meta
 */
/** @typedef {{rows: string[], columns: string[], writes: string[] | null}} Names */
/**
 * What is shown. `edition` counts how often its contents were exchanged, as a live translator does;
 * `hand` changes weights, where that is possible.
 * @typedef {{
 *   meta: Meta, block: (n: number) => Promise<Numbers>, edition: number,
 *   hand?: import("./gestures.js").Hand | null
 * }} Page
 */

/** Bytes of decoded blocks that are kept; what was used longest ago goes first. */
const KEPT = 192 * 2 ** 20;

/** The error of numbers in single precision, and of weights whose error is not known. */
const SINGLE = 1e-7;
const UNKNOWN = 0.001;

/** How often a block that the browser has not read yet is looked for, in ms. */
const AGAIN = 15;

const PLANES = { float16: 2, float32: 4, float64: 8, uint8: 1, bits: 1 };

/**
 * Open the page that this document holds.
 * @param {ParentNode & {readyState?: string}} document a document, or the element of a widget
 * @returns {Page}
 */
export function openPage(document) {
  const script = document.querySelector("#intently-page");
  if (!script) throw new Error("the page has no description: #intently-page is missing");
  const meta = /** @type {Meta} */ (JSON.parse(script.textContent ?? ""));
  if (meta.format !== "intently-page-1") {
    throw new Error(`the page has the format ${meta.format}; this program reads intently-page-1`);
  }
  return pageOf(meta, (n) => textOf(document, n));
}

/**
 * A page whose blocks come from anywhere: each is decoded once and kept while there is room.
 * @param {Meta} meta
 * @param {(n: number) => Promise<string>} read the base64 text of a block
 * @returns {Page}
 */
export function pageOf(meta, read) {
  /** @type {Map<number, {numbers: Promise<Numbers>, bytes: number}>} */
  const kept = new Map();
  let total = 0;

  /** @param {number} n */
  function block(n) {
    const known = kept.get(n);
    if (known) {
      kept.delete(n);
      kept.set(n, known);
      return known.numbers;
    }
    const about = meta.blocks[n];
    if (!about) return Promise.reject(new Error(`the page has no block ${n}`));
    const bytes = bytesOf(about);
    const numbers = read(n).then((text) => decode(text, about));
    kept.set(n, { numbers, bytes });
    total += bytes;
    numbers.catch(() => {
      if (kept.delete(n)) total -= bytes;
    });
    for (const [old, { bytes: size }] of kept) {
      if (total <= KEPT || old === n) break;
      kept.delete(old);
      total -= size;
    }
    return numbers;
  }
  return { meta, block, edition: 0 };
}

/**
 * The text of a block; waits while the browser still reads the file.
 * @param {ParentNode & {readyState?: string}} document
 * @param {number} n
 * @returns {Promise<string>}
 */
async function textOf(document, n) {
  for (;;) {
    const complete = document.readyState !== "loading";
    const script = document.querySelector(`script[data-block="${n}"]`);
    if (script && (complete || script.nextElementSibling)) return script.textContent ?? "";
    if (complete) throw new Error(`the page is cut short: block ${n} is missing`);
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
  }
}

/** How many numbers a block holds; of bits, how many bytes. @param {BlockMeta} about */
function countOf({ dtype, shape }) {
  if (dtype !== "bits") return shape.reduce((product, n) => product * n, 1);
  const lead = shape.slice(0, -1).reduce((product, n) => product * n, 1);
  return lead * Math.ceil((shape.at(-1) ?? 0) / 8);
}

/** @param {BlockMeta} about */
function bytesOf(about) {
  return countOf(about) * Math.max(PLANES[about.dtype], about.dtype === "float16" ? 4 : 1);
}

/**
 * The numbers of a block: base64, inflated, planes of bytes put together.
 * @param {string} text
 * @param {BlockMeta} about
 * @returns {Promise<Numbers>}
 */
export async function decode(text, about) {
  const letters = atob(text.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const count = countOf(about);
  const bytes = await inflate(packed, count * PLANES[about.dtype]);
  if (about.dtype === "float16") return halves(bytes, count);
  if (about.dtype === "float32") return new Float32Array(joined(bytes, count, 4));
  if (about.dtype === "float64") return new Float64Array(joined(bytes, count, 8));
  return bytes;
}

/**
 * Inflate a zlib stream that holds exactly `size` bytes; whoever wrote more or fewer is refused.
 * @param {Uint8Array<ArrayBuffer>} packed
 * @param {number} size
 * @returns {Promise<Uint8Array>}
 */
async function inflate(packed, size) {
  const found = new Uint8Array(size);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const reader = stream.getReader();
  let at = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (at + value.length > size) {
      await reader.cancel();
      throw new Error(`a block holds more than the ${size} bytes that it says`);
    }
    found.set(value, at);
    at += value.length;
  }
  if (at !== size) throw new Error(`a block holds ${at} bytes; it says ${size}`);
  return found;
}

/** @type {Float32Array | null} */
let everyHalf = null;

/** The 65,536 half-precision numbers, by their bits. */
function halfTable() {
  if (everyHalf) return everyHalf;
  everyHalf = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    everyHalf[bits] =
      exponent === 31
        ? fraction
          ? NaN
          : sign * Infinity
        : exponent
          ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
          : sign * 2 ** -24 * fraction;
  }
  return everyHalf;
}

/** @param {Uint8Array} bytes all low bytes, then all high bytes @param {number} count */
function halves(bytes, count) {
  const every = halfTable();
  const found = new Float32Array(count);
  for (let i = 0; i < count; i++) found[i] = every[bytes[i] | (bytes[count + i] << 8)];
  return found;
}

/**
 * Put planes of bytes together, in the order of bytes of this machine.
 * @param {Uint8Array} bytes the planes, lowest first
 * @param {number} count
 * @param {number} size bytes of a number
 */
function joined(bytes, count, size) {
  const found = new Uint8Array(count * size);
  const little = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;
  for (let plane = 0; plane < size; plane++) {
    const from = plane * count;
    for (let i = 0, at = little ? plane : size - 1 - plane; i < count; i++, at += size) {
      found[at] = bytes[from + i];
    }
  }
  return found.buffer;
}

/**
 * The raw names of rows and columns of an entry: tokens, places in a picture, or numbers. Where a
 * text looks at itself, the rows are its last tokens, and `writes` what each of them writes.
 * @param {Meta} meta
 * @param {number} item
 * @param {number} entry
 * @returns {Names}
 */
export function namesOf(meta, item, entry) {
  const { sides, entries } = meta.items[item];
  const { rows, columns, row_labels, t, s } = entries[entry];
  const known = sideNames(sides[columns], s);
  const told = row_labels?.length === t ? row_labels : null;
  if (rows === columns && t <= s) return { rows: known.slice(s - t), columns: known, writes: told };
  return { rows: told ?? sideNames(sides[rows], t), columns: known, writes: null };
}

/** How far weights of this page may be from the model's: no digits are shown below it. @param {Meta} meta */
export function errorOf({ source, bound }) {
  if (source === "server") return SINGLE;
  return Math.max(SINGLE, bound?.weights ?? UNKNOWN);
}

/** @param {Side | undefined} side @param {number} count @returns {string[]} */
function sideNames(side, count) {
  return Array.from({ length: count }, (_, n) => {
    if (side?.kind === "text") return side.tokens[n] ?? String(n);
    if (side?.kind !== "picture" || n >= side.before + side.rows * side.columns) return String(n);
    if (n < side.before) return n ? `register ${n}` : "CLS";
    const patch = n - side.before;
    return `patch ${Math.floor(patch / side.columns)},${patch % side.columns}`;
  });
}

/**
 * What is said of a head; "" where nothing is.
 * @param {Meta} meta
 * @param {number} item
 * @param {number} entry
 * @param {string} heads
 */
export function saidOf({ highlights = [] }, item, entry, heads) {
  const own = highlights.filter((h) => h.item === item && h.entry === entry && String(h.head) === heads);
  return own.map(({ text }) => text).join(" · ");
}
