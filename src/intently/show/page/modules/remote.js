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

/** Rows and columns of a head that are kept. */
const LINES = 64;

/** @type {Set<(answers: boolean) => void>} */
const HEARERS = new Set();

/**
 * Hear after each question whether the server answered it.
 * @param {(answers: boolean) => void} hear
 */
export function whenAsked(hear) {
  HEARERS.add(hear);
}

/** How long to wait before asking again a server that did not answer, in ms. */
const LATER = 2000;

/**
 * The page whose overviews are asked for.
 * @param {Page} page
 * @returns {Page}
 */
export function servedPage({ meta }) {
  return pageOf(meta, async (n) => (await ask("block", { n })).text());
}

/**
 * The heads of a served page.
 * @param {Page} page
 * @returns {HeadSource}
 */
export function servedHeads(page) {
  return headSource(page, (_, item, entry, head) => openServed(page, item, entry, [head]), openServed);
}

/**
 * Fill the statistics of all heads into META as the server knows them, and tell of each news.
 * @param {Page} page
 * @param {() => void} changed
 */
export async function followStatistics({ meta }, changed) {
  const entries = meta.items.flatMap((item) => item.entries);
  for (let known = 0; known < entries.length; ) {
    try {
      const told = await (await ask("statistics", { known })).json();
      if (told.known > known) {
        told.entries.forEach((/** @type {Record<string, (number | null)[]>} */ found, /** @type {number} */ n) => {
          Object.assign(entries[n].statistics, found);
        });
        changed();
      }
      known = told.known;
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
  let nearness = "";
  let done = (await (await ask("open", { ...head, done: 0 })).json()).done;
  const settled = done < t ? follow() : Promise.resolve();
  settled.catch(() => {});
  /** @type {Map<string, Promise<Float32Array>>} */
  const lines = new Map();

  /** Ask how far the server is until it is done. */
  async function follow() {
    while (done < t) done = (await (await ask("open", { ...head, done: Math.max(1, done) })).json()).done;
  }

  /**
   * @param {string} name
   * @param {Question} more
   * @param {AbortSignal} [signal]
   */
  async function numbers(name, more, signal) {
    const answer = await ask(name, { ...head, ...more }, signal);
    if (name === "pooled") nearness = answer.headers.get("Intently-Nearness") ?? "";
    return new Float32Array(await answer.arrayBuffer());
  }

  /** @type {Head["tile"]} */
  const tile = (r0, r1, c0, c1, signal) => numbers("tile", { r0, r1, c0, c1 }, signal);

  /**
   * @param {string} key
   * @param {() => Promise<Float32Array>} make
   */
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
    column: (j) => line(`column ${j}`, () => settled.then(() => tile(0, t, j, j + 1))),
    pooled: (r0, r1, c0, c1, h, w, how = "mean", signal) => numbers("pooled", { r0, r1, c0, c1, h, w, how }, signal),
    entropy: (signal) => settled.then(() => numbers("entropy", {}, signal)),
    received: (signal) => settled.then(() => numbers("received", {}, signal)),
    async masked(r0, r1, c0, c1, h, w, signal) {
      const answer = await ask("masked", { ...head, r0, r1, c0, c1, h, w }, signal);
      return new Uint8Array(await answer.arrayBuffer());
    },
    settled,
    exactness: () => nearness && `This picture ${nearness}; single weights are exact.`,
  };
}

/**
 * Ask the server; what it refuses is an error with its words.
 * @param {string} name
 * @param {Question} question
 * @param {AbortSignal} [signal]
 */
async function ask(name, question, signal) {
  const words = new URLSearchParams(Object.entries(question).map(([key, value]) => [key, String(value)]));
  /** @type {Response} */
  let answer;
  try {
    answer = await fetch(`${name}?${words}`, { signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    signal?.throwIfAborted();
    for (const hear of HEARERS) hear(false);
    throw new Error("the server does not answer; is `intently explore` still running?", { cause: error });
  }
  for (const hear of HEARERS) hear(true);
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 500) || `the server says ${answer.status}`);
  return answer;
}
