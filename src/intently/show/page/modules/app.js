/** The page: its controls, its views, and what every key and button does. */

import { dressing, nextTheme, repaint } from "./colours.js";
import { differenceView } from "./difference.js";
import { keyTable, listenToKeys } from "./keys.js";
import { finding } from "./find.js";
import { matrixView } from "./matrix.js";
import { overviewView } from "./overview.js";
import { bothSides, headChoices, pinned } from "./readings.js";
import { saveSVG } from "./save.js";
import { createStore, pinOf } from "./state.js";
import { saveTable } from "./tables.js";
import { textView } from "./text.js";
import { announce, element, superscript, visible } from "./words.js";

const VIEWS = [
  ["overview", "Heads"],
  ["head", "Matrix"],
  ["text", "Words"],
];
const LOOKS = [
  ["at", "looks at"],
  ["from", "is seen by"],
];
/** @type {Record<string, string[]>} */
const TOGGLES = { scale: ["linear", "log"], sink: ["show", "hide"] };
/** From this width on, what a word looks at stands beside the matrix. */
const SIDE_BY_SIDE = "(min-width: 1400px)";
const SILENT = "the server does not answer: no new numbers can be shown";

/**
 * Bring a page to life inside its element.
 * @param {HTMLElement} root the element `.intently` of body.html
 * @param {import("./data.js").Page} page
 * @param {import("./attention.js").HeadSource} source
 * @param {import("./state.js").Address} address
 * @param {EventTarget} keys what hears the keyboard
 * @returns {import("./state.js").Store}
 */
export function mount(root, page, source, address, keys) {
  const store = createStore(page, address);
  const { meta } = page;
  const find = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (root.querySelector(selector));
  const pick = (/** @type {string} */ name) => /** @type {HTMLSelectElement} */ (find(`[data-pick="${name}"]`));
  const section = (/** @type {string} */ view) => find(`section[data-view="${view}"]`);

  find("[data-bound]").textContent = boundOf(meta);
  root.addEventListener("answered", () => {
    if (find("[data-bound]").textContent === SILENT) find("[data-bound]").textContent = boundOf(meta);
  });
  root.addEventListener("silent", () => {
    find("[data-bound]").textContent = SILENT;
    find("[data-status]").textContent = "";
  });
  fill(pick("item"), meta.items.map(({ name }) => visible(name, 60)));
  choices(find("[data-views]"), "view", VIEWS);
  choices(find("[data-looks]"), "looks", LOOKS);
  for (const [key, [off, on]] of Object.entries(TOGGLES)) {
    find(`[data-toggle="${key}"]`).addEventListener("click", () => {
      store.set({ [key]: store.get()[/** @type {"scale"} */ (key)] === on ? off : on });
    });
  }
  find("[data-help]").append(
    element("h2", {}, "Shortcuts"),
    keyTable(),
    element("p", {}, "A row of weights belongs to a query and sums to 1 over the keys."),
    element("p", {}, "The page address stores the current view: copy it to return here."),
    element("form", { method: "dialog" }, element("button", {}, "Close")),
  );

  /** @param {HTMLElement} group @param {string} key @param {string[][]} options */
  function choices(group, key, options) {
    for (const [value, text] of options) {
      group.append(element("button", { type: "button", "data-set": key, "data-value": value, click: () => choose(key, value) }, text));
    }
  }

  /** @param {string} key @param {string} value */
  function choose(key, value) {
    if (key === "looks") turnTo(value);
    else store.set({ [key]: value }, { push: key === "view" });
  }

  /**
   * Turn from what a word looks at to who looks at it; the word stays where both are one text.
   * @param {string} looks
   */
  function turnTo(looks) {
    const { item, entry, row, column, looks: before } = store.get();
    if (looks === before) return;
    const { same, queries } = bothSides(page, item, entry);
    const next = looks === "at" ? shifted(column, -queries.shift) : shifted(row, queries.shift);
    const kept = looks === "at" ? { row: next } : { column: next };
    store.set(same && next !== null && next >= 0 ? { looks, ...kept } : { looks });
  }

  /** @param {string} key @param {number} step */
  function walk(key, step) {
    const state = store.get();
    const entries = meta.items[state.item].entries;
    if (key === "entry") {
      const entry = (state.entry + step + entries.length) % entries.length;
      store.set({ entry, ...keptTokens(state.entry, entry) }, { push: true });
      return;
    }
    const known = headChoices(entries, state.entry);
    const at = known.indexOf(state.heads);
    store.set({ heads: known[(Math.max(at, step > 0 ? -1 : 0) + step + known.length) % known.length] }, { push: true });
  }

  /**
   * Where another layer reads the same words, the chosen ones stay chosen.
   * @param {number} before
   * @param {number} after
   */
  function keptTokens(before, after) {
    const { item, row, column } = store.get();
    const [a, b] = [meta.items[item].entries[before], meta.items[item].entries[after]];
    return {
      row: a.rows === b.rows && a.t === b.t ? row : null,
      column: a.columns === b.columns && a.s === b.s ? column : null,
    };
  }

  /** What is pinned as A is seen instead, and what was seen is pinned. */
  function swap() {
    const state = store.get();
    const a = pinOf(meta, state.pin);
    if (!a) return;
    const { item, entry, heads, looks, token } = a;
    const chosen = token === null ? {} : { looks, ...(looks === "at" ? { row: token, column: null } : { row: null, column: token }) };
    store.set({ item, entry, heads, ...chosen, pin: pinned(state) }, { push: true });
  }

  /** @type {Record<string, () => void>} */
  const doings = {
    overview: () => choose("view", "overview"),
    matrix: () => choose("view", "head"),
    text: () => choose("view", "text"),
    "entry-": () => walk("entry", -1),
    "entry+": () => walk("entry", 1),
    "head-": () => walk("heads", -1),
    "head+": () => walk("heads", 1),
    flip: () => turnTo(store.get().looks === "at" ? "from" : "at"),
    pin: () => store.set({ pin: store.get().pin ? null : pinned(store.get()) }),
    swap,
    filter() {
      choose("view", "overview");
      /** @type {HTMLElement | null} */ (root.querySelector(".overview-filter"))?.focus();
    },
    save() {
      openMenu(true);
      find("[data-do=svg]").focus();
    },
    find: () => /** @type {HTMLElement} */ (find("[data-find]")).focus(),
    svg: () => void saved(saveSVG),
    csv: () => void saved(() => saveTable(page, store.get(), source, "csv")),
    json: () => void saved(() => saveTable(page, store.get(), source, "json")),
    link: () => void copied(),
    theme: () => store.set({ theme: nextTheme(store.get().theme) }),
    help: () => /** @type {HTMLDialogElement} */ (find("[data-help]")).showModal(),
  };

  /** @param {(section: Element) => Promise<void>} save */
  async function saved(save) {
    openMenu(false);
    try {
      await save(section(store.get().view));
      announce(root, "saved");
    } catch (error) {
      announce(root, `not saved: ${error instanceof Error ? error.message : error}`);
    }
  }

  async function copied() {
    openMenu(false);
    try {
      await navigator.clipboard.writeText(location.href);
      announce(root, "link copied");
    } catch {
      announce(root, "not copied: this browser does not let the page; the address bar shows the link");
    }
  }

  /** @param {boolean} open */
  function openMenu(open) {
    find("[data-save]").hidden = !open;
    find("[data-do=save]").setAttribute("aria-expanded", String(open));
  }

  root.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    const doing = target.closest("[data-do]")?.getAttribute("data-do") ?? "";
    if (doing === "save") openMenu(find("[data-save]").hasAttribute("hidden"));
    else if (!target.closest("[data-save]")) openMenu(false);
    if (doing !== "save") doings[doing]?.();
  });
  find(".menu").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || find("[data-save]").hidden) return;
    openMenu(false);
    find("[data-do=save]").focus();
    event.preventDefault();
  });
  pick("item").addEventListener("change", () => store.set({ item: Number(pick("item").value) }, { push: true }));
  pick("entry").addEventListener("change", () => {
    const entry = Number(pick("entry").value);
    store.set({ entry, ...keptTokens(store.get().entry, entry) }, { push: true });
  });
  pick("heads").addEventListener("change", () => store.set({ heads: pick("heads").value }, { push: true }));
  listenToKeys(root, keys, (doing) => doings[doing]?.());

  const dress = dressing(root, () => store.get().theme);
  const wide = matchMedia(SIDE_BY_SIDE);
  wide.addEventListener("change", () => {
    showControls();
    repaint(root);
  });
  function showControls() {
    const state = store.get();
    const item = meta.items[state.item];
    const title = meta.title === meta.items[0].name ? item.name : meta.title;
    find("[data-title]").textContent = visible(title || "Attention", 120);
    const pictured = item.sides.some(({ kind }) => kind === "picture");
    const { view } = state;
    const beside = view === "head" && wide.matches && !pictured;
    for (const name of VIEWS.map(([value]) => value)) section(name).hidden = name !== view && !(beside && name === "text");
    find("main").classList.toggle("two", beside);
    find('[data-value="text"]').textContent = pictured ? "Picture" : "Words";
    const shows = {
      item: meta.items.length > 1,
      entry: view !== "overview",
      heads: view !== "overview",
      find: view !== "overview",
      looks: view === "text",
      pin: view !== "overview",
      scale: view !== "overview",
      sink: view !== "overview",
    };
    for (const [name, shown] of Object.entries(shows)) find(`[data-for="${name}"]`).hidden = !shown;
    find("[data-do=pin]").textContent = state.pin ? "Unpin A" : "Pin A";
    find("[data-do=pin]").setAttribute("aria-pressed", String(state.pin !== null));
    fill(pick("entry"), item.entries.map(({ name }) => visible(name, 40)));
    const heads = headChoices(item.entries, state.entry);
    if (!heads.includes(state.heads)) heads.push(state.heads);
    fill(
      pick("heads"),
      heads.map((name) => name.replaceAll(",", ", ")),
      heads,
    );
    pick("item").value = String(state.item);
    pick("entry").value = String(state.entry);
    pick("heads").value = state.heads;
    for (const button of root.querySelectorAll("[data-set]")) {
      const { set, value } = /** @type {HTMLElement} */ (button).dataset;
      button.setAttribute("aria-pressed", String(state[/** @type {"view"} */ (set)] === value));
    }
    for (const [key, [, on]] of Object.entries(TOGGLES)) {
      const pressed = state[/** @type {"scale"} */ (key)] === on;
      find(`[data-toggle="${key}"]`).setAttribute("aria-pressed", String(pressed));
    }
    const note = find("[data-note]");
    note.textContent = item.note ?? "";
    note.hidden = !item.note;
  }

  store.subscribe((_, changed) => {
    if (["item", "entry", "heads", "view", "looks", "pin", "scale", "sink"].some((key) => changed.has(key))) showControls();
    if (changed.has("theme")) dress();
  });
  finding(/** @type {HTMLInputElement} */ (find("[data-find]")), find("[data-found]"), page, store);
  showControls();
  find("[data-wait]").remove();
  overviewView(section("overview"), page, store, source);
  matrixView(section("head"), page, store, source);
  differenceView(section("head"), page, store, source);
  textView(section("text"), page, store, source);
  return store;
}

/** @param {HTMLSelectElement} select @param {string[]} names @param {string[]} [values] */
function fill(select, names, values = names.map((_, n) => String(n))) {
  const key = JSON.stringify([names, values]);
  if (select.dataset.filled === key) return;
  select.dataset.filled = key;
  select.replaceChildren(...names.map((name, n) => element("option", { value: values[n] }, name)));
}

/** @param {number | null} token @param {number} by */
function shifted(token, by) {
  return token === null ? null : token + by;
}

/**
 * How far the numbers of the page are from those of the model, in words.
 * @param {import("./data.js").Meta} meta
 */
function boundOf({ source, precision, bound }) {
  if (source === "live") return "computed in this browser; tests bound the difference from Python at 10⁻⁴";
  if (source === "server") return "exact weights, computed by the server from the recording";
  const kept = precision === "half" ? "half precision" : "full precision";
  if (!bound) return `kept in ${kept}`;
  const nan = bound.nan ? "; some weights are NaN, not a number" : "";
  const apart = bound.weights;
  if (apart === null) return `kept in ${kept}: not all sampled weights are the model's${nan}`;
  if (apart === 0) return `kept in ${kept}: the sampled weights are the model's${nan}`;
  const [digits, power] = apart.toExponential(1).split("e");
  return `kept in ${kept}: sampled weights are within ${digits} · 10${superscript(Number(power))} of the model's${nan}`;
}
