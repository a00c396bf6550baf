/** All that can be asked of a head, from its rows, in slices so short that the page stays awake. */

/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./attention.js").Local} Local */

/** Products that one step of a sweep makes at most, well under a millisecond. */
const PORTION = 2 ** 18;

/** How long a slice may last, in ms, before the browser is let in. */
const SLICE = 5;

/** @param {Local} local @returns {Head} */
export function headOf(local) {
  const { t, s, weigh, shows } = local;
  const entropies = local.entropy ?? new Float32Array(t);
  let known = local.entropy ? t : 0;

  /**
   * Visit rows r0 … r1 − 1, columns c0 … c1 − 1 in pieces of a row, letting the browser in.
   * @param {number[]} window
   * @param {AbortSignal | undefined} signal
   * @param {(i: number, c: number, weights: Float64Array, count: number) => void} visit
   */
  async function sweep([r0, r1, c0, c1], signal, visit) {
    check(r0, r1, t, "row");
    check(c0, c1, s, "column");
    const wide = Math.max(1, Math.min(c1 - c0, Math.floor(PORTION / local.cost)));
    const out = new Float64Array(wide);
    let [since, work] = [performance.now(), 0];
    for (let i = r0; i < r1; i++) {
      for (let c = c0; c < c1; c += wide) {
        const count = Math.min(wide, c1 - c);
        weigh(i, c, c + count, out);
        visit(i, c, out, count);
        work += (count + 4) * local.cost;
        if (work < PORTION) continue;
        work = 0;
        if (performance.now() - since < SLICE) continue;
        await pause();
        signal?.throwIfAborted();
        since = performance.now();
      }
    }
  }

  /** @type {Head["tile"]} */
  async function tile(r0, r1, c0, c1, signal) {
    const found = new Float32Array(Math.max(0, r1 - r0) * Math.max(0, c1 - c0));
    await sweep([r0, r1, c0, c1], signal, (i, c, weights, count) => {
      const at = (i - r0) * (c1 - c0) + (c - c0);
      for (let j = 0; j < count; j++) found[at + j] = weights[j];
    });
    return found;
  }

  /** @type {Head["pooled"]} */
  async function pooled(r0, r1, c0, c1, h, w, how = "mean", signal) {
    const [down, across] = [cells(r1 - r0, h), cells(c1 - c0, w)];
    const sums = new Float64Array(down.count * across.count);
    const largest = how === "max";
    const learn = c0 === 0 && c1 === s ? learner() : null;
    await sweep([r0, r1, c0, c1], signal, (i, c, weights, count) => {
      const at = down.of[i - r0] * across.count;
      for (let j = 0; j < count; j++) {
        const cell = at + across.of[c - c0 + j];
        sums[cell] = largest ? Math.max(sums[cell], weights[j]) : sums[cell] + weights[j];
      }
      learn?.(i, c, weights, count);
    });
    const found = new Float32Array(sums.length);
    for (let y = 0, at = 0; y < down.count; y++) {
      for (let x = 0; x < across.count; x++, at++) {
        found[at] = sums[at] / (largest ? 1 : down.sizes[y] * across.sizes[x]);
      }
    }
    return found;
  }

  /**
   * Learn the entropy of rows that a sweep visits whole, from the first that is not known on.
   * Sweeps that run at once learn apart, and what the other has found is not counted twice.
   * @returns {(i: number, c: number, weights: Float64Array, count: number) => void}
   */
  function learner() {
    let sum = 0;
    return (i, c, weights, count) => {
      if (c === 0) sum = 0;
      if (i < known) return;
      for (let j = 0; j < count; j++) if (weights[j] > 0) sum -= weights[j] * Math.log(weights[j]);
      if (c + count < s || i !== known) return;
      entropies[i] = sum;
      known++;
    };
  }

  return {
    t,
    s,
    local,
    tile,
    pooled,
    row: (i) => tile(i, i + 1, 0, s),
    column: (j) => tile(0, t, j, j + 1),
    async entropy(signal) {
      if (known < t) await sweep([known, t, 0, s], signal, learner());
      return entropies;
    },
    async received(signal) {
      if (!local.received) {
        const sums = new Float64Array(s);
        await sweep([0, t, 0, s], signal, (_, c, weights, count) => {
          for (let j = 0; j < count; j++) sums[c + j] += weights[j];
        });
        local.received = Float32Array.from(sums);
      }
      return local.received;
    },
    async masked(r0, r1, c0, c1, h, w, signal) {
      const [down, across] = [cells(r1 - r0, h), cells(c1 - c0, w)];
      const found = new Uint8Array(down.count * across.count);
      if (!shows) return found;
      found.fill(1);
      let since = performance.now();
      for (let i = r0; i < r1; i++) {
        const at = down.of[i - r0] * across.count;
        for (let j = c0; j < c1; j++) if (shows(i, j)) found[at + across.of[j - c0]] = 0;
        if (performance.now() - since < SLICE) continue;
        await pause();
        signal?.throwIfAborted();
        since = performance.now();
      }
      return found;
    },
  };
}

/** @param {number} from @param {number} to @param {number} n @param {string} what */
function check(from, to, n, what) {
  if (!Number.isInteger(from) || !Number.isInteger(to) || from < 0 || to > n || from > to) {
    throw new RangeError(`${what}s ${from} to ${to} of ${n}`);
  }
}

/**
 * Cut n steps into cells: cell i holds steps ⌈i·n/count⌉ … ⌈(i+1)·n/count⌉ − 1.
 * @param {number} n
 * @param {number} count
 */
function cells(n, count) {
  count = Math.max(0, Math.min(count, n));
  const of = new Uint32Array(n);
  const sizes = new Uint32Array(count);
  for (let i = 0; i < n; i++) {
    of[i] = Math.floor((i * count) / n);
    sizes[of[i]]++;
  }
  return { count, of, sizes };
}

/** Let the browser draw and hear its user, and come back without the delay of a timer. */
function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve(undefined);
    };
    port2.postMessage(null);
  });
}
