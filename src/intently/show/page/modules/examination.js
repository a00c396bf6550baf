/** Starts the page of an examination with what the document holds. */

import { examined } from "./examined.js";

const place = /** @type {HTMLElement} */ (document.querySelector(".intently"));
examined(place, JSON.parse(document.getElementById("intently-page")?.textContent ?? ""));
