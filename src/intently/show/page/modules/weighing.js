/**
 * The weights of one row from the stored numbers: w = exp(z − lse), z = softcap(scale · score) +
 * bias, 0 where masked; all of it in double precision.
 */

/** @typedef {import("./data.js").Entry} Entry */
/** @typedef {import("./data.js").Numbers} Numbers */
/** Write weights of row i, columns c0 … c1 − 1, to `out`. @typedef {(i: number, c0: number, c1: number, out: Float64Array) => void} Weigh */
/** Whether query i may attend to key j. @typedef {(i: number, j: number) => boolean} Shows */

/**
 * Whether query i may attend to key j, from bits: rows of ⌈s/8⌉ bytes, lowest bit first.
 * @param {Numbers} bits
 * @param {Entry} about
 * @param {number} head
 * @returns {(i: number, j: number) => boolean}
 */
export function visibility(bits, { t, s }, head) {
  const row = Math.ceil(s / 8);
  const start = head * t * row;
  return (i, j) => ((bits[start + i * row + (j >> 3)] >> (j & 7)) & 1) === 1;
}

/** Weights that are stored. @param {number} s @param {Float32Array} weights (t, s) @returns {Weigh} */
export function copying(s, weights) {
  return (i, c0, c1, out) => {
    for (let j = c0; j < c1; j++) out[j - c0] = weights[i * s + j];
  };
}

/**
 * @param {Entry} about
 * @param {{q: Float32Array, k: Float32Array, lse: Numbers, energy: Numbers | null,
 *   bias: Float32Array | null, shows: Shows | null}} numbers
 * @returns {Weigh}
 */
export function weighing({ t, s, d, scale, softcap, ...about }, { q, k, lse, energy, bias, shows }) {
  const query = new Float64Array(d);
  const kind = bias ? about.bias?.kind : undefined;
  /** Bias of row i, key j stands at first + i · down + j. */
  const [first, down] = kind === "distance" ? [t - 1, -1] : kind === "dense" ? [0, s] : [0, 0];

  return (i, c0, c1, out) => {
    const total = lse[i];
    let [from, to] = [c0, total === -Infinity ? c0 : c1];
    if (shows) {
      while (from < to && !shows(i, from)) from++;
      while (from < to && !shows(i, to - 1)) to--;
    }
    out.fill(0, 0, c1 - c0);
    for (let x = 0; x < d; x++) query[x] = q[i * d + x];
    if (energy) energies(query, k, energy, from, to, out, c0);
    else products(query, k, from, to, out, c0);
    const start = first + i * down;
    for (let j = from; j < to; j++) {
      let z = scale * out[j - c0];
      if (softcap) z = softcap * Math.tanh(z / softcap);
      if (bias) z += bias[start + j];
      out[j - c0] = shows && !shows(i, j) ? 0 : Math.exp(z - total);
    }
  };
}

/**
 * Dot products of a query with keys from … to − 1, four keys at a time: twice as fast as one.
 * @param {Float64Array} query (d)
 * @param {Float32Array} k (s, d)
 * @param {number} from
 * @param {number} to
 * @param {Float64Array} out that of key j goes to j − c0
 * @param {number} c0
 */
function products(query, k, from, to, out, c0) {
  const d = query.length;
  let j = from;
  for (; j + 3 < to; j += 4) {
    const [y0, y1, y2, y3] = [j * d, (j + 1) * d, (j + 2) * d, (j + 3) * d];
    let a = 0;
    let b = 0;
    let c = 0;
    let e = 0;
    for (let x = 0; x < d; x++) {
      const w = query[x];
      a += w * k[y0 + x];
      b += w * k[y1 + x];
      c += w * k[y2 + x];
      e += w * k[y3 + x];
    }
    out[j - c0] = a;
    out[j + 1 - c0] = b;
    out[j + 2 - c0] = c;
    out[j + 3 - c0] = e;
  }
  for (; j < to; j++) {
    let sum = 0;
    for (let x = 0; x < d; x++) sum += query[x] * k[j * d + x];
    out[j - c0] = sum;
  }
}

/**
 * Σ energy · tanh(query + key), the additive score of Bahdanau et al. 2015, appendix A.1.2.
 * @param {Float64Array} query (d)
 * @param {Float32Array} k (s, d)
 * @param {Numbers} energy (d)
 * @param {number} from
 * @param {number} to
 * @param {Float64Array} out
 * @param {number} c0
 */
function energies(query, k, energy, from, to, out, c0) {
  const d = query.length;
  for (let j = from; j < to; j++) {
    let sum = 0;
    for (let x = 0; x < d; x++) sum += energy[x] * Math.tanh(query[x] + k[j * d + x]);
    out[j - c0] = sum;
  }
}
