/** Layers over rows of numbers in single precision; sums are double, as JavaScript's numbers are. */

/** A weight (out, in) with its bias; rows of the weight are contiguous. @typedef {{weight: Float32Array, bias: Float32Array | null, out: number}} Linear */
/** @typedef {{weight: Float32Array, bias: Float32Array}} Norm */

const EPSILON = 1e-5;

/**
 * x (rows, c) times the transpose of the weight (out, c), plus the bias: (rows, out). Four rows at
 * a time share each load of a weight.
 * @param {Float32Array} x
 * @param {number} rows
 * @param {Linear} layer
 * @returns {Float32Array}
 */
export function linear(x, rows, { weight, bias, out }) {
  const y = new Float32Array(rows * out);
  const c = weight.length / out;
  let row = 0;
  for (; row + 4 <= rows; row += 4) fourRows(x, row, c, weight, bias, out, y);
  for (; row < rows; row++) oneRow(x, row, c, weight, bias, out, y);
  return y;
}

/**
 * @param {Float32Array} x
 * @param {number} row
 * @param {number} c
 * @param {Float32Array} weight
 * @param {Float32Array | null} bias
 * @param {number} out
 * @param {Float32Array} y
 */
function oneRow(x, row, c, weight, bias, out, y) {
  const from = row * c;
  const even = c - (c % 4);
  for (let o = 0; o < out; o++) {
    const at = o * c;
    let [a, b, e, f] = [0, 0, 0, 0];
    for (let i = 0; i < even; i += 4) {
      a += x[from + i] * weight[at + i];
      b += x[from + i + 1] * weight[at + i + 1];
      e += x[from + i + 2] * weight[at + i + 2];
      f += x[from + i + 3] * weight[at + i + 3];
    }
    for (let i = even; i < c; i++) a += x[from + i] * weight[at + i];
    y[row * out + o] = a + b + (e + f) + (bias ? bias[o] : 0);
  }
}

/**
 * @param {Float32Array} x
 * @param {number} row
 * @param {number} c
 * @param {Float32Array} weight
 * @param {Float32Array | null} bias
 * @param {number} out
 * @param {Float32Array} y
 */
function fourRows(x, row, c, weight, bias, out, y) {
  const [p, q, r, s] = [row * c, (row + 1) * c, (row + 2) * c, (row + 3) * c];
  for (let o = 0; o < out; o++) {
    const at = o * c;
    let a = 0;
    let b = 0;
    let e = 0;
    let f = 0;
    for (let i = 0; i < c; i++) {
      const w = weight[at + i];
      a += x[p + i] * w;
      b += x[q + i] * w;
      e += x[r + i] * w;
      f += x[s + i] * w;
    }
    const more = bias ? bias[o] : 0;
    y[row * out + o] = a + more;
    y[(row + 1) * out + o] = b + more;
    y[(row + 2) * out + o] = e + more;
    y[(row + 3) * out + o] = f + more;
  }
}

/**
 * Each row normed to mean 0 and variance 1, scaled and shifted (Ba et al. 2016).
 * @param {Float32Array} x (rows, c)
 * @param {Norm} norm
 * @returns {Float32Array}
 */
export function layerNorm(x, { weight, bias }) {
  const c = weight.length;
  const y = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += c) {
    let [sum, square] = [0, 0];
    for (let i = 0; i < c; i++) sum += x[at + i];
    const mean = sum / c;
    for (let i = 0; i < c; i++) square += (x[at + i] - mean) ** 2;
    const by = 1 / Math.sqrt(square / c + EPSILON);
    for (let i = 0; i < c; i++) y[at + i] = (x[at + i] - mean) * by * weight[i] + bias[i];
  }
  return y;
}

/** The sum of two arrays, in the first. @param {Float32Array} x @param {Float32Array} y */
export function added(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
  return x;
}

/**
 * Two linear maps with a ReLU between them, or gated: silu(gate) · up (Shazeer 2020).
 * @param {Float32Array} x
 * @param {number} rows
 * @param {{up: Linear, down: Linear, gated: boolean}} layer
 */
export function feedForward(x, rows, { up, down, gated }) {
  const wide = linear(x, rows, up);
  if (!gated) {
    for (let i = 0; i < wide.length; i++) if (wide[i] < 0) wide[i] = 0;
    return linear(wide, rows, down);
  }
  const inner = up.out / 2;
  const product = new Float32Array(rows * inner);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < inner; i++) {
      const gate = wide[row * up.out + i];
      product[row * inner + i] = (gate / (1 + Math.exp(-gate))) * wide[row * up.out + inner + i];
    }
  }
  return linear(product, rows, down);
}

/**
 * Heads of width d in a row of x, from `from` on, rotated to a position: pair (i, i + d/2) by the
 * angle position · 10000^(−2i/d) (Su et al. 2021, equation 34).
 * @param {Float32Array} x
 * @param {number} from
 * @param {number} heads
 * @param {number} d
 * @param {number} position
 */
export function rotate(x, from, heads, d, position) {
  const half = d / 2;
  for (let i = 0; i < half; i++) {
    const angle = Math.fround(position * Math.fround(10000 ** ((-2 * i) / d)));
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    for (let at = from + i; at < from + heads * d; at += d) {
      const [a, b] = [x[at], x[at + half]];
      x[at] = a * cos - b * sin;
      x[at + half] = b * cos + a * sin;
    }
  }
}
