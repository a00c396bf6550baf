/** The live page: a sentence, its translation by the model that runs here, and what was changed in it. */

import { mount } from "./app.js";
import { headSource } from "./attention.js";
import { handOf, toolsOf } from "./hand.js";
import { difference, readChanges, sayChange, withoutChange, writeChanges } from "./interventions.js";
import { momentsOf, stateOf } from "./moments.js";
import { exchange, livePage } from "./translated.js";
import { announce, element, named } from "./words.js";

/** @typedef {import("./translator.js").Change} Change */
/** @typedef {import("./translator.js").Result} Result */
/** @typedef {{now: Result, before: Result | null, forced: number[] | null, milliseconds: number}} Reply */
/**
 * What the page shows beside the state of its views, in the address, too.
 * @typedef {{text: string, beams: number, changes: Change[], upto: number | null}} Live
 */
/** @typedef {{text: string, embedded: boolean, title: string, alignment_head: [string, number] | null, guided: [string, number] | null}} About */

const LONGEST = 1000;
const BEAMS = [1, 2, 3, 5, 8];
/** Changes that undo returns from. */
const REMEMBERED = 100;

/**
 * Bring the page to life: whatever is written is translated by the worker and shown by the views.
 * @param {HTMLElement} root the element `.intently` of body.html
 * @param {About} about
 * @param {Worker} worker
 * @param {import("./state.js").Address} base
 */
export function live(root, about, worker, base) {
  const page = livePage(about.title);
  const start = { text: about.text, beams: 1, changes: [], upto: null };
  let now = readLive(base.read(), start);
  /** @type {Reply | null} */
  let reply = null;
  /** @type {import("./state.js").Store | null} */
  let store = null;
  /** @type {Change[][]} */
  let past = [];
  /** @type {import("./moments.js").Moment["place"] | null} */
  let wanted = null;
  let asked = 0;
  let pageWords = "";
  let active = true;
  let source = headSource(page);
  const panel = panelOf();
  root.querySelector("nav.controls")?.before(panel.root);

  /** @type {import("./state.js").Address} */
  const address = {
    read: base.read,
    write(text, push) {
      pageWords = text.replace(/^#/, "");
      note(push);
    },
    listen: (hear) =>
      base.listen(() => {
        const before = now;
        now = readLive(base.read(), start);
        if (questionOf(before) !== questionOf(now)) ask();
        panel.fill();
        hear();
      }),
  };

  /** Write the address. @param {boolean} push */
  function note(push) {
    const words = [writeLive(now, start), pageWords].filter(Boolean).join("&");
    base.write(words ? `#${words}` : "#", push);
  }

  /** @param {Partial<Live>} partial */
  function become(partial) {
    const again = ["text", "beams", "changes"].some((key) => key in partial);
    now = { ...now, ...partial };
    note(false);
    if (again) ask();
    else if (reply) show();
  }

  function ask() {
    const { text, beams, changes } = now;
    worker.postMessage({ kind: "translate", id: ++asked, text, beams, changes });
    root.setAttribute("aria-busy", "true");
  }

  worker.addEventListener("message", ({ data }) => {
    if (data.kind === "ready") ask();
    if (data.kind === "failed" && (data.id === undefined || data.id === asked)) panel.fail(data.message);
    if (data.kind !== "translated" || data.id !== asked) return;
    root.removeAttribute("aria-busy");
    reply = data;
    show();
  });

  worker.addEventListener("error", () => panel.fail("this browser does not let the page start its worker"));

  /** Show the reply in the panel and, unless nothing is written, in every view. */
  function show() {
    if (!reply) return;
    panel.show(reply);
    const { now: result } = reply;
    if (!result.layers.length || !result.written.length) return;
    const upto = Math.min(now.upto ?? Infinity, result.written.length);
    const change = () => {
      exchange(page, result, upto, remarks(about, result));
      source = headSource(page);
    };
    if (store) store.renew(change);
    else begin(change);
    if (!store) return;
    if (wanted) {
      const { view, entry, heads, ...rest } = stateOf(wanted, result);
      wanted = null;
      store.set({ view, entry, heads, ...rest }, { push: true });
    } else if (now.upto !== null && page.meta.items[0].entries[store.get().entry]?.name.startsWith("decoder")) {
      store.set({ row: upto - 1 });
    }
    tools?.show();
  }

  /** @type {ReturnType<typeof toolsOf> | null} */
  let tools = null;

  /** Mount the views around the first translation. @param {() => void} change */
  function begin(change) {
    change();
    page.meta.state = opening(about, page);
    store = mount(root, page, { open: (...which) => source.open(...which) }, address, document);
    const works = {
      store,
      result: () => reply?.now ?? null,
      changes: () => now.changes,
      begin: remember,
      change: (/** @type {Change[]} */ changes) => become({ changes }),
    };
    page.hand = handOf(works, root, () => active);
    tools = toolsOf(works, (is) => {
      active = is;
      tools?.show();
    });
    root.querySelector('section[data-view="head"]')?.prepend(tools.root);
    document.addEventListener("keydown", (event) => {
      const at = event.composedPath()[0];
      if (!(at instanceof Element) || at.closest("input, select, textarea, dialog") || event.key !== "u") return;
      if (!event.ctrlKey && !event.metaKey && !event.altKey) undo();
    });
  }

  function remember() {
    past = [...past, now.changes].slice(-REMEMBERED);
  }

  function undo() {
    const changes = past.at(-1);
    if (!changes) return announce(root, "nothing to undo");
    past = past.slice(0, -1);
    become({ changes });
  }

  /** The panel over the views: text, translation, steps, changes and moments. */
  function panelOf() {
    const field = element("textarea", { rows: 1, maxlength: LONGEST, spellcheck: "false", id: "live-text", lang: about.embedded ? "en" : null });
    const output = element("p", { class: "live-output", lang: about.embedded ? "fr" : null, "aria-live": "polite" });
    const told = element("p", { class: "live-told" });
    const read = element("p", { class: "live-read", hidden: true });
    const beams = element("select", { "aria-label": "Search" });
    for (const count of BEAMS) beams.append(element("option", { value: count }, count === 1 ? "greedy" : `${count} beams`));
    const steps = button("Word by word", () => become({ upto: now.upto === null ? 1 : null }));
    const back = button("◂", () => step(-1), "The word before");
    const next = button("▸", () => step(1), "The next word");
    const count = element("span", { class: "live-count" });
    const likely = element("ol", { class: "live-likely", "aria-label": "Most likely next tokens" });
    const stepping = element("span", { class: "live-steps" }, back, next, count);
    const undoing = button("Undo", undo, "Undo the last change");
    const clear = button("Clear", () => {
      remember();
      become({ changes: [] });
    }, "Take every change back");
    const chips = element("ul", { class: "live-changes", "aria-label": "Changes" });
    const changing = element("div", { class: "live-row live-changing" }, chips, undoing, clear);
    const lesson = element("div", { class: "live-lesson", hidden: true, role: "region", "aria-label": "Guided moment" });
    const lessons = element("div", { class: "live-moments", role: "group", "aria-label": "Guided moments" });
    const made = element(
      "section",
      { class: "live", "aria-label": "Translate" },
      element("div", { class: "live-sides" },
        element("div", { class: "live-side" }, element("label", { for: "live-text" }, "Type a sentence"), field, read),
        element("div", { class: "live-side" }, element("h2", { class: "live-name" }, "Translation, as you type"), output, told),
      ),
      changing,
      element("div", { class: "live-row" }, beams, steps, stepping, likely, lessons),
      lesson,
    );

    /** @param {string} text @param {() => void} act @param {string} [says] */
    function button(text, act, says) {
      return element("button", { type: "button", class: "toggle", title: says, "aria-label": says, click: act }, text);
    }

    /** @param {number} by */
    function step(by) {
      const last = reply?.now.written.length ?? 1;
      become({ upto: Math.max(1, Math.min(last, (now.upto ?? last) + by)) });
    }

    field.addEventListener("input", () => become({ text: field.value, upto: null }));
    beams.addEventListener("change", () => become({ beams: Number(beams.value) }));

    /** The moments, once the layers are known. @param {Result} result */
    function teach(result) {
      if (lessons.children.length) return;
      const [alignment, guided] = [about.alignment_head, about.guided].map((of) => of && { layer: of[0], head: of[1] });
      const layers = result.layers.map(({ name }) => name);
      const found = momentsOf({ alignment, guided, embedded: about.embedded, layers, text: now.text || about.text });
      lessons.append(
        ...found.map((moment, n) => {
          const one = element("button", { type: "button", class: "live-moment", "aria-pressed": "false" }, `${n + 1} ${moment.title}`);
          one.addEventListener("click", () => {
            for (const other of lessons.children) other.setAttribute("aria-pressed", String(other === one));
            lesson.replaceChildren(
              element("h3", {}, moment.title),
              element("p", {}, moment.says),
              element("p", { class: "live-task" }, element("strong", {}, "Try: "), moment.task),
            );
            lesson.hidden = false;
            if (now.changes.length) remember();
            wanted = moment.place;
            become({ text: moment.text, changes: moment.changes, upto: moment.upto });
            fill();
          });
          return one;
        }),
      );
    }

    /** Write the state into the fields. */
    function fill() {
      if (field.value !== now.text) field.value = now.text;
      if (![...beams.options].some(({ value }) => Number(value) === now.beams)) {
        beams.append(element("option", { value: now.beams }, `${now.beams} beams`));
      }
      beams.value = String(now.beams);
    }
    fill();

    /** @param {Reply} given */
    function show({ now: result, before, forced, milliseconds }) {
      if (result.layers.length) teach(result);
      const shown = now.upto === null ? result.text : result.written.slice(0, now.upto).map((token) => named(token)).join(" ");
      const words = shown.split(/\s+/).filter(Boolean);
      const old = before && now.upto === null ? before.text.split(/\s+/).filter(Boolean) : words;
      const parts = difference(old, words).flatMap(({ word, kind }) => {
        const tag = /** @type {const} */ ({ same: "span", new: "ins", gone: "del" })[kind];
        return [element(tag, {}, word), " "];
      });
      output.replaceChildren(...parts);
      if (!words.length) output.textContent = now.text.trim() ? "…" : "Write a sentence on the left.";
      told.textContent = tell(result, before, forced, milliseconds);
      read.hidden = !result.unknown.length;
      read.replaceChildren(...marked(result));
      const last = result.written.length;
      stepping.hidden = likely.hidden = now.upto === null;
      steps.setAttribute("aria-pressed", String(now.upto !== null));
      const upto = Math.min(now.upto ?? last, last);
      count.textContent = `token ${upto} of ${last}`;
      back.toggleAttribute("disabled", upto <= 1);
      next.toggleAttribute("disabled", upto >= last);
      likely.replaceChildren(
        ...(result.likely[upto - 1] ?? []).map(({ token, logProbability }) => {
          const taken = token === result.written[upto - 1];
          return element("li", { class: taken ? "taken" : null }, `${named(token)} ${percent(Math.exp(logProbability))}`);
        }),
      );
      changing.hidden = !now.changes.length && !past.length;
      undoing.toggleAttribute("disabled", !past.length);
      clear.toggleAttribute("disabled", !now.changes.length);
      chips.replaceChildren(
        ...now.changes.map((change) => {
          const words = sayChange(change, result);
          const click = () => {
            remember();
            become({ changes: withoutChange(now.changes, change) });
          };
          return element("li", {}, words, element("button", { type: "button", "aria-label": `Take back: ${words}`, click }, "×"));
        }),
      );
    }

    /** @param {string} message */
    function fail(message) {
      output.textContent = "";
      told.textContent = `This cannot be translated: ${message}`;
      root.removeAttribute("aria-busy");
    }
    return { root: made, show, fill, fail };
  }
}

/**
 * How probable a translation is, and what the changes did to the probability of the model's own.
 * @param {Result} result
 * @param {Result | null} before
 * @param {number[] | null} forced
 * @param {number} milliseconds
 */
export function tell(result, before, forced, milliseconds) {
  if (!result.written.length) return "";
  const time = `${Math.max(1, Math.round(milliseconds))} ms`;
  if (!before || !forced) return `probability ${percent(Math.exp(result.logProbability))} · ${time}`;
  const after = Math.exp(forced.reduce((sum, x) => sum + x, 0));
  const which = result.text === before.text ? "The translation stays" : `Unchanged, the model writes “${before.text}”`;
  const change = `its probability goes from ${percent(Math.exp(before.logProbability))} to ${percent(after)}`;
  return `${which}; ${change} · ${time}`;
}

/** The line as it was read, its unknown words marked. @param {Result} result */
function marked({ read, unknown }) {
  const ends = [0, ...unknown.map(({ end }) => end)];
  const parts = unknown.flatMap(({ start, end }, n) => [read.slice(ends[n], start), element("mark", {}, read.slice(start, end))]);
  return [...parts, read.slice(ends[unknown.length]), element("span", {}, " · marked: not in the model's vocabulary")];
}

/** @param {number} share */
function percent(share) {
  return `${share < 0.001 ? "< 0.1" : (100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** What is said of heads that the model's description names. @param {About} about @param {Result} result */
function remarks({ alignment_head, guided }, result) {
  /** @type {import("./translated.js").Remark[]} */
  const found = [];
  if (alignment_head) found.push({ layer: alignment_head[0], head: alignment_head[1], text: "The alignment head: each row finds the source word that it translates." });
  if (guided) found.push({ layer: guided[0], head: guided[1], text: "This head was taught, by guided attention, to look from a pronoun at its noun." });
  return found.filter(({ layer, head }) => (result.layers.find(({ name }) => name === layer)?.heads ?? 0) > head);
}

/**
 * The state in which a live page opens: the alignment head as a matrix.
 * @param {About} about
 * @param {import("./data.js").Page} page
 */
function opening({ alignment_head, guided }, page) {
  const [layer, head] = guided ?? alignment_head ?? ["", 0];
  const entry = page.meta.items[0].entries.findIndex(({ name }) => name === layer);
  return entry < 0 ? {} : { view: "head", entry, heads: String(head) };
}

/** @param {string} hash @param {Live} start @returns {Live} */
function readLive(hash, start) {
  const words = new URLSearchParams(hash.replace(/^#/, "").slice(0, 16384));
  const [beams, upto] = [Number(words.get("beams")), Number(words.get("upto"))];
  return {
    text: words.get("say")?.slice(0, LONGEST) ?? start.text,
    beams: Number.isInteger(beams) && beams >= 1 && beams <= 8 ? beams : start.beams,
    changes: readChanges(words.get("edits") ?? ""),
    upto: Number.isInteger(upto) && upto >= 1 ? upto : null,
  };
}

/** @param {Live} now @param {Live} start */
function writeLive({ text, beams, changes, upto }, start) {
  const words = new URLSearchParams();
  if (text !== start.text) words.set("say", text);
  if (beams !== start.beams) words.set("beams", String(beams));
  if (changes.length) words.set("edits", writeChanges(changes));
  if (upto !== null) words.set("upto", String(upto));
  return words.toString();
}

/** What is asked of the worker, as one text. @param {Live} now */
function questionOf({ text, beams, changes }) {
  return JSON.stringify([text, beams, changes]);
}
