/** The cells that a hand changed, marked on the matrix. */

/** @typedef {import("./frame.js").Sheet} Sheet */
/** @typedef {import("./frame.js").Span} Span */
/** A cell that was crossed out, or whose weight was set. @typedef {{i: number, j: number, crossed: boolean}} Stroke */

/** Cells smaller than this are marked in this size, in pixels. */
const LEAST_STROKE = 6;

/**
 * A cross over what was crossed out, a frame around what was set.
 * @param {import("./painter.js").Painter} painter
 * @param {Sheet} sheet
 * @param {Span} span
 * @param {Stroke[]} strokes
 * @param {import("./colours.js").Ramp} colours
 */
export function paintStrokes(painter, { x, y, w, h }, span, strokes, colours) {
  const [high, wide] = [h / (span.r1 - span.r0), w / (span.c1 - span.c0)];
  painter.clip(x, y, w, h, () => {
    for (const { i, j, crossed } of strokes) {
      const [middle, centre] = [y + (i + 0.5 - span.r0) * high, x + (j + 0.5 - span.c0) * wide];
      const [down, across] = [Math.max(LEAST_STROKE, 0.7 * high) / 2, Math.max(LEAST_STROKE, 0.7 * wide) / 2];
      if (!crossed) {
        painter.rect(centre - across, middle - down, 2 * across, 2 * down, { stroke: colours.accent, width: 2 });
        continue;
      }
      painter.line([[centre - across, middle - down], [centre + across, middle + down]], { stroke: colours.accent, width: 2 });
      painter.line([[centre - across, middle + down], [centre + across, middle - down]], { stroke: colours.accent, width: 2 });
    }
  });
}
