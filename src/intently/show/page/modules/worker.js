/** A worker that holds a translator: typing never waits for it, and only the latest text counts. */

import { decode } from "./data.js";
import { createTranslator } from "./translator.js";

/** @typedef {import("./translator.js").Request & {id: number}} Task */

/** @type {ReturnType<typeof createTranslator> | null} */
let translator = null;
/** @type {Task | null} */
let waiting = null;

/**
 * Read the blocks, and make the translator.
 * @param {import("./translator.js").Description} description
 * @param {string[]} texts
 */
async function load(description, texts) {
  const blocks = await Promise.all(texts.map((text, n) => decode(text, description.blocks[n])));
  translator = createTranslator(description, (name) => {
    const block = description.weights[name];
    return block === undefined ? null : /** @type {Float32Array} */ (blocks[block]);
  });
}

/** Translate what was asked last. */
function work() {
  if (!waiting || !translator) return;
  const { id, text, beams, changes } = waiting;
  waiting = null;
  const since = performance.now();
  try {
    const made = translator.translate({ text, beams, changes });
    postMessage({ kind: "translated", id, ...made, milliseconds: performance.now() - since });
  } catch (error) {
    postMessage({ kind: "failed", id, message: error instanceof Error ? error.message : String(error) });
  }
}

addEventListener("message", ({ data }) => {
  if (data.kind === "load") {
    load(data.description, data.blocks).then(
      () => postMessage({ kind: "ready" }),
      (error) => postMessage({ kind: "failed", message: error instanceof Error ? error.message : String(error) }),
    );
  } else if (data.kind === "translate") {
    waiting = data;
    setTimeout(work); // messages that wait are heard first
  }
});
