/** What is seen, as a file: a view offers its picture, and it is painted again at its best. */

import { textWidth } from "./frame.js";
import { lowered, svgPainter } from "./painter.js";
import { visible } from "./words.js";

/** @typedef {import("./painter.js").Painter} Painter */
/**
 * A picture: `name` is what it is of, `detail` what of it is seen, `says` the same in a sentence, for
 * those who do not see it.
 * @typedef {{width: number, height: number, name: string, detail: string, says?: string, paint: (painter: Painter) => void}} Picture
 */

/** Room for a title and a line under it, and around a picture. */
const TITLED = 50;
const AROUND = 12;
const BOLD = 1.2;

/** Letters of a description. */
const TOLD = 1000;

/** @type {WeakMap<Element, () => Picture | Promise<Picture>>} */
const offers = new WeakMap();

/**
 * Say how a view is painted when somebody saves it.
 * @param {Element} root
 * @param {() => Picture | Promise<Picture>} make
 */
export function offerPicture(root, make) {
  offers.set(root, make);
}

/**
 * A picture under its title, so that a file says what it shows.
 * @param {import("./data.js").Meta} meta
 * @param {number} item
 * @param {string} detail what of the item is shown
 * @param {{width: number, height: number, paint: (painter: Painter) => void}} below
 * @param {{paper: string, ink: string, quiet: string}} colours
 * @returns {Picture}
 */
export function titled(meta, item, detail, { width, height, paint }, { paper, ink, quiet }) {
  const title = (meta.items.length > 1 && meta.items[item].name) || meta.title || "attention";
  const size = { width: Math.ceil(width), height: Math.ceil(height + TITLED) };
  return {
    ...size,
    name: title,
    detail,
    paint(painter) {
      painter.rect(0, 0, size.width, size.height, { fill: paper });
      const room = width - 2 * AROUND;
      painter.text(AROUND, 18, shortened(title, room / BOLD), { fill: ink, size: 13, weight: 600 });
      painter.text(AROUND, 35, shortened(detail, room), { fill: quiet, size: 11.5 });
      paint(lowered(painter, TITLED));
    },
  };
}

/** @param {string} text @param {number} room */
function shortened(text, room) {
  let letters = 120;
  while (letters > 4 && textWidth(visible(text, letters)) > room) letters -= 2;
  return visible(text, letters);
}

/** Save what a view shows as an SVG: text stays text. @param {Element} root the element of the view */
export async function saveSVG(root) {
  const make = offers.get(root);
  if (!make) throw new Error("this view has no picture to save");
  const { width, height, name, detail, says, paint } = await make();
  const painter = svgPainter(width, height);
  paint(painter);
  const title = visible(`${name}: ${detail}`, TOLD);
  const file = painter.end(title, visible(says ?? title, TOLD));
  download(new Blob([file], { type: "image/svg+xml" }), `${fileName(name, detail)}.svg`);
}

/**
 * A name that every file system takes; a long text is cut, never what of it is shown.
 * @param {string} name
 * @param {string} detail
 */
export function fileName(name, detail) {
  const safe = [name, detail].map((text) => text.replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^[-.]+|[-.]+$/g, ""));
  return [safe[0].slice(0, 40), safe[1].slice(-60)].filter(Boolean).join("-") || "attention";
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
