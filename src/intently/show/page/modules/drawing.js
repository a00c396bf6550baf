/** The whole sheet of a head, from what is known of it so far. */

import { inkOn, ramp } from "./colours.js";
import { paintNames, paintNumbers, paintRules, paintScale } from "./frame.js";
import { hatch } from "./painter.js";
import { paintEntropy, paintReceived } from "./margins.js";
import { SINGLE_WEIGHT, shaded, unitOf } from "./shading.js";

/** @typedef {import("./painter.js").Pixels} Pixels */
/** @typedef {import("./scales.js").Scale} Scale */
/** @typedef {import("./shading.js").Cells} Cells */
/**
 * What is drawn: `whole` lies under `exact`, which was computed for a window near this one.
 * @typedef {{
 *   sheet: import("./frame.js").Sheet, span: import("./frame.js").Span, scale: Scale,
 *   names: import("./frame.js").Names, whole: Cells | null, exact: Cells | null, range: string,
 *   entropy: Float32Array | null, received: Float32Array | null, hidden: boolean, error: number
 * }} Scene
 */

/** @type {WeakMap<Cells, {key: string, pixels: Pixels}>} */
const paintedCells = new WeakMap();

/**
 * @param {import("./painter.js").Painter} painter
 * @param {Element} root whose colours are taken
 * @param {Scene} scene
 */
export function paintSheet(painter, root, scene) {
  const { sheet, span, names, whole, exact, scale, hidden } = scene;
  const colours = ramp(root);
  const { x, y, w, h } = sheet;
  const [high, wide] = [h / (span.r1 - span.r0), w / (span.c1 - span.c0)];
  painter.clip(x, y, w, h, () => {
    painter.rect(x, y, w, h, { fill: colours.paper });
    for (const cells of new Set([whole, exact])) {
      if (!cells?.values.length) continue;
      const [left, top] = [x + (cells.c0 - span.c0) * wide, y + (cells.r0 - span.r0) * high];
      const size = { w: (cells.c1 - cells.c0) * wide, h: (cells.r1 - cells.r0) * high };
      painter.image(pixelsOf(cells, scale, colours), left, top, size.w, size.h);
    }
    if (hidden && span.c0 < 1) {
      hatch(painter, x - span.c0 * wide, y, wide, h, colours.hole, colours.hatch);
    }
  });
  paintRules(painter, sheet, span, colours);
  if (exact && unitOf(exact) === SINGLE_WEIGHT) {
    paintNumbers(painter, sheet, span, exact, (share) => inkOn(root, share), scale, scene.error);
  }
  paintNames(painter, sheet, span, names, colours);
  paintEntropy(painter, sheet, span, scene.entropy, colours);
  paintReceived(painter, sheet, span, scene.received, colours, hidden);
  const masked = exact?.masked?.includes(1) ?? false;
  const preview = !exact && (whole?.relative ?? false);
  const [shown, { range }] = [exact ?? whole, scene];
  const unit = shown ? unitOf(shown) : SINGLE_WEIGHT;
  paintScale(painter, sheet, scale, colours, { masked, hidden: hidden && span.c0 < 1, preview, unit, range });
}

/**
 * Cells in their colours; the same are not coloured twice.
 * @param {Cells} cells
 * @param {Scale} scale
 * @param {import("./colours.js").Ramp} colours
 * @returns {Pixels}
 */
function pixelsOf(cells, scale, colours) {
  const key = [scale.log, scale.low, scale.high, colours.paper].join();
  const known = paintedCells.get(cells);
  if (known?.key === key) return known.pixels;
  const pixels = shaded(cells, scale, colours);
  paintedCells.set(cells, { key, pixels });
  return pixels;
}
