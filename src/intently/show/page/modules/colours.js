/**
 * The colours of weights, read from the style sheet: one ramp for light, one for dark.
 * @typedef {{rgb: Uint8ClampedArray, paper: string, ink: string, quiet: string, frame: string,
 *   accent: string, hole: string, hatch: string}} Ramp
 */

const STOPS = 8;

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
  const stops = Array.from({ length: STOPS }, (_, n) => colourParts(read(`w${n}`)));
  const rgb = new Uint8ClampedArray(256 * 3);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (STOPS - 1);
    const low = Math.min(Math.floor(place), STOPS - 2);
    for (let c = 0; c < 3; c++) {
      rgb[3 * level + c] = stops[low][c] + (place - low) * (stops[low + 1][c] - stops[low][c]);
    }
  }
  const made = {
    rgb,
    paper: read("paper"),
    ink: read("ink"),
    quiet: read("quiet"),
    frame: read("frame"),
    accent: read("accent"),
    hole: read("hole"),
    hatch: read("hatch"),
  };
  RAMPS.set(page, made);
  return made;
}

/**
 * Forget the ramp after light became dark or the other way, and tell the views of the page.
 * @param {Element} root
 */
export function repaint(root) {
  RAMPS.delete(root);
  root.dispatchEvent(new CustomEvent("colours"));
}

/** The colour of a share of the scale. @param {Element} root @param {number} share from 0 to 1 */
export function shade(root, share) {
  const { rgb } = ramp(root);
  const at = 3 * shadeLevel(share);
  return `rgb(${rgb[at]} ${rgb[at + 1]} ${rgb[at + 2]})`;
}

/**
 * The colour, light or dark, in which text is read best on a shade.
 * @param {Element} root
 * @param {number} share from 0 to 1
 */
export function inkOn(root, share) {
  const { rgb } = ramp(root);
  const at = 3 * shadeLevel(share);
  const light = luminance(rgb[at], rgb[at + 1], rgb[at + 2]);
  return 1.05 / (light + 0.05) > (light + 0.05) / (0.0144 + 0.05) ? "#ffffff" : "#1b1f24";
}

/** @param {number} share */
function shadeLevel(share) {
  return Math.max(0, Math.min(255, Math.round(255 * share))) || 0;
}

/** @param {string} colour "#rrggbb" */
function colourParts(colour) {
  const number = Number.parseInt(colour.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

/** Relative luminance (WCAG 2, section 1.4.3). @param {...number} parts red, green and blue from 0 to 255 */
function luminance(...parts) {
  const [r, g, b] = parts.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
