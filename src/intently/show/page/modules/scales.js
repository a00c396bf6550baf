/**
 * How weights become shares of a scale: linear from 0, or by decades below the largest.
 *
 * Of a large picture one positive cell in two hundred may lie beyond a linear scale, as in the
 * figures. A scale ends in a round number, so that it stays the same while a picture is moved.
 */

/** @typedef {{log: boolean, low: number, high: number, beyond: boolean}} Scale */

const CROWDED = 4096;
const DECADES = 6;
const SAMPLE = 30000;
const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8];

/** Numbers beside a scale stand at least this share of it apart. */
const APART_SHARE = 0.25;

/** Where a logarithmic scale begins, so that its least weight is told from nothing. */
const FAINT = 0.06;

/**
 * The scale on which all of these weights can be told apart, none of them below the error.
 * @param {Float32Array} values
 * @param {boolean} log
 * @param {number} error
 * @returns {Scale}
 */
export function scaleOf(values, log, error) {
  let top = 0;
  let least = Infinity;
  let positive = 0;
  for (const w of values) {
    if (!(w > 0) || w === Infinity) continue;
    positive++;
    if (w > top) top = w;
    if (w < least) least = w;
  }
  if (!positive) return { log, low: log ? 0.1 : 0, high: 1, beyond: false };
  if (log) {
    const high = roundUp(Math.max(top, error));
    const low = 10 ** Math.floor(Math.log10(Math.max(least, high * 10 ** -DECADES)) + 1e-9);
    return { log, low: low < high ? low : high / 10, high, beyond: false };
  }
  const high = roundUp(Math.max(error, positive > CROWDED ? quantile(values, 0.995) : top));
  return { log, low: 0, high, beyond: top > high };
}

/** The share of the scale, 0 to 1, that a weight takes. @param {Scale} scale @param {number} w */
export function shareOf({ log, low, high }, w) {
  if (!(w > 0)) return 0;
  const share = log ? FAINT + ((1 - FAINT) * Math.log(w / low)) / Math.log(high / low) : w / high;
  return share < 0 ? 0 : share > 1 ? 1 : share;
}

/**
 * The numbers written beside a scale, and their shares of it.
 * @param {Scale} scale
 * @returns {{value: number, share: number}[]}
 */
export function ticksOf(scale) {
  const { log, low, high } = scale;
  if (!log) return [0, high / 2, high].map((value) => ({ value, share: shareOf(scale, value) }));
  const found = [{ value: low, share: shareOf(scale, low) }];
  for (let value = low * 10; value < high; value *= 10) {
    const share = shareOf(scale, value);
    const last = found[found.length - 1].share;
    if (share - last >= APART_SHARE && share <= 1 - APART_SHARE) found.push({ value, share });
  }
  return [...found, { value: high, share: 1 }];
}

/** The least round number that is not below x: 1, 1.5, 2, … times a power of ten. @param {number} x */
export function roundUp(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  const step = STEPS.find((n) => n * unit >= x * (1 - 1e-6)) ?? 10;
  return Number((step * unit).toPrecision(2));
}

/**
 * A quantile of the positive values, from at most some thousand of them.
 * @param {Float32Array} values
 * @param {number} share
 */
function quantile(values, share) {
  const step = Math.ceil(values.length / SAMPLE);
  const some = new Float32Array(Math.ceil(values.length / step));
  let count = 0;
  for (let i = 0; i < values.length; i += step) {
    if (values[i] > 0 && values[i] < Infinity) some[count++] = values[i];
  }
  return count ? some.subarray(0, count).sort()[Math.floor(share * (count - 1))] : 1;
}

/**
 * The places of the largest numbers, the largest first, equal ones in their order.
 * @param {Float32Array | Float64Array} numbers
 * @param {number} count
 * @param {number} [above] those that are not above it are none
 * @returns {number[]}
 */
export function largest(numbers, count, above = 0) {
  /** @type {number[]} */
  const found = [];
  for (let n = 0; n < numbers.length; n++) {
    if (!(numbers[n] > above) || (found.length === count && numbers[n] <= numbers[found[count - 1]])) continue;
    let at = found.length;
    while (at > 0 && numbers[found[at - 1]] < numbers[n]) at--;
    found.splice(at, 0, n);
    if (found.length > count) found.pop();
  }
  return found;
}
