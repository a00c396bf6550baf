/**
 * What the page shows, as one value: in the address, so that a link or a reload shows it again.
 *
 * The address is written by anybody; whatever is not possible in this page is left out.
 */

import { stackOf } from "./rollout.js";

/** @typedef {import("./data.js").Page} Page */
/** @typedef {import("./data.js").Entry} Entry */
/**
 * @typedef {{
 *   item: number, entry: number, heads: string, view: string, sort: string, filter: string,
 *   row: number | null, column: number | null, through: number | null, pin: string | null, looks: string,
 *   r0: number, r1: number, c0: number, c1: number,
 *   scale: string, sink: string, cells: string, range: string, theme: string
 * }} State
 */
/**
 * Heads that are pinned to compare with, and the token whose reading they are pinned at, if any.
 * @typedef {{item: number, entry: number, heads: string, looks: "at" | "from", token: number | null}} Pin
 */
/**
 * @typedef {{
 *   get: () => State,
 *   set: (partial: Partial<State>, how?: {push?: boolean}) => void,
 *   subscribe: (hear: (state: State, changed: Set<string>) => void) => () => void,
 *   renew: (exchange: () => void) => void
 * }} Store `renew` exchanges what the page holds, and tells every view
 */
/**
 * Where the state is written down: the address of the page, or nowhere.
 * @typedef {{read: () => string, write: (text: string, push: boolean) => void,
 *   listen: (hear: () => void) => void}} Address
 */

/** @type {Record<string, string[]>} */
const CHOICES = {
  view: ["overview", "head", "text"],
  looks: ["at", "from"],
  scale: ["linear", "log"],
  sink: ["show", "hide"],
  cells: ["mean", "max"],
  range: ["head", "view"],
  theme: ["auto", "light", "dark"],
};

const ENOUGH = 200;

/** Addresses are written at most this often, in ms: browsers stop listening to more. */
const SELDOM = 250;

/** @type {State} */
const PLAIN = {
  item: 0,
  entry: 0,
  heads: "0",
  view: "overview",
  sort: "",
  filter: "",
  row: null,
  column: null,
  through: null,
  pin: null,
  looks: "at",
  r0: 0,
  r1: Infinity,
  c0: 0,
  c1: Infinity,
  scale: "linear",
  sink: "show",
  cells: "mean",
  range: "head",
  theme: "auto",
};

/**
 * The state of a page, its listeners, and the address it is written to.
 * @param {Page} page
 * @param {Address} address
 * @returns {Store}
 */
export function createStore(page, address = browserAddress()) {
  let start = settled(page, { ...PLAIN, ...understood(page.meta.state ?? {}) });
  let state = addressed();
  /** @type {Set<(state: State, changed: Set<string>) => void>} */
  const hearers = new Set();

  /** @param {State} next @param {boolean | null} push null: the address says it already */
  function become(next, push) {
    const changed = new Set(keysOf(state).filter((key) => next[key] !== state[key]));
    if (!changed.size) return;
    state = next;
    if (push !== null) address.write(writeHash(page, state, start), push);
    for (const hear of [...hearers]) hear(state, changed);
  }

  /** What the address says, over what the page starts with. */
  function addressed() {
    const said = understood(readHash(address.read()));
    const next = { ...start, ...said };
    return settled(page, { ...next, ...carried(page, start, next, said) });
  }
  address.listen(() => become(addressed(), null));
  return {
    get: () => state,
    set(partial, { push = false } = {}) {
      const said = understood(partial);
      const elsewhere = ["row", "column", "looks"].some((key) => key in said) && !("through" in said);
      const next = { ...state, ...said, ...(elsewhere ? { through: null } : {}) };
      become(settled(page, { ...next, ...carried(page, state, next, said) }), push);
    },
    subscribe(hear) {
      hearers.add(hear);
      return () => hearers.delete(hear);
    },
    renew(exchange) {
      const sizes = () => {
        const { t = 0, s = 0 } = page.meta.items[state.item]?.entries[state.entry] ?? {};
        return `${t}.${s}`;
      };
      const before = sizes();
      exchange();
      const whole = { r0: 0, r1: Infinity, c0: 0, c1: Infinity };
      start = settled(page, { ...start, ...whole });
      state = settled(page, before === sizes() ? state : { ...state, ...whole });
      const changed = new Set(keysOf(state).filter((key) => key !== "theme"));
      for (const hear of [...hearers]) hear(state, changed);
    },
  };
}

/** @param {State} state @returns {(keyof State)[]} */
function keysOf(state) {
  return /** @type {(keyof State)[]} */ (Object.keys(state));
}

/**
 * Keep the window and the tokens where the next matrix stands on the same two texts.
 * @param {Page} page
 * @param {State} before
 * @param {State} next
 * @param {Partial<State>} said
 * @returns {Partial<State>}
 */
function carried(page, before, next, said) {
  const from = page.meta.items[before.item]?.entries[before.entry];
  const to = page.meta.items[next.item]?.entries[next.entry];
  const same =
    before.item === next.item &&
    from &&
    to &&
    [from.t, from.s, from.rows, from.columns].join() === [to.t, to.s, to.rows, to.columns].join();
  if (same) return {};
  return { row: null, column: null, through: null, r0: 0, r1: Infinity, c0: 0, c1: Infinity, ...said };
}

/**
 * The parts of a state that are of the right kind; whoever wrote the rest is not believed.
 * @param {Record<string, unknown>} given
 * @returns {Partial<State>}
 */
function understood(given) {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined) continue;
    if (Object.hasOwn(CHOICES, key)) {
      if (CHOICES[key].includes(String(value))) found[key] = value;
    } else if (key === "item" || key === "entry") {
      if (whole(value)) found[key] = Number(value);
    } else if (key === "row" || key === "column" || key === "through") {
      if (value === null || whole(value)) found[key] = value === null ? null : Number(value);
    } else if (["r0", "r1", "c0", "c1"].includes(key)) {
      if (value !== "" && value !== null && Number(value) >= 0) found[key] = Number(value);
    } else if (key === "heads") {
      if (/^(mean|rollout|\d{1,6}(,\d{1,6}){0,255})$/.test(String(value))) found[key] = String(value);
    } else if (key === "pin") {
      if (value === null || typeof value === "string") found[key] = value;
    } else if (key === "sort" || key === "filter") {
      if (typeof value === "string") found[key] = value.slice(0, ENOUGH);
    }
  }
  return /** @type {Partial<State>} */ (found);
}

/** @param {unknown} value */
function whole(value) {
  return /^\d{1,9}$/.test(String(value));
}

/** The nearest state that this page can show. @param {Page} page @param {State} state @returns {State} */
function settled({ meta }, state) {
  const item = Math.min(state.item, Math.max(0, meta.items.length - 1));
  const entries = meta.items[item]?.entries ?? [];
  const entry = Math.min(state.entry, Math.max(0, entries.length - 1));
  const { t = 0, s = 0, heads: count = 1 } = entries[entry] ?? {};
  const sort = state.sort.replace(/^-/, "");
  const [r0, r1] = span(state.r0, state.r1, t);
  const [c0, c1] = span(state.c0, state.c1, s);
  return {
    ...state,
    item,
    entry,
    heads: possible(state.heads, count, entries.length > 0 && stackOf(entries, entry) !== null),
    sort: sort === "layer" || meta.statistics.includes(sort) ? state.sort : "",
    row: state.row !== null && state.row < t ? state.row : null,
    column: state.column !== null && state.column < s ? state.column : null,
    through: state.through !== null && state.through < (state.looks === "at" ? t : s) ? state.through : null,
    pin: pinOf(meta, state.pin) ? state.pin : null,
    r0,
    r1,
    c0,
    c1,
  };
}

/** @param {string} heads @param {number} count @param {boolean} rolls whether there is a rollout */
function possible(heads, count, rolls) {
  if (heads === "mean" || (heads === "rollout" && rolls)) return heads;
  const kept = [...new Set(heads.split(",").map(Number))].filter((head) => head < count);
  return kept.length ? kept.join(",") : "0";
}

/** @param {number} from @param {number} to @param {number} n */
function span(from, to, n) {
  const [a, b] = [Math.max(0, Math.min(from, n)), Math.max(0, Math.min(to, n))];
  const least = Math.min(1, n);
  return b - a >= least - 1e-9 ? [a, b] : a + least <= n ? [a, a + least] : [n - least, n];
}

/**
 * What "item.entry.heads", and perhaps ".looks.token", pins; null where this page has no such thing.
 * @param {import("./data.js").Meta} meta
 * @param {string | null} text
 * @returns {Pin | null}
 */
export function pinOf(meta, text) {
  const parts = /^(\d{1,6})\.(\d{1,6})\.(mean|rollout|\d[\d,]{0,998})(?:\.(at|from)\.(\d{1,9}))?$/.exec(text ?? "");
  if (!parts) return null;
  const [item, entry, heads] = [Number(parts[1]), Number(parts[2]), parts[3]];
  const entries = meta.items[item]?.entries ?? [];
  const about = entries[entry];
  if (!about || possible(heads, about.heads, stackOf(entries, entry) !== null) !== heads) return null;
  const looks = parts[4] === "from" ? "from" : "at";
  const token = parts[5] === undefined ? null : Number(parts[5]);
  return token === null || token < (looks === "at" ? about.t : about.s) ? { item, entry, heads, looks, token } : null;
}

/** @param {string} text @returns {Record<string, unknown>} */
function readHash(text) {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const [key, value] of new URLSearchParams(text.replace(/^#/, "").slice(0, 4096))) {
    found[key] = value === "none" ? null : value;
  }
  return found;
}

/**
 * The state as the end of an address; what the page starts with is left out.
 * @param {Page} page
 * @param {State} state
 * @param {State} start
 */
function writeHash(page, state, start) {
  const words = new URLSearchParams();
  const { t = 0, s = 0 } = page.meta.items[state.item]?.entries[state.entry] ?? {};
  const ends = { r0: 0, r1: t, c0: 0, c1: s };
  for (const key of keysOf(state)) {
    const value = state[key];
    if (key in ends) {
      const edge = ends[/** @type {keyof typeof ends} */ (key)];
      const begun = start.item === state.item && start.entry === state.entry;
      if (value !== (begun ? start[key] : edge)) words.set(key, String(rounded(Number(value))));
    } else if (value !== start[key]) {
      words.set(key, value === null ? "none" : String(value));
    }
  }
  const text = words.toString();
  return text ? `#${text}` : "#";
}

/** @param {number} x */
function rounded(x) {
  return Math.round(x * 1000) / 1000;
}

/** The address of this window. @returns {Address} */
export function browserAddress() {
  /** @type {ReturnType<typeof setTimeout> | null} */
  let timer = null;
  let latest = "";

  function write() {
    if (timer) clearTimeout(timer);
    timer = null;
    if (latest !== location.hash) keep(() => history.replaceState(null, "", latest));
  }
  addEventListener("pagehide", () => timer && write());
  return {
    read: () => location.hash,
    write(text, push) {
      if (push) {
        if (timer) write();
        latest = text;
        keep(() => history.pushState(null, "", text));
        return;
      }
      latest = text;
      timer ??= setTimeout(write, SELDOM);
    },
    listen(hear) {
      addEventListener("popstate", () => {
        if (timer) clearTimeout(timer);
        timer = null;
        hear();
      });
    },
  };
}

/** Pages inside other pages may not touch the address; they work without. @param {() => void} write */
function keep(write) {
  try {
    write();
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}
