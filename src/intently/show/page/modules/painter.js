/**
 * One way to draw on a canvas and in an SVG, so that what is saved is what is seen.
 *
 * Lengths are CSS pixels. Text stands with the middle of its line at y.
 */

import { escaped } from "./words.js";

/** @typedef {{width: number, height: number, data: Uint8ClampedArray<ArrayBuffer>}} Pixels */
/** @typedef {{fill?: string, stroke?: string, width?: number, dash?: number[]}} Stroke */
/** @typedef {{fill?: string, size?: number, align?: "left" | "center" | "right", weight?: number, turn?: number}} Lettering */
/**
 * @typedef {{
 *   rect: (x: number, y: number, w: number, h: number, how: Stroke) => void,
 *   line: (points: number[][], how: Stroke) => void,
 *   text: (x: number, y: number, text: string, how?: Lettering) => void,
 *   image: (pixels: Pixels, x: number, y: number, w: number, h: number) => void,
 *   clip: (x: number, y: number, w: number, h: number, paint: () => void) => void
 * }} Painter
 */

export const TYPEFACE = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';

/** From the middle of a line down to the middle of its letters, for each pixel of their size. */
const DROP = 0.06;

/** Between two strokes of a hatch, along x. */
const APART = 6;

/** Cells that become rectangles in one SVG; what comes after them becomes images. */
const DRAWN = 4096;

/** @type {WeakMap<Pixels, HTMLCanvasElement>} */
const sheets = new WeakMap();

/** @param {Pixels} pixels @returns {HTMLCanvasElement} */
function sheetOf(pixels) {
  const known = sheets.get(pixels);
  if (known) return known;
  const sheet = document.createElement("canvas");
  sheet.width = pixels.width;
  sheet.height = pixels.height;
  const context = /** @type {CanvasRenderingContext2D} */ (sheet.getContext("2d"));
  context.putImageData(new ImageData(pixels.data, pixels.width, pixels.height), 0, 0);
  sheets.set(pixels, sheet);
  return sheet;
}

/** @param {CanvasRenderingContext2D} context @returns {Painter} */
export function canvasPainter(context) {
  let font = "";
  /** @param {Stroke} how */
  function finish({ fill, stroke, width = 1, dash = [] }) {
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (!stroke) return;
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.stroke();
  }
  return {
    clip(x, y, w, h, paint) {
      const before = font;
      context.save();
      context.beginPath();
      context.rect(x, y, w, h);
      context.clip();
      paint();
      context.restore();
      font = before;
    },
    rect(x, y, w, h, how) {
      context.beginPath();
      context.rect(x, y, w, h);
      finish(how);
    },
    line(points, how) {
      context.beginPath();
      for (const [x, y] of points) context.lineTo(x, y);
      finish(how);
    },
    text(x, y, text, { fill = "#000", size = 12, align = "left", weight = 400, turn = 0 } = {}) {
      const next = `${weight} ${size}px ${TYPEFACE}`;
      if (font !== next) context.font = font = next;
      context.textAlign = align;
      context.textBaseline = "middle";
      context.fillStyle = fill;
      if (!turn) return context.fillText(text, x, y + DROP * size);
      context.translate(x, y);
      context.rotate((turn * Math.PI) / 180);
      context.fillText(text, 0, DROP * size);
      context.rotate((-turn * Math.PI) / 180);
      context.translate(-x, -y);
    },
    image(pixels, x, y, w, h) {
      context.imageSmoothingEnabled = pixels.width > w * 2 || pixels.height > h * 2;
      context.drawImage(sheetOf(pixels), x, y, w, h);
    },
  };
}

/**
 * Slanted lines on a ground, which cover a rectangle and stay in place when it moves.
 * @param {Painter} painter
 * @param {number} x
 * @param {number} y
 * @param {number} w
 * @param {number} h
 * @param {string} ground
 * @param {string} stroke
 */
export function hatch(painter, x, y, w, h, ground, stroke) {
  painter.clip(x, y, w, h, () => {
    painter.rect(x, y, w, h, { fill: ground });
    for (let at = Math.floor((x + y) / APART) * APART; at < x + y + w + h; at += APART) {
      painter.line([[at - y, y], [at - y - h, y + h]], { stroke, width: 0.7 });
    }
  });
}

/**
 * A canvas of a size in CSS pixels, sharp on this screen, and its painter.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
export function sized(canvas, width, height) {
  const sharp = devicePixelRatio || 1;
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(canvas.width / width, canvas.height / height);
  return canvasPainter(context);
}

/**
 * A painter that writes SVG; `end` gives the whole file, with its title and a description.
 * @param {number} width
 * @param {number} height
 * @returns {Painter & {end: (title: string, says: string) => string}}
 */
export function svgPainter(width, height) {
  /** @type {string[]} */
  const parts = [];
  let clips = 0;
  let drawn = 0;
  /** @param {Stroke} how */
  const look = ({ fill, stroke, width: thick = 1, dash }) =>
    `fill="${fill ?? "none"}"` +
    (stroke ? ` stroke="${stroke}" stroke-width="${trimmed(thick)}"` : "") +
    (dash?.length ? ` stroke-dasharray="${dash.join(" ")}"` : "");
  return {
    clip(x, y, w, h, paint) {
      const id = `c${clips++}`;
      parts.push(`<clipPath id="${id}"><rect ${box(x, y, w, h)}/></clipPath><g clip-path="url(#${id})">`);
      paint();
      parts.push("</g>");
    },
    rect: (x, y, w, h, how) => void parts.push(`<rect ${box(x, y, w, h)} ${look(how)}/>`),
    line(points, how) {
      const path = points.map((point) => point.map(trimmed).join(",")).join(" ");
      parts.push(`<polyline points="${path}" ${look(how)}/>`);
    },
    text(x, y, text, { fill = "#000", size = 12, align = "left", weight = 400, turn = 0 } = {}) {
      const anchor = { left: "start", center: "middle", right: "end" }[align];
      const turned = turn ? ` rotate(${turn})` : "";
      parts.push(
        `<text transform="translate(${trimmed(x)} ${trimmed(y)})${turned}" dy="0.35em" fill="${fill}" ` +
          `font-size="${trimmed(size)}" font-weight="${weight}" text-anchor="${anchor}" ` +
          `xml:space="preserve">${escaped(text)}</text>`,
      );
    },
    image(pixels, x, y, w, h) {
      drawn += pixels.width * pixels.height;
      parts.push(drawn > DRAWN ? picture(pixels, x, y, w, h) : cellRects(pixels, x, y, w, h));
    },
    end: (title, says) =>
      `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" ` +
      `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" ` +
      `aria-labelledby="title says" font-family="${escaped(TYPEFACE)}">\n<title id="title">${escaped(title)}</title>\n` +
      `<desc id="says">${escaped(says)}</desc>\n${parts.join("\n")}\n</svg>\n`,
  };
}

/** @type {(pixels: Pixels, x: number, y: number, w: number, h: number) => string} */
function picture(pixels, x, y, w, h) {
  const address = sheetOf(pixels).toDataURL("image/png");
  return (
    `<image ${box(x, y, w, h)} preserveAspectRatio="none" style="image-rendering:pixelated" ` +
    `xlink:href="${address}"/>`
  );
}

/**
 * A rectangle for each cell that is not clear; equal neighbours in a row are one.
 * @type {(pixels: Pixels, x: number, y: number, w: number, h: number) => string}
 */
function cellRects({ width, height, data }, x, y, w, h) {
  const colours = new Uint32Array(data.buffer, data.byteOffset, width * height);
  const parts = ['<g shape-rendering="crispEdges">'];
  for (let row = 0; row < height; row++) {
    for (let from = 0, to = 0; from < width; from = to) {
      const at = row * width + from;
      while (to < width && colours[row * width + to] === colours[at]) to++;
      if (!data[4 * at + 3]) continue;
      const hex = [0, 1, 2].map((c) => data[4 * at + c].toString(16).padStart(2, "0")).join("");
      const place = box(x + (from * w) / width, y + (row * h) / height, ((to - from) * w) / width, h / height);
      parts.push(`<rect ${place} fill="#${hex}"/>`);
    }
  }
  return `${parts.join("")}</g>`;
}

/** @type {(x: number, y: number, w: number, h: number) => string} */
function box(x, y, w, h) {
  return `x="${trimmed(x)}" y="${trimmed(y)}" width="${trimmed(w)}" height="${trimmed(h)}"`;
}

/** @param {number} x */
function trimmed(x) {
  return String(Math.round(x * 100) / 100);
}

/**
 * The same painter, everything so much lower.
 * @param {Painter} painter
 * @param {number} by
 * @returns {Painter}
 */
export function lowered(painter, by) {
  return {
    rect: (x, y, w, h, how) => painter.rect(x, y + by, w, h, how),
    line: (points, how) => painter.line(points.map(([x, y]) => [x, y + by]), how),
    text: (x, y, text, how) => painter.text(x, y + by, text, how),
    image: (pixels, x, y, w, h) => painter.image(pixels, x, y + by, w, h),
    clip: (x, y, w, h, inside) => painter.clip(x, y + by, w, h, inside),
  };
}
