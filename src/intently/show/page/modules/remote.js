/**
 * Heads that a server computes: the same questions as to a head in the page, asked of 127.0.0.1.
 *
 * Addresses are relative to that of the page, which holds the token.
 */

import { pageOf } from "./data.js";
import { headSource } from "./attention.js";

/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./attention.js").Head} Head */
/** @typedef {import("./attention.js").HeadSource} HeadSource */
/** @typedef {Record<string, string | number>} Question */

/** Rows and columns of a head that are kept, and exact pictures of it. */
const LINES = 64;
const PICTURES = 8;

/** @type {Set<(answers: boolean) => void>} */
const HEARERS = new Set();

/** Hear after each question whether the server answered it. @param {(answers: boolean) => void} hear */
export function whenAsked(hear) {
  HEARERS.add(hear);
}

/** How long to wait before asking again a server that did not answer, in ms. */
const LATER = 2000;

/** The page whose overviews are asked for. @param {Page} page @returns {Page} */
export function servedPage({ meta }) {
  return pageOf(meta, async (n) => (await ask("block", { n })).text());
}

/** The heads of a served page. @param {Page} page @returns {HeadSource} */
export function servedHeads(page) {
  return headSource(page, (_, item, entry, head) => openServed(page, item, entry, [head]), openServed);
}

/**
 * Fill the statistics of all heads into META, layer by layer, and tell of each.
 * @param {Page} page
 * @param {() => void} changed
 */
export async function followStatistics({ meta }, changed) {
  const entries = meta.items.flatMap((item) => item.entries);
  for (let n = 0; n < entries.length; ) {
    try {
      const answer = await fetched("statistics", { n });
      if (answer.ok) Object.assign(entries[n].statistics, await answer.json());
      n++;
      changed();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, LATER));
    }
  }
}

/**
 * One head, or the mean of some.
 * @param {Page} page
 * @param {number} item
 * @param {number} entry
 * @param {number[]} heads
 * @returns {Promise<Head>}
 */
async function openServed(page, item, entry, heads) {
  const about = page.meta.items[item]?.entries[entry];
  if (!about || !heads.length || heads.some((head) => !(head >= 0 && head < about.heads))) {
    throw new Error(`there is no head ${heads} of entry ${entry} of item ${item}`);
  }
  const { t, s } = about;
  const head = { item, entry, heads: heads.join(",") };
  let sampled = "";
  /** @type {Map<string, Promise<Float32Array>>} */
  const lines = new Map();
  /** Pictures that were sampled first, once they are exact. @type {Map<string, Float32Array>} */
  const exact = new Map();
  let hear = () => {};

  /** @param {string} name @param {Question} more @param {AbortSignal} [signal] */
  async function numbers(name, more, signal) {
    const answer = await ask(name, { ...head, ...more }, signal);
    if (name === "pooled") sampled = answer.headers.get("Intently-Sampled") ?? "";
    return new Float32Array(await answer.arrayBuffer());
  }

  /** @type {Head["pooled"]} */
  async function pooled(r0, r1, c0, c1, h, w, how = "mean", signal) {
    const question = { r0, r1, c0, c1, h, w, how };
    const key = Object.values(question).join();
    const known = exact.get(key);
    if (known) {
      sampled = "";
      return known;
    }
    const found = await numbers("pooled", { ...question, exact: 0 }, signal);
    if (sampled) {
      ask("pooled", { ...head, ...question, exact: 1 }, signal)
        .then(async (answer) => {
          exact.set(key, new Float32Array(await answer.arrayBuffer()));
          if (exact.size > PICTURES) exact.delete([...exact.keys()][0]);
          hear();
        })
        .catch(() => {}); // the picture stays a sample, and says so
    }
    return found;
  }

  /** @type {Head["tile"]} */
  const tile = (r0, r1, c0, c1, signal) => numbers("tile", { r0, r1, c0, c1 }, signal);

  /** @param {string} key @param {() => Promise<Float32Array>} make */
  function line(key, make) {
    const found = lines.get(key) ?? make();
    lines.delete(key);
    lines.set(key, found);
    found.catch(() => lines.delete(key));
    for (const old of lines.keys()) {
      if (lines.size <= LINES) break;
      lines.delete(old);
    }
    return found;
  }

  return {
    t,
    s,
    tile,
    row: (i) => line(`row ${i}`, () => tile(i, i + 1, 0, s)),
    column: (j) => line(`column ${j}`, () => tile(0, t, j, j + 1)),
    pooled,
    entropy: (signal) => numbers("entropy", {}, signal),
    received: (signal) => numbers("received", {}, signal),
    async masked(r0, r1, c0, c1, h, w, signal) {
      const answer = await ask("masked", { ...head, r0, r1, c0, c1, h, w }, signal);
      return new Uint8Array(await answer.arrayBuffer());
    },
    whenExact(then) {
      hear = then;
    },
    exactness: () => sampled && `Sampled: this picture shows ${sampled} until all are read; single weights are exact.`,
  };
}

/**
 * Ask the server; what it refuses is an error with its words.
 * @param {string} name
 * @param {Question} question
 * @param {AbortSignal} [signal]
 */
async function ask(name, question, signal) {
  const answer = await fetched(name, question, signal);
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 500) || `the server says ${answer.status}`);
  return answer;
}

/** @param {string} name @param {Question} question @param {AbortSignal} [signal] */
async function fetched(name, question, signal) {
  const words = new URLSearchParams(Object.entries(question).map(([key, value]) => [key, String(value)]));
  try {
    const answer = await fetch(`${name}?${words}`, { signal, cache: "no-store", credentials: "omit" });
    for (const hear of HEARERS) hear(true);
    return answer;
  } catch (error) {
    signal?.throwIfAborted();
    for (const hear of HEARERS) hear(false);
    throw new Error("the server does not answer; is `intently explore` still running?", { cause: error });
  }
}
