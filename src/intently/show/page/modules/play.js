/** A page in which a translator runs: its weights stand in the file, its worker beside them. */

import { live } from "./live.js";
import { browserAddress } from "./state.js";

/** Start the worker, and hand it the translator, once the whole file is read. */
function play() {
  const root = /** @type {HTMLElement} */ (document.querySelector(".intently"));
  const wait = root.querySelector("[data-wait]");
  if (!document.querySelector("#intently-worker")) {
    if (wait) wait.textContent = "This page is cut short: save or copy it again.";
    return;
  }
  const textOf = (/** @type {string} */ selector) => document.querySelector(selector)?.textContent ?? "";
  const description = JSON.parse(textOf("#intently-translator"));
  const code = new Blob([textOf("#intently-worker")], { type: "text/javascript" });
  const worker = new Worker(URL.createObjectURL(code));
  live(root, description, worker, browserAddress());
  const blocks = [...document.querySelectorAll("script[data-block]")].sort(
    (a, b) => Number(a.getAttribute("data-block")) - Number(b.getAttribute("data-block")),
  );
  worker.postMessage({ kind: "load", description, blocks: blocks.map((block) => block.textContent ?? "") });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", play);
else play();
