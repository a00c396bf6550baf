/** Draws the scenes of a story on a canvas, and goes from one to the next. */

import { dressing, inkOn, ramp, shade } from "./colours.js";
import { trying } from "./trying.js";

/** @typedef {{kind: string, key: string, x: number, y: number, opacity: number, [name: string]: any}} Shape */
/** @typedef {{caption: string, hold: number, shapes: number[]}} Scene */

const LARGE = 400;
const TWEEN = 420;
const QUICK = 200;

/** @type {{left: number, width: number, height: number, shapes: Shape[], scenes: Scene[], live: import("./dragging.js").Live | null}} */
const story = JSON.parse(element("story").textContent ?? "");
const canvas = /** @type {HTMLCanvasElement} */ (document.querySelector("canvas"));
const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
const slider = /** @type {HTMLInputElement} */ (element("at"));
const still = matchMedia("(prefers-reduced-motion: reduce)");
const root = /** @type {HTMLElement} */ (document.querySelector(".intently"));
const { fontFamily } = getComputedStyle(root);
const scenes = story.scenes.map((scene) => scene.shapes.map((n) => story.shapes[n]));

let at = 0;
let playing = false;
let timer = 0;
let frame = 0;
let seen = scenes[0];

/** A colour by its name. @param {string} name */
function named(name) {
  return ramp(root)[/** @type {"ink"} */ (name)];
}

/** @param {string} id */
function element(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

// --- drawing ----------------------------------------------------------------------------------

/** @param {Shape[]} shapes */
function draw(shapes) {
  const [ratio, zoom] = [devicePixelRatio || 1, scale()];
  const [wide, high] = [story.width * zoom, story.height * zoom];
  if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
  }
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.setTransform(ratio * zoom, 0, 0, ratio * zoom, -story.left * ratio * zoom, 0);
  for (const shape of shapes) {
    if (shape.opacity <= 0) continue;
    pen.globalAlpha = Math.min(1, shape.opacity);
    if (shape.kind === "cells") drawGrid(shape, ratio * zoom);
    else if (shape.kind === "text") drawText(shape);
    else drawCurve(shape);
  }
  seen = shapes;
}

/** The whole scene, however narrow the page. */
function scale() {
  return Math.min(1.5, element("stage").clientWidth / story.width);
}

/** @param {Shape} grid @param {number} zoom */
function drawGrid(grid, zoom) {
  const [wide, high] = grid.cell;
  const rows = grid.shades.length;
  const columns = grid.shades[0].length;
  const snap = (/** @type {number} */ value) => Math.round(value * zoom) / zoom;
  const lined = Math.min(wide, high) >= 5 && rows * columns > 1 && rows * columns <= LARGE;
  for (let i = 0; i < rows; i++) {
    const [top, bottom] = [snap(grid.y + i * high), snap(grid.y + (i + 1) * high)];
    for (let j = 0; j < columns; j++) {
      const share = grid.shades[i][j];
      if (share === null) continue;
      const [left, right] = [snap(grid.x + j * wide), snap(grid.x + (j + 1) * wide)];
      pen.fillStyle = shade(root, share);
      pen.fillRect(left, top, right - left, bottom - top);
      if (lined) line(left, top, right, bottom, named("grid"), 1);
      const text = grid.texts[i * columns + j];
      if (text) write(text, (left + right) / 2, (top + bottom) / 2, grid.size, inkOn(root, share), "center");
    }
  }
  if (grid.edge) {
    const [right, bottom] = [snap(grid.x + columns * wide), snap(grid.y + rows * high)];
    const heavy = grid.edge === "accent" ? 2 : 1;
    line(snap(grid.x), snap(grid.y), right, bottom, named(grid.edge), heavy);
  }
}

/**
 * @param {number} left @param {number} top @param {number} right @param {number} bottom
 * @param {string} colour @param {number} width
 */
function line(left, top, right, bottom, colour, width) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.strokeRect(left, top, right - left, bottom - top);
}

/** @param {Shape} text */
function drawText(text) {
  const align = /** @type {CanvasTextAlign} */ (text.anchor === "middle" ? "center" : text.anchor);
  write(text.text, text.x, text.y, text.size, named(text.colour), align);
}

/**
 * @param {string} text @param {number} x @param {number} y @param {number} size
 * @param {string} colour @param {CanvasTextAlign} align
 */
function write(text, x, y, size, colour, align) {
  pen.font = `${size}px ${fontFamily}`;
  pen.fillStyle = colour;
  pen.direction = "ltr";
  pen.textAlign = align;
  pen.fillText(text, x, y + 0.36 * size);
}

/** @param {Shape} curve */
function drawCurve(curve) {
  const middle = (curve.y + curve.y2) / 2;
  pen.beginPath();
  pen.moveTo(curve.x, curve.y);
  pen.bezierCurveTo(curve.x, middle, curve.x2, middle, curve.x2, curve.y2);
  pen.strokeStyle = shade(root, curve.shade);
  pen.lineWidth = curve.width;
  pen.stroke();
}

// --- between two scenes -----------------------------------------------------------------------

/** @param {Shape[]} before @param {Shape[]} after @param {number} share @returns {Shape[]} */
function between(before, after, share) {
  const eased = share * share * (3 - 2 * share);
  const left = new Map(before.map((shape) => [shape.key, shape]));
  const kept = new Set(after.map((shape) => shape.key));
  const found = before
    .filter((shape) => !kept.has(shape.key))
    .map((shape) => faded(shape, 1 - eased));
  for (const shape of after) found.push(...changed(left.get(shape.key), shape, eased));
  return found;
}

/** @param {Shape | undefined} old @param {Shape} next @param {number} share @returns {Shape[]} */
function changed(old, next, share) {
  if (old === undefined) return [faded(next, share)];
  if (old === next) return [next];
  if (old.kind !== next.kind || !alike(old, next)) {
    return [faded(old, 1 - share), faded(next, share)];
  }
  const found = { ...(share >= 0.5 ? next : old) };
  for (const name of Object.keys(next)) {
    if (typeof next[name] === "number") found[name] = old[name] + (next[name] - old[name]) * share;
  }
  if (next.kind === "cells") {
    found.cell = next.cell.map(
      (/** @type {number} */ value, /** @type {number} */ n) =>
        old.cell[n] + (value - old.cell[n]) * share,
    );
    found.shades = next.shades.map((/** @type {any[]} */ row, /** @type {number} */ i) =>
      row.map((shade, j) => mixedShade(old.shades[i][j], shade, share)),
    );
  }
  return [found];
}

/** @param {Shape} old @param {Shape} next */
function alike(old, next) {
  if (next.kind !== "cells") return true;
  const same = old.shades.length === next.shades.length;
  return same && old.shades[0].length === next.shades[0].length;
}

/** @param {any} old @param {any} next @param {number} share */
function mixedShade(old, next, share) {
  if (typeof old !== "number" || typeof next !== "number") return share >= 0.5 ? next : old;
  return old + (next - old) * share;
}

/** @param {Shape} shape @param {number} share @returns {Shape} */
function faded(shape, share) {
  return { ...shape, opacity: shape.opacity * share };
}

// --- going on ---------------------------------------------------------------------------------

/** @param {number} place @param {boolean} [moving] */
function go(place, moving = true) {
  const next = Math.max(0, Math.min(scenes.length - 1, place));
  const from = seen;
  const time = story.scenes[next].hold < 1 ? QUICK : TWEEN;
  at = next;
  tell();
  cancelAnimationFrame(frame);
  if (!moving || still.matches) return draw(scenes[at]);
  const start = performance.now();
  const step = (/** @type {number} */ now) => {
    const share = Math.max(0, Math.min(1, (now - start) / time));
    draw(share < 1 ? between(from, scenes[at], share) : scenes[at]);
    if (share < 1) frame = requestAnimationFrame(step);
  };
  frame = requestAnimationFrame(step);
}

function tell() {
  const { caption } = story.scenes[at];
  const said = element("said");
  if (said.textContent !== caption) said.textContent = caption;
  canvas.setAttribute("aria-label", caption);
  slider.value = String(at + 1);
  slider.setAttribute("aria-valuetext", `step ${at + 1} of ${scenes.length}: ${caption}`);
  element("count").textContent = `${at + 1} of ${scenes.length}`;
  for (const id of ["first", "back"]) disable(id, at === 0);
  disable("next", at === scenes.length - 1);
}

/** @param {string} id @param {boolean} off */
function disable(id, off) {
  element(id).setAttribute("aria-disabled", String(off)); // it keeps the focus
}

/** @param {boolean} on */
function play(on) {
  clearTimeout(timer);
  if (on && at === scenes.length - 1) go(0, false);
  playing = on;
  const button = element("play");
  button.setAttribute("aria-label", on ? "pause" : "play");
  element("said").setAttribute("aria-live", on ? "off" : "polite");
  show(button, on ? ["M3 2h3v12H3z", "M10 2h3v12h-3z"] : ["M4 2l10 6-10 6z"]);
  if (on) timer = setTimeout(onward, 1000 * story.scenes[at].hold + TWEEN);
}

function onward() {
  go(at + 1);
  if (at === scenes.length - 1) return play(false);
  timer = setTimeout(onward, 1000 * story.scenes[at].hold + TWEEN);
}

/** @param {number} place */
function step(place) {
  play(false);
  go(place);
}

/** @param {HTMLElement} button @param {string[]} paths */
function show(button, paths) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 16 16");
  drawing.setAttribute("aria-hidden", "true");
  for (const path of paths) {
    const part = document.createElementNS(space, "path");
    part.setAttribute("d", path);
    drawing.append(part);
  }
  button.replaceChildren(drawing);
}

/** @type {Record<string, () => void>} */
const KEYS = {
  ArrowRight: () => step(at + 1),
  ArrowLeft: () => step(at - 1),
  Home: () => step(0),
  End: () => step(scenes.length - 1),
  " ": () => play(!playing),
};

show(element("first"), ["M2 2h2.5v12H2z", "M14 2L5.5 8l8.5 6z"]);
show(element("back"), ["M12 2L3 8l9 6z"]);
show(element("next"), ["M4 2l9 6-9 6z"]);
element("first").addEventListener("click", () => step(0));
element("back").addEventListener("click", () => step(at - 1));
element("next").addEventListener("click", () => step(at + 1));
element("play").addEventListener("click", () => play(!playing));
slider.addEventListener("input", () => step(Number(slider.value) - 1));
document.addEventListener("keydown", (event) => {
  const pressed = KEYS[event.key];
  const target = /** @type {Element} */ (event.target);
  const own = target.closest?.("#try") || (event.key === " " && target.localName === "button");
  if (!pressed || own || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  pressed();
});
if (story.live) {
  const [opening, { caption }] = [scenes[0], story.scenes[0]];
  const own = trying(story.live, opening, (shapes, said) => {
    scenes[0] = shapes ?? opening;
    story.scenes[0].caption = shapes ? said : caption;
    play(false);
    go(0, false);
  });
  own.follow(canvas, (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const shown = at === 0 ? scenes[0] : scenes[at].filter((shape) => opening.includes(shape));
    return [shown, (event.clientX - left) / scale() + story.left, (event.clientY - top) / scale()];
  });
}
new ResizeObserver(() => draw(seen)).observe(element("stage"));
dressing(root, () => "auto");
root.addEventListener("colours", () => draw(seen));
go(0, false);
play(!still.matches);
