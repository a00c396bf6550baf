/** Words as labels: nothing invisible, nothing endless, nothing that a browser takes for markup. */

const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/u;
const CLOSING = /^[.,;:!?…)\]}’”»。、，！？]+$/u;
const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}]/u;
const JOINERS = "\u200c\u200d";
/** @type {Record<string, string>} */
const BREAKS = { "\n": "⏎", "\t": "⇥" };

/** A text as one line of at most `limit` visible characters. @param {string} text @param {number} [limit] */
export function visible(text, limit = 24) {
  if (!text) return "∅";
  if (/^\s+$/u.test(text) && !HIDDEN.test(text)) text = "␣".repeat(Math.min(text.length, limit));
  const shown = [];
  let length = 0;
  let at = 0;
  for (const character of text) {
    at += character.length;
    const piece = visibleCharacter(character);
    if (length + [...piece].length > limit - (at < text.length ? 1 : 0)) return `${shown.join("")}…`;
    shown.push(piece);
    length += [...piece].length;
  }
  return shown.join("");
}

/**
 * The same without the mark by which a tokenizer spells a blank before the word.
 * @param {string} token
 * @param {number} [limit]
 */
export function named(token, limit = 24) {
  return visible(token.replace(/^[Ġ▁ ](?=[^Ġ▁\s])/u, "").replace(/^Ċ+$/u, "\n"), limit);
}

/** A text that reads from right to left, kept from turning the line around it. @param {string} text */
export function isolated(text) {
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(text) ? `\u2068${text}\u2069` : text;
}

/** @param {string} character */
function visibleCharacter(character) {
  if (character in BREAKS) return BREAKS[character];
  if (!HIDDEN.test(character) || JOINERS.includes(character)) return character;
  const code = /** @type {number} */ (character.codePointAt(0)).toString(16).toUpperCase();
  return `⟨U+${code.padStart(4, "0")}⟩`;
}

/**
 * Tokens as a reader expects them in running text: the marks by which tokenizers spell a blank
 * become a gap, those of a continued word none.
 * @param {string[]} tokens
 * @param {number} [limit]
 * @returns {{text: string, gap: boolean, end: boolean}[]} end: a line ends after it
 */
export function spelled(tokens, limit = 40) {
  const marked = tokens.some((token) => /^[ĠĊ▁]./u.test(token));
  const led = !marked && tokens.filter((token) => /^ \S/u.test(token)).length * 4 > tokens.length;
  return tokens.map((token, n) => {
    const end = /[\nĊ]$/u.test(token);
    const special = /^(<.*>|\[.*\]|⟨.*⟩)$/u.test(token);
    if (marked || led) {
      const blank = marked ? /^[Ġ▁](?=.)/u : /^ (?=\S)/u;
      const gap = special || n === 0 || blank.test(token);
      const text = token.replace(blank, "").replace(/^Ċ$/u, "\n");
      return { text: visible(text, limit), gap, end };
    }
    const continued = token.startsWith("##") && token.length > 2;
    const glued = n > 0 && tokens[n - 1].endsWith("@@") && tokens[n - 1].length > 2;
    const gap = !n || !(continued || glued || CLOSING.test(token));
    return { text: visible(continued ? token.slice(2) : token, limit), gap, end };
  });
}

/** Say whether most of a text is written from right to left. @param {string[]} words */
export function rightToLeft(words) {
  const some = words.slice(0, 2000);
  return some.filter((word) => RIGHT_TO_LEFT.test(word)).length * 2 > some.length;
}

/**
 * What a row is called everywhere: its own token and, in a decoder, the one that it writes.
 * @param {string} own
 * @param {string | undefined} writes
 * @param {number} [limit] letters of either
 */
export function rowName(own, writes, limit) {
  const name = named(own, limit);
  return writes ? `${name} (writes ${named(writes, limit)})` : name;
}

/**
 * A number in few digits, none of them below the error: "< 0.01" where it is less than that.
 * @param {number} value
 * @param {number} error
 */
export function format(value, error) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const digits = digitsOf(error);
  if (value < 10 ** -digits) return `< ${digits > 4 ? `10${superscript(-digits)}` : 10 ** -digits}`;
  if (value < 0.00005) return value.toExponential(0).replace("-", "−");
  const most = value < 0.0095 ? 4 : value < 9.995 ? 2 : 1;
  return value.toFixed(Math.min(most, digits));
}

/** How many digits behind the point an error leaves. @param {number} error */
export function digitsOf(error) {
  return Math.max(0, Math.floor(-Math.log10(error) + 1e-9));
}

/** @param {number} power */
export function superscript(power) {
  return [...String(power)].map((sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(sign)])).join("");
}

/**
 * An element with attributes; functions hear the event of their name, strings become text, never markup.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} [attributes]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/**
 * A name, the place behind it, a bar as long as a share of the largest, and a number.
 * @param {string} name
 * @param {string} place
 * @param {number} share
 * @param {string} number
 */
export function barLine(name, place, share, number) {
  const bar = element("i", { hidden: !share });
  bar.style.width = `${100 * share}%`;
  return [
    element("b", {}, element("bdi", {}, name), ...(place ? [" ", element("small", {}, place)] : [])),
    element("span", { class: "track" }, bar),
    element("span", { class: "weight" }, number),
  ];
}

/**
 * Put other children into an element; of its buttons the one with the focus keeps it, by its place.
 * @param {HTMLElement} container
 * @param {Node[]} children
 */
export function refill(container, children) {
  const { activeElement } = /** @type {Document | ShadowRoot} */ (container.getRootNode());
  const at = [...container.querySelectorAll("button")].findIndex((button) => button === activeElement);
  container.replaceChildren(...children);
  container.querySelectorAll("button")[at]?.focus();
}

/** A text inside markup that is written out, such as a saved picture. @param {string} text */
export function escaped(text) {
  return text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/**
 * Wait for what is being shown; where it cannot be, say why in the status line.
 * @param {Element} root any element of the page
 * @param {Promise<void>} work
 */
export function orSay(root, work) {
  return work.catch((error) => announce(root, `This cannot be shown: ${error instanceof Error ? error.message : error}`));
}

/**
 * Say it in the status line, which screen readers read out.
 * @param {Element} root any element of the page
 * @param {string} text
 */
export function announce(root, text) {
  const line = root.closest(".intently")?.querySelector("[data-status]");
  const safe = RIGHT_TO_LEFT.test(text) ? text.replace(/‘([^’]*)’/gu, "‘\u2068$1\u2069’") : text;
  if (line && line.textContent !== safe) line.textContent = safe;
}
