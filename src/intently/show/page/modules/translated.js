/** A translation as what a page holds: its words, and every weight of its search. */

/** @typedef {import("./data.js").Entry} Entry */
/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./translator.js").Result} Result */
/** @typedef {Result["layers"][number]} Layer */
/** Keep numbers of a shape as a block. @typedef {(numbers: Float32Array | Uint8Array, ...shape: number[]) => number} Add */
/** Something that is said of a head. @typedef {{layer: string, head: number, text: string}} Remark */

/** Most rows and columns of an overview. */
const POOLED = 64;

const STATISTICS = ["entropy", "confidence", "sink", "self", "previous", "distance"];

/** An empty page, to be filled with translations. @param {string} title @returns {Page} */
export function livePage(title) {
  const [sides, entries] = [[{ kind: /** @type {const} */ ("text"), tokens: [] }], /** @type {Entry[]} */ ([])];
  const items = [{ name: title, sides, entries }];
  const bound = { weights: 1e-4, nan: false };
  const meta = { format: "intently-page-1", title, precision: "full", bound, blocks: [], items };
  return {
    meta: { ...meta, source: "live", statistics: STATISTICS, highlights: [] },
    block: () => Promise.reject(new Error("nothing is translated yet")),
    edition: 0,
  };
}

/**
 * Let a page hold a translation, up to the step at which `upto` tokens are written.
 * @param {Page} page
 * @param {Result} result
 * @param {number} upto
 * @param {Remark[]} remarks
 */
export function exchange(page, result, upto, remarks) {
  /** @type {import("./data.js").Numbers[]} */
  const blocks = [];
  /** @type {import("./data.js").BlockMeta[]} */
  const kinds = [];
  /** @type {Add} */
  const add = (numbers, ...shape) => {
    kinds.push({ dtype: numbers instanceof Uint8Array ? "uint8" : "float32", shape });
    return blocks.push(numbers) - 1;
  };
  const written = result.written.slice(0, upto);
  const inputs = ["<s>", ...written.slice(0, -1)];
  const [item] = page.meta.items;
  item.name = result.read || page.meta.title;
  item.note = result.notes.join(" ") || null;
  item.sides = [
    { kind: "text", tokens: result.source },
    { kind: "text", tokens: inputs, produced: 1 },
  ];
  item.entries = result.layers.map((layer, n) => entryOf(n, begun(layer, written.length), written, add));
  page.meta.highlights = remarks.flatMap(({ layer, head, text }) => {
    const entry = item.entries.findIndex(({ name }) => name === layer);
    return entry < 0 ? [] : [{ item: 0, entry, head, text }];
  });
  page.meta.blocks = kinds;
  page.block = (n) => (blocks[n] ? Promise.resolve(blocks[n]) : Promise.reject(new Error(`there is no block ${n}`)));
  page.edition++;
}

/**
 * The first steps of a layer; those of an encoder are not written.
 * @param {Layer} layer
 * @param {number} steps
 * @returns {Layer}
 */
function begun(layer, steps) {
  if (layer.name.startsWith("encoder")) return layer;
  const own = layer.name.endsWith("self_attention");
  const [t, s] = [Math.min(layer.t, steps), own ? Math.min(layer.s, steps) : layer.s];
  const weights = new Float32Array(layer.heads * t * s);
  for (let head = 0; head < layer.heads; head++) {
    for (let i = 0; i < t; i++) {
      const from = (head * layer.t + i) * layer.s;
      weights.set(layer.weights.subarray(from, from + s), (head * t + i) * s);
    }
  }
  return { ...layer, t, s, weights, rows: layer.rows.slice(0, t), columns: layer.columns.slice(0, s) };
}

/** @param {number} depth @param {Layer} layer @param {string[]} written @param {Add} add @returns {Entry} */
function entryOf(depth, { name, heads, t, s, weights }, written, add) {
  const encoder = name.startsWith("encoder");
  const cross = name.endsWith("cross_attention");
  const each = Array.from({ length: heads }, (_, head) => weights.subarray(head * t * s, (head + 1) * t * s));
  const measured = each.map((head) => measuresOf(head, t, s, !cross));
  const pictures = each.map((head) => pooledTo64(head, t, s));
  const [rows, columns] = [Math.min(POOLED, t), Math.min(POOLED, s)];
  const overview = new Uint8Array(heads * rows * columns);
  pictures.forEach(({ cells }, head) => overview.set(cells, head * rows * columns));
  return {
    name,
    kind: cross ? "cross" : "self",
    layer: depth,
    rows: encoder ? 0 : 1,
    columns: cross || encoder ? 0 : 1,
    row_labels: encoder ? null : written,
    t,
    s,
    heads,
    mask: cross || encoder ? null : { block: add(causalBits(t), t, Math.ceil(t / 8)), heads: 1 },
    score: { kind: "weights", blocks: each.map((head) => add(head, t, s)) },
    scale: 1,
    d: 0,
    q: [],
    k: [],
    group: 1,
    lse: [],
    entropy: measured.map(({ entropy }) => add(entropy, t)),
    received: measured.map(({ received }) => add(received, s)),
    overview: add(overview, heads, rows, columns),
    overview_max: pictures.map(({ largest }) => largest),
    statistics: Object.fromEntries(STATISTICS.map((of) => [of, measured.map(({ averages }) => averages[of] ?? null)])),
  };
}

/**
 * What `intently.core.matrix.patterns.measure` finds of one head: entropy and received attention, and
 * averages over the queries that attend to anything.
 * @param {Float32Array} weights (t, s)
 * @param {number} t
 * @param {number} s
 * @param {boolean} own whether queries and keys are one text, so that a query has a position
 */
export function measuresOf(weights, t, s, own) {
  const entropy = new Float32Array(t);
  const received = new Float32Array(s);
  /** @type {Record<string, {total: number, count: number}>} */
  const sums = Object.fromEntries(STATISTICS.map((name) => [name, { total: 0, count: 0 }]));
  /** @param {string} name @param {number} value */
  const count = (name, value) => {
    sums[name].total += value;
    sums[name].count++;
  };
  for (let i = 0; i < t; i++) {
    const row = weights.subarray(i * s, (i + 1) * s);
    const place = s - t + i;
    let [bits, most, mass, far] = [0, 0, 0, 0];
    for (let j = 0; j < s; j++) {
      const w = row[j];
      received[j] += w;
      mass += w;
      if (w > 0) bits -= w * Math.log(w);
      if (w > most) most = w;
      far += w * Math.abs(place - j);
    }
    entropy[i] = bits;
    if (!mass) continue;
    count("entropy", bits);
    count("confidence", most);
    count("sink", row[0]);
    if (!own) continue;
    count("distance", far);
    if (place >= 0 && place < s) count("self", row[place]);
    if (place >= 1) count("previous", row[place - 1]);
  }
  /** @type {Record<string, number | null>} */
  const averages = {};
  for (const [name, { total, count: n }] of Object.entries(sums)) averages[name] = n ? total / n : null;
  return { entropy, received, averages };
}

/**
 * Which keys a query that writes may look at, a bit for each, rows of whole bytes, lowest bit first.
 * @param {number} t
 */
function causalBits(t) {
  const wide = Math.ceil(t / 8);
  const bits = new Uint8Array(t * wide);
  for (let i = 0; i < t; i++) for (let j = 0; j <= i; j++) bits[i * wide + (j >> 3)] |= 1 << (j & 7);
  return bits;
}

/**
 * A head in at most 64 × 64 bytes: √ of the mean weights, as a share of the largest.
 * @param {Float32Array} weights
 * @param {number} t
 * @param {number} s
 */
function pooledTo64(weights, t, s) {
  const [rows, columns] = [Math.min(POOLED, t), Math.min(POOLED, s)];
  const means = new Float64Array(rows * columns);
  let largest = 0;
  for (let r = 0; r < rows; r++) {
    const [r0, r1] = [Math.floor((r * t) / rows), Math.ceil(((r + 1) * t) / rows)];
    for (let c = 0; c < columns; c++) {
      const [c0, c1] = [Math.floor((c * s) / columns), Math.ceil(((c + 1) * s) / columns)];
      let sum = 0;
      for (let i = r0; i < r1; i++) for (let j = c0; j < c1; j++) sum += weights[i * s + j];
      means[r * columns + c] = sum / ((r1 - r0) * (c1 - c0));
      largest = Math.max(largest, means[r * columns + c]);
    }
  }
  return { largest, cells: Uint8Array.from(means, (w) => Math.round(255 * Math.sqrt(w / (largest || 1)))) };
}
