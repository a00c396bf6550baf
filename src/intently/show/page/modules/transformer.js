/**
 * The Transformer of `intently.nn.models`, from its weights: an encoder that reads all tokens at once,
 * and a decoder that takes one token for each beam.
 */

import { changesOf, weightsOf } from "./changes.js";
import { added, feedForward, layerNorm, linear, rotate } from "./layers.js";

/** @typedef {import("./changes.js").Change} Change */
/** @typedef {import("./changes.js").LayerChanges} LayerChanges */
/** @typedef {import("./layers.js").Linear} Linear */
/** @typedef {import("./layers.js").Norm} Norm */
/**
 * @typedef {{
 *   source_vocabulary: number, target_vocabulary: number, width: number, heads: number,
 *   encoder_layers: number, decoder_layers: number, inner: number, norm: "pre" | "post",
 *   kv_heads: number | null, positions: "sinusoidal" | "learned" | "rotary",
 *   feed_forward: "relu" | "gated"
 * }} ModelOptions
 */
/** The numbers of a parameter; null where the model has none of that name. @typedef {(name: string) => Float32Array | null} Parameters */
/** @typedef {{qkv: Linear, out: Linear}} AttentionWeights */
/** Weights (h, rows, columns) of a layer. @typedef {{name: string, t: number, s: number, weights: Float32Array}} Attended */
/**
 * What the encoder made of a text: keys and values for each decoder layer, and its attention.
 * @typedef {{s: number, cross: {keys: Float32Array, values: Float32Array}[], attended: Attended[]}} Encoding
 */
/**
 * The past of a beam, layer by layer and step by step: keys and values of its own tokens, and the
 * weights (h, keys) of its queries.
 * @typedef {{keys: Float32Array[][], values: Float32Array[][], own: Float32Array[][], cross: Float32Array[][]}} Past
 */
/** @typedef {ReturnType<typeof transformerOf>} RunningTransformer */

/** @param {ModelOptions} options @param {Parameters} numbers */
export function transformerOf(options, numbers) {
  const { width: c, heads: h, norm: order } = options;
  const g = options.kv_heads ?? h;
  const d = c / h;
  const scale = 1 / Math.sqrt(d);
  const rotary = options.positions === "rotary";

  /** @param {string} name */
  function needed(name) {
    const found = numbers(name);
    if (!found) throw new Error(`the file has no weights ${name}`);
    return found;
  }

  /** @param {string} name @param {string} mark @returns {Linear} */
  function linearOf(name, mark = ".") {
    const weight = needed(`${name}${mark}weight`);
    const bias = numbers(`${name}${mark}bias`);
    return { weight, bias, out: 0 };
  }

  /** @param {Linear} layer @param {number} wide the width of its input @returns {Linear} */
  const sized = (layer, wide) => ({ ...layer, out: layer.weight.length / wide });

  /** @param {string} name @returns {AttentionWeights} */
  const attentionOf = (name) => ({
    qkv: sized(linearOf(`${name}.qkv`, "_"), c),
    out: sized(linearOf(`${name}.out`, "_"), h * d),
  });

  /** @param {string} name @returns {Norm} */
  const normOf = (name) => ({ weight: needed(`${name}.weight`), bias: needed(`${name}.bias`) });

  /** @param {string} name */
  function feedOf(name) {
    const gated = options.feed_forward === "gated";
    const up = sized(linearOf(`${name}.${gated ? "gate_up" : "up"}`), c);
    return { up, down: sized(linearOf(`${name}.down`), gated ? up.out / 2 : up.out), gated };
  }

  /** @param {Linear} layer @param {number} from @param {number} to @returns {Linear} rows of it */
  const rowsOf = ({ weight, bias }, from, to) => ({
    weight: weight.subarray(from * c, to * c),
    bias: bias?.subarray(from, to) ?? null,
    out: to - from,
  });

  const encoder = Array.from({ length: options.encoder_layers }, (_, n) => ({
    own: attentionOf(`encoder.${n}.self_attention`),
    feed: feedOf(`encoder.${n}.feed_forward`),
    norms: ["self_norm", "feed_norm"].map((of) => normOf(`encoder.${n}.${of}`)),
  }));
  const decoder = Array.from({ length: options.decoder_layers }, (_, n) => {
    const cross = attentionOf(`decoder.${n}.cross_attention`);
    return {
      own: attentionOf(`decoder.${n}.self_attention`),
      asks: rowsOf(cross.qkv, 0, h * d),
      reads: rowsOf(cross.qkv, h * d, (h + 2 * g) * d),
      crossOut: cross.out,
      feed: feedOf(`decoder.${n}.feed_forward`),
      norms: ["self_norm", "cross_norm", "feed_norm"].map((of) => normOf(`decoder.${n}.${of}`)),
    };
  });
  const last = order === "pre" ? { encoder: normOf("encoder_norm"), decoder: normOf("decoder_norm") } : null;
  const embeddings = { source: needed("source_embedding.weight"), target: needed("target_embedding.weight") };
  const output = { weight: embeddings.target, bias: null, out: options.target_vocabulary };
  const tables = rotary
    ? null
    : options.positions === "learned"
      ? { source: needed("source_positions.weight"), target: needed("target_positions.weight") }
      : { source: needed("positions"), target: needed("positions") };

  /**
   * Embeddings times √c, plus positions from `first` on.
   * @param {"source" | "target"} side
   * @param {number[]} ids
   * @param {(row: number) => number} positionOf
   */
  function embedded(side, ids, positionOf) {
    const x = new Float32Array(ids.length * c);
    const [table, by] = [embeddings[side], Math.sqrt(c)];
    ids.forEach((id, row) => {
      const position = positionOf(row);
      if (tables && (position + 1) * c > tables[side].length) {
        throw new Error(`this model reads and writes at most ${tables[side].length / c} tokens`);
      }
      for (let i = 0; i < c; i++) {
        x[row * c + i] = table[id * c + i] * by + (tables ? tables[side][position * c + i] : 0);
      }
    });
    return x;
  }

  /**
   * x + f(norm(x)), or norm(x + f(x)).
   * @param {Float32Array} x
   * @param {Norm} norm
   * @param {(y: Float32Array) => Float32Array} f
   */
  function residual(x, norm, f) {
    if (order === "pre") return added(f(layerNorm(x, norm)), x);
    return layerNorm(added(f(x), x), norm);
  }

  const spare = new Float64Array(8192);

  /**
   * One query of each head over `count` keys: weights to `told` (h, count), the product to y.
   * @param {Float32Array} q with the query from `at` on
   * @param {number} at
   * @param {number} count
   * @param {(j: number) => Float32Array} keyOf the array with key j, from `keyAt(j)` on
   * @param {(j: number) => number} keyAt
   * @param {(j: number) => Float32Array} valueOf
   * @param {(j: number) => number} valueAt
   * @param {LayerChanges | null} changes
   * @param {number} row
   * @param {Float32Array} told
   * @param {number} toldAt where head 0 goes in `told`, and how far heads are apart
   * @param {number} apart
   * @param {Float32Array} y
   * @param {number} yAt
   */
  function attend(q, at, count, keyOf, keyAt, valueOf, valueAt, changes, row, told, toldAt, apart, y, yAt) {
    for (let head = 0; head < h; head++) {
      const from = at + head * d;
      const kv = Math.floor((head * g) / h) * d;
      for (let j = 0; j < count; j++) {
        const [key, start] = [keyOf(j), keyAt(j) + kv];
        let sum = 0;
        for (let i = 0; i < d; i++) sum += q[from + i] * key[start + i];
        spare[j] = sum * scale;
      }
      weightsOf(spare, count, changes, head, row);
      const off = changes?.off(head) ?? false;
      for (let j = 0; j < count; j++) {
        const w = spare[j];
        told[toldAt + head * apart + j] = w;
        if (!w || off) continue;
        const [value, start] = [valueOf(j), valueAt(j) + kv];
        for (let i = 0; i < d; i++) y[yAt + head * d + i] += w * value[start + i];
      }
    }
  }

  /** Read a text. @param {number[]} ids with the end token @param {Change[]} changes @returns {Encoding} */
  function encode(ids, changes) {
    const s = ids.length;
    /** @type {Float32Array} */
    let x = embedded("source", ids, (row) => row);
    /** @type {Attended[]} */
    const attended = [];
    encoder.forEach(({ own, feed, norms }, n) => {
      const name = `encoder.${n}.self_attention`;
      const edits = changesOf(changes, name);
      const weights = new Float32Array(h * s * s);
      x = residual(x, norms[0], (y) => {
        const heads = linear(y, s, own.qkv);
        const wide = own.qkv.out;
        if (rotary) for (let row = 0; row < s; row++) rotate(heads, row * wide, h + g, d, row);
        const product = new Float32Array(s * h * d);
        const whole = () => heads;
        for (let row = 0; row < s; row++) {
          const keyAt = (/** @type {number} */ j) => j * wide + h * d;
          const valueAt = (/** @type {number} */ j) => j * wide + (h + g) * d;
          attend(heads, row * wide, s, whole, keyAt, whole, valueAt, edits, row, weights, row * s, s * s, product, row * h * d);
        }
        return linear(product, s, own.out);
      });
      x = residual(x, norms[1], (y) => feedForward(y, s, feed));
      attended.push({ name, t: s, s, weights });
    });
    const states = last ? layerNorm(x, last.encoder) : x;
    const cross = decoder.map(({ reads }) => {
      const both = linear(states, s, reads);
      const [keys, values] = [new Float32Array(s * g * d), new Float32Array(s * g * d)];
      for (let j = 0; j < s; j++) {
        keys.set(both.subarray(j * 2 * g * d, (j * 2 + 1) * g * d), j * g * d);
        values.set(both.subarray((j * 2 + 1) * g * d, (j * 2 + 2) * g * d), j * g * d);
      }
      return { keys, values };
    });
    return { s, cross, attended };
  }

  /**
   * The logits (beams, V) after one more token of each beam, whose past grows by it.
   * @param {number[]} tokens
   * @param {Past[]} pasts of equal length
   * @param {Encoding} encoding
   * @param {Change[]} changes
   */
  function step(tokens, pasts, encoding, changes) {
    const rows = tokens.length;
    const t = pasts[0].keys[0]?.length ?? 0;
    /** @type {Float32Array} */
    let x = embedded("target", tokens, () => t);
    decoder.forEach(({ own, asks, crossOut, feed, norms }, n) => {
      const edits = changesOf(changes, `decoder.${n}.self_attention`);
      const crossEdits = changesOf(changes, `decoder.${n}.cross_attention`);
      x = residual(x, norms[0], (y) => {
        const heads = linear(y, rows, own.qkv);
        const wide = own.qkv.out;
        const product = new Float32Array(rows * h * d);
        pasts.forEach((past, row) => {
          const at = row * wide;
          if (rotary) rotate(heads, at, h + g, d, t);
          past.keys[n].push(heads.slice(at + h * d, at + (h + g) * d));
          past.values[n].push(heads.slice(at + (h + g) * d, at + (h + 2 * g) * d));
          const told = new Float32Array(h * (t + 1));
          const [keys, values, start] = [past.keys[n], past.values[n], () => 0];
          attend(heads, at, t + 1, (j) => keys[j], start, (j) => values[j], start, edits, t, told, 0, t + 1, product, row * h * d);
          past.own[n].push(told);
        });
        return linear(product, rows, own.out);
      });
      x = residual(x, norms[1], (y) => {
        const q = linear(y, rows, asks);
        const product = new Float32Array(rows * h * d);
        const { s } = encoding;
        const { keys, values } = encoding.cross[n];
        const at = (/** @type {number} */ j) => j * g * d;
        pasts.forEach((past, row) => {
          const told = new Float32Array(h * s);
          attend(q, row * h * d, s, () => keys, at, () => values, at, crossEdits, t, told, 0, s, product, row * h * d);
          past.cross[n].push(told);
        });
        return linear(product, rows, crossOut);
      });
      x = residual(x, norms[2], (y) => feedForward(y, rows, feed));
    });
    return linear(last ? layerNorm(x, last.decoder) : x, rows, output);
  }

  /** The past of a beam that has written nothing. @returns {Past} */
  function begun() {
    const empty = () => decoder.map(() => /** @type {Float32Array[]} */ ([]));
    return { keys: empty(), values: empty(), own: empty(), cross: empty() };
  }

  /** A past that goes on apart from this one. @param {Past} past @returns {Past} */
  function forked({ keys, values, own, cross }) {
    const copy = (/** @type {Float32Array[][]} */ layers) => layers.map((steps) => [...steps]);
    return { keys: copy(keys), values: copy(values), own: copy(own), cross: copy(cross) };
  }

  /**
   * The attention of every layer of a past, its encoder's included, as matrices (h, t, s).
   * @param {Past} past
   * @param {Encoding} encoding
   * @param {number} t
   * @returns {Attended[]}
   */
  function attendedBy(past, encoding, t) {
    const { s } = encoding;
    /** @param {Float32Array[]} steps @param {number} wide */
    const joinedRows = (steps, wide) => {
      const weights = new Float32Array(h * t * wide);
      for (let i = 0; i < t; i++) {
        const count = steps[i].length / h;
        for (let head = 0; head < h; head++) {
          weights.set(steps[i].subarray(head * count, (head + 1) * count), (head * t + i) * wide);
        }
      }
      return weights;
    };
    const own = decoder.flatMap((_, n) => [
      { name: `decoder.${n}.self_attention`, t, s: t, weights: joinedRows(past.own[n], t) },
      { name: `decoder.${n}.cross_attention`, t, s, weights: joinedRows(past.cross[n], s) },
    ]);
    return [...encoding.attended.map((one) => ({ ...one, weights: one.weights.slice() })), ...own];
  }
  return { heads: h, vocabulary: options.target_vocabulary, encode, step, begun, forked, attendedBy };
}
