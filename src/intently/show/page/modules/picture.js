/** A picture whose patches are shaded by weights; what stands before them (CLS) is beside it. */

import { ramp } from "./colours.js";
import { ARROWS } from "./keys.js";
import { paintsItself } from "./snapshot.js";
import { element, visible } from "./words.js";

const ALPHA = 0.86;

/**
 * A panel of a side that is a picture: patches are pointed at, clicked, and walked with arrows.
 * @param {import("./readings.js").Words} words
 * @param {string} label
 * @param {import("./tokens.js").Hears} hears
 * @returns {import("./tokens.js").Panel}
 */
export function picturePanel(words, label, hears) {
  const side = /** @type {import("./data.js").PictureSide} */ (words.side);
  const { rows, columns, before } = side;
  const source = /^data:image\/(png|jpeg|webp);base64,[\w+/=]+$/.test(side.image) ? side.image : "";
  const image = element("img", { alt: "", draggable: "false" });
  image.addEventListener("load", () => {
    image.classList.toggle("small", image.naturalWidth < 96);
    if (image.naturalWidth) shape(image.naturalWidth, image.naturalHeight);
  });
  image.src = source;
  const cover = element("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const boxes = new Map(
    ["anchor", "pinned"].map((kind) => [kind, element("span", { class: `box ${kind}`, hidden: true })]),
  );
  const frame = element(
    "div",
    {
      class: "picture",
      role: "application",
      tabindex: 0,
      "data-keys": true,
      "aria-label": `${label}: a picture of ${rows} × ${columns} patches; arrows choose one, Enter holds it`,
    },
    image,
    cover,
    ...boxes.values(),
  );
  shape(columns, rows);
  const chips = words.units
    .slice(0, before)
    .map((name) => element("button", { type: "button", class: "word" }, visible(name)));
  const root = element("div", { class: "pictured" }, frame);
  if (chips.length) root.prepend(element("div", { class: "chips" }, ...chips));

  /** @param {number} width @param {number} height */
  function shape(width, height) {
    frame.style.aspectRatio = `${width} / ${height}`;
    frame.style.maxWidth = `calc(70vh * ${width / height})`;
  }

  let unit = before;
  /** @param {PointerEvent | MouseEvent} event */
  const under = (event) => {
    const { left, top, width, height } = frame.getBoundingClientRect();
    const column = Math.floor(((event.clientX - left) / width) * columns);
    const row = Math.floor(((event.clientY - top) / height) * rows);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
    return before + row * columns + column;
  };
  let pointed = -1;
  frame.addEventListener("pointermove", (event) => {
    const found = under(event);
    if (event.pointerType === "touch" || found === null || found === pointed) return;
    pointed = found;
    hears.point(found);
  });
  root.addEventListener("pointerleave", () => {
    pointed = -1;
    hears.point(null);
  });
  frame.addEventListener("click", (event) => {
    const found = under(event);
    if (found !== null) hears.pick((unit = found));
  });
  chips.forEach((chip, n) => {
    chip.addEventListener("pointerenter", () => hears.point(n));
    chip.addEventListener("focus", () => chip.matches(":focus-visible") && hears.point(n));
    chip.addEventListener("click", () => hears.pick(n));
  });
  frame.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const cell = unit - before;
    const [row, column] = [Math.floor(cell / columns), cell % columns];
    /** @type {Record<string, [number, number]>} */
    const steps = { ...ARROWS, Home: [0, -column], End: [0, columns - 1 - column] };
    const step = steps[event.key];
    if (event.key === "Enter" || event.key === " ") hears.pick(unit);
    else if (!step) return;
    else {
      const to = [row + step[0], column + step[1]];
      if (to[0] >= 0 && to[1] >= 0 && to[0] < rows && to[1] < columns) {
        unit = before + to[0] * columns + to[1];
        hears.point(unit);
      }
    }
    event.preventDefault();
  });
  frame.addEventListener("focus", () => frame.matches(":focus-visible") && hears.point(unit));
  frame.addEventListener("blur", () => hears.point(null));

  paintsItself(frame, (painter, { x, y, width, height }) => {
    const [wide, high] = [Math.round(width), Math.round(height)];
    const sheet = element("canvas", { width: wide, height: high });
    const brush = /** @type {CanvasRenderingContext2D} */ (sheet.getContext("2d"));
    const { filter, opacity } = getComputedStyle(image);
    Object.assign(brush, { filter, globalAlpha: Number(opacity), imageSmoothingEnabled: !image.matches(".small") });
    brush.drawImage(image, 0, 0, wide, high);
    Object.assign(brush, { filter: "none", globalAlpha: 1, imageSmoothingEnabled: false });
    brush.drawImage(cover, 0, 0, wide, high);
    painter.image(brush.getImageData(0, 0, wide, high), x, y, width, height);
    const { left, top } = frame.getBoundingClientRect();
    for (const box of boxes.values()) {
      if (box.hidden) continue;
      const edge = box.getBoundingClientRect();
      const stroke = getComputedStyle(box).borderTopColor;
      painter.rect(x + edge.left - left, y + edge.top - top, edge.width, edge.height, { stroke, width: 2 });
    }
  });

  /** @type {Parameters<import("./tokens.js").Panel["paint"]>} */
  let last = [null, () => 0];
  return {
    root,
    list: frame,
    wordAt: () => null,
    repaint() {
      this.paint(...last);
    },
    paint(weights, share) {
      last = [weights, share];
      const { rgb } = ramp(frame);
      const brush = cover.getContext("2d");
      frame.classList.toggle("read", weights !== null);
      chips.forEach((chip, n) => {
        const part = weights && !Number.isNaN(weights[n]) ? share(weights[n]) : 0;
        chip.style.boxShadow = part ? `inset 0 -${Math.ceil(4 * part)}px 0 ${ramp(frame).ink}` : "";
      });
      if (!brush) return;
      const picture = brush.createImageData(columns, rows);
      for (let n = 0; n < rows * columns; n++) {
        const weight = weights ? weights[before + n] : NaN;
        const part = weight > 0 ? share(weight) : 0;
        const at = 3 * Math.round(255 * (0.6 + 0.4 * part));
        picture.data.set(rgb.subarray(at, at + 3), 4 * n);
        picture.data[4 * n + 3] = Math.round(255 * ALPHA * Math.sqrt(part));
      }
      brush.putImageData(picture, 0, 0);
    },
    mark(kind, units) {
      chips.forEach((chip, n) => chip.classList.toggle(kind, units.includes(n)));
      const box = boxes.get(kind);
      if (!box) return;
      const cell = units.length ? units[0] - before : -1;
      box.hidden = cell < 0;
      if (cell < 0) return;
      if (kind === "pinned") unit = units[0];
      box.style.left = `${((cell % columns) / columns) * 100}%`;
      box.style.top = `${(Math.floor(cell / columns) / rows) * 100}%`;
      box.style.width = `${100 / columns}%`;
      box.style.height = `${100 / rows}%`;
    },
  };
}
