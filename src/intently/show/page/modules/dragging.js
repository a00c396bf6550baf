/** Attention as `intently.attend` computes it, on the few numbers of a story, while one drags them. */

/**
 * @typedef {{q: number[][] | null, k: number[][] | null, scores: number[][] | null,
 *   v: number[][], scale: number, softcap: number | null, bias: number[][] | null,
 *   allowed: boolean[][], sink: number | null}} Formula
 * @typedef {{power: number, places: number}} Written
 * @typedef {{key: string, step: keyof Steps, query: number, written: Written, largest: number}} Row
 * @typedef {{key: string, step: keyof Steps, written: Written}} Column
 * @typedef {{formula: Formula, names: string[], query: number, asked: string, features: string[],
 *   bar: number, rows: Row[], columns: Column[], texts: [string, string][], left_out: string[]}} Live
 * @typedef {{q: number[] | null, tau: number, dropped: Set<number>}} State
 * @typedef {{q: number[], scores: number[], scaled: number[], capped: number[], biased: number[],
 *   logits: number[], weights: number[], output: number[]}} Steps
 */

/**
 * Every step of query i: z = softcap(scale / τ · q·k) + bias, −∞ where masked; then softmax.
 * @param {Live} live @param {State} state @param {number} [i] @returns {Steps}
 */
export function attended(live, state, i = live.query) {
  const { k, v, scale, softcap, bias, allowed, sink } = live.formula;
  const q = (i === live.query && state.q) || (live.formula.q?.[i] ?? []);
  const scores = live.formula.scores?.[i]
    ?? (k ?? []).map((key) => key.reduce((sum, x, n) => sum + x * q[n], 0));
  const scaled = scores.map((x) => (x * scale) / state.tau);
  const capped = softcap === null ? scaled : scaled.map((x) => softcap * Math.tanh(x / softcap));
  const biased = bias === null ? capped : capped.map((x, j) => x + bias[i][j]);
  const logits = biased.map((x, j) => (allowed[i][j] && !state.dropped.has(j) ? x : -Infinity));
  const top = Math.max(sink ?? -Infinity, ...logits);
  const powers = logits.map((x) => (x === -Infinity ? 0 : Math.exp(x - top)));
  const sum = powers.reduce((a, b) => a + b, 0) + (sink === null ? 0 : Math.exp(sink - top));
  const weights = powers.map((x) => (x === 0 ? 0 : x / sum));
  const output = v[0].map((_, n) => weights.reduce((total, w, j) => total + w * v[j][n], 0));
  return { q, scores, scaled, capped, biased, logits, weights, output };
}

/** The format for these numbers: what was whole may no longer be. @param {number[]} values @param {Written} written @returns {Written} */
function fitting(values, { power, places }) {
  const numbers = values.filter(Number.isFinite).map((x) => Math.abs(x) / 10 ** power);
  if (places || numbers.every(Number.isInteger)) return { power, places };
  const largest = Math.max(...numbers);
  return { power, places: largest < 9.995 ? 2 : largest < 99.95 ? 1 : 0 };
}

/** A number in its format, in at most five characters where it grew. @param {number} value @param {Written} written */
export function spelled(value, { power, places }) {
  if (value === -Infinity) return "−∞";
  const number = value / 10 ** power;
  let kept = places;
  while (kept > 0 && Math.abs(number).toFixed(kept).length > 5) kept--;
  return Math.abs(number) < 0.5 * 10 ** -kept ? "0" : number.toFixed(kept).replace("-", "−");
}

export const SHARE = { power: 0, places: 2 };

/**
 * The shapes of a scene with the numbers of a state.
 * @param {any[]} shapes @param {Live} live @param {State} state @returns {any[]}
 */
export function enlivened(shapes, live, state) {
  const kept = shapes.filter((shape) => !live.left_out.includes(shape.key));
  const found = new Map(kept.map((shape) => [shape.key, { ...shape }]));
  const own = attended(live, state);
  for (const { key, step, query, written, largest } of live.rows) {
    const shape = found.get(key);
    if (!shape) continue;
    const values = attended(live, state, query)[step];
    const shade = (/** @type {number} */ x) => Math.max(-1, Math.min(1, x / (largest || 1)));
    shape.shades = [values.map(shade)];
    if (shape.texts.length) shape.texts = values.map((x) => spelled(x, fitting(values, written)));
  }
  live.names.forEach((_, j) => {
    for (const { key, step, written } of live.columns) {
      const text = found.get(`${key}.${j}`);
      if (!text) continue;
      text.text = spelled(own[step][j], fitting(own[step], written));
      text.colour = own[step][j] === -Infinity ? "quiet" : "ink";
    }
    const [bar, text] = [found.get(`bar.${j}`), found.get(`weight.${j}`)];
    if (!bar || !text) return;
    bar.cell = [Math.max(1, live.bar * own.weights[j]), bar.cell[1]];
    text.x = bar.x + bar.cell[0] + 6;
    text.text = spelled(own.weights[j], SHARE);
    text.colour = own.weights[j] >= 0.005 ? "ink" : "quiet";
  });
  const scale = String(Number((live.formula.scale / state.tau).toPrecision(3))).replace("-", "−");
  for (const [key, text] of live.texts) {
    const shape = found.get(key);
    const tau = String(Number(state.tau.toPrecision(3)));
    if (shape) shape.text = text.replace("{τ}", tau).replace("{scale}", scale);
  }
  for (const j of state.dropped) {
    for (const key of ["name", "key", "value"]) {
      const shape = found.get(`${key}.${j}`);
      if (shape) shape.opacity = 0.25;
    }
  }
  return [...found.values()];
}

/** What the picture says now. @param {Live} live @param {State} state */
export function told(live, state) {
  const { weights } = attended(live, state);
  const best = weights.indexOf(Math.max(...weights));
  if (!weights[best]) return `With your numbers, ${live.asked} looks at nothing: its output is 0.`;
  const taken = spelled(weights[best], SHARE);
  return `With your numbers, ${live.asked} takes most from ‘${live.names[best]}’: ${taken} of its weight.`;
}
