/**
 * The page inside a notebook: blocks come from the kernel when they are asked for.
 * @typedef {{
 *   get: (name: string) => any, set: (name: string, value: unknown) => void,
 *   save_changes: () => void, send: (content: unknown) => void,
 *   on: (event: string, hear: (content: any) => void) => void,
 *   off: (event: string, hear: (content: any) => void) => void
 * }} Model what anywidget hands over
 */

import { mount } from "./app.js";
import { headSource } from "./attention.js";
import { pageOf } from "./data.js";
import { element } from "./words.js";

/**
 * Draw the page of a model in an element of the notebook, apart from the notebook's own style.
 * @param {{model: Model, el: HTMLElement}} given
 */
export function renderWidget({ model, el }) {
  const host = element("div", { "data-lm-suppress-shortcuts": "true" });
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(model.get("style"));
  shadow.adoptedStyleSheets = [sheet];
  const body = element("template");
  body.innerHTML = model.get("body");
  shadow.append(body.content);
  el.append(host);

  /** @type {Map<number, (text: string) => void>} */
  const waiting = new Map();
  const arrived = (/** @type {{block: number, text: string}} */ { block, text }) => {
    waiting.get(block)?.(text);
    waiting.delete(block);
  };
  model.on("msg:custom", arrived);
  const read = (/** @type {number} */ block) =>
    /** @type {Promise<string>} */ (
      new Promise((resolve) => {
        waiting.set(block, resolve);
        model.send({ block });
      })
    );

  /** @type {(() => void)[]} */
  const hearers = [];
  const moved = () => {
    for (const hear of hearers) hear();
  };
  model.on("change:address", moved);
  const address = {
    read: () => model.get("address"),
    write(/** @type {string} */ text) {
      if (text === model.get("address")) return;
      model.set("address", text);
      model.save_changes();
    },
    listen: (/** @type {() => void} */ hear) => void hearers.push(hear),
  };
  const meta = JSON.parse(model.get("meta"));
  const { jpThemeLight } = document.body.dataset;
  if (jpThemeLight) meta.state = { theme: jpThemeLight === "true" ? "light" : "dark", ...meta.state };
  const root = /** @type {HTMLElement} */ (shadow.querySelector(".intently"));
  root.tabIndex = -1;
  const page = pageOf(meta, read);
  mount(root, page, headSource(page), address, root);
  return () => {
    model.off("msg:custom", arrived);
    model.off("change:address", moved);
  };
}
