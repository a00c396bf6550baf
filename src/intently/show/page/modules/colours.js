/**
 * The colours of weights, read from the style sheet: one ramp for light, one for dark.
 * @typedef {{rgb: Uint8ClampedArray, below: Uint8ClampedArray, paper: string, ink: string, quiet: string, frame: string,
 *   grid: string, accent: string, blue: string, hole: string, hatch: string}} Ramp
 */

const STEPS_OF_RAMP = 64;
const THEMES = ["auto", "light", "dark"];

/** @type {WeakMap<Element, Ramp>} */
const RAMPS = new WeakMap();

/**
 * The ramp of a page: 256 colours from weight 0 to the top of the scale, and the colours of lines.
 * @param {Element} root any element of the page
 * @returns {Ramp}
 */
export function ramp(root) {
  const page = root.closest(".intently") ?? root;
  const known = RAMPS.get(page);
  if (known) return known;
  const style = getComputedStyle(page);
  const read = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  const [paper, ink, quiet, frame, grid] = ["paper", "ink", "quiet", "frame", "grid"].map(read);
  const [accent, blue, hole, hatch] = ["accent", "blue", "hole", "hatch"].map(read);
  const [rgb, below] = [["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"], ["paper", "b1", "b2", "b3", "b4"]].map((stops) => levels(stops.map(read)));
  const made = { rgb, below, paper, ink, quiet, frame, grid, accent, blue, hole, hatch };
  RAMPS.set(page, made);
  return made;
}

/** 256 colours, three bytes each, between some. @param {string[]} colours */
function levels(colours) {
  const stops = colours.map(rgbOf);
  const rgb = new Uint8ClampedArray(256 * 3);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) rgb[3 * level + c] = stops[low][c] + (place - low) * (stops[low + 1][c] - stops[low][c]);
  }
  return rgb;
}

/**
 * Forget the ramp after light became dark or the other way, and tell the views of the page.
 * @param {Element} root
 */
export function repaint(root) {
  RAMPS.delete(root);
  root.dispatchEvent(new CustomEvent("colours"));
}

/** The theme after another. @param {string} theme */
export function nextTheme(theme) {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
}

/**
 * Keep a page light, dark, or as the system has it; what is printed is light.
 * @param {HTMLElement} root
 * @param {() => string} themeOf
 * @returns {() => void} to be called when the theme changes
 */
export function dressing(root, themeOf) {
  const [dark, print] = [matchMedia("(prefers-color-scheme: dark)"), matchMedia("print")];
  let printed = false;
  function dress() {
    const theme = themeOf();
    const chosen = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
    root.dataset.theme = printed || print.matches ? "light" : chosen;
    const button = root.querySelector("[data-do=theme]");
    if (button) button.textContent = `◐ ${theme[0].toUpperCase()}${theme.slice(1)}`;
    button?.setAttribute("aria-label", `Colours: ${theme}`);
    repaint(root);
  }
  for (const media of [dark, print]) media.addEventListener("change", dress);
  for (const [name, begins] of /** @type {const} */ ([["beforeprint", true], ["afterprint", false]])) {
    addEventListener(name, () => {
      printed = begins;
      dress();
    });
  }
  dress();
  return dress;
}

/** Red, green and blue of a share of the scale. @param {Element} root @param {number} share from −1 to 1 */
function partsOf(root, share) {
  const { rgb, below } = ramp(root);
  const at = 3 * Math.min(255, Math.round(255 * Math.abs(share))) || 0;
  return [...(share < 0 ? below : rgb).subarray(at, at + 3)];
}

/** The colour of a share of the scale. @param {Element} root @param {number} share from −1 to 1 */
export function shade(root, share) {
  return `rgb(${partsOf(root, share).join(" ")})`;
}

/**
 * The first of our inks that reads well on a shade, 4.5 : 1 (WCAG 2.2, 1.4.3).
 * @param {Element} root
 * @param {number} share from −1 to 1
 */
export function inkOn(root, share) {
  const [r, g, b] = partsOf(root, share).map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.05 + 0.2126 * r + 0.7152 * g + 0.0722 * b; // relative luminance, section 1.4.3
  if (light / 0.0612 >= 4.5) return "#1b1f24";
  return 1.05 / light >= 4.5 ? "#ffffff" : "#000000";
}

/** Red, green and blue of a colour. @param {string} colour "#rrggbb" */
export function rgbOf(colour) {
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
}

/** The ramp as a line of pixels, from 0 to the top of the scale. @param {Ramp} ramp */
export function rampPixels({ rgb }) {
  const data = new Uint8ClampedArray(4 * STEPS_OF_RAMP);
  for (let n = 0; n < STEPS_OF_RAMP; n++) {
    const at = 3 * Math.round((255 * n) / (STEPS_OF_RAMP - 1));
    data.set([...rgb.subarray(at, at + 3), 255], 4 * n);
  }
  return { width: STEPS_OF_RAMP, height: 1, data };
}
