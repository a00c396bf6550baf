/** A page of its own: what the document holds, or its server has, shown as soon as it is read. */

import { mount } from "./app.js";
import { headSource } from "./attention.js";
import { openPage } from "./data.js";
import { followStatistics, servedHeads, servedPage, whenAsked } from "./remote.js";
import { browserAddress } from "./state.js";

const place = /** @type {HTMLElement} */ (document.querySelector(".intently"));
const stored = openPage(document);
const served = stored.meta.source === "server";
const source = served ? servedHeads(stored) : headSource(stored);
if (served) whenAsked((answers) => place.dispatchEvent(new CustomEvent(answers ? "answered" : "silent")));
mount(place, served ? servedPage(stored) : stored, source, browserAddress(), document);
if (served) followStatistics(stored, () => place.dispatchEvent(new CustomEvent("statistics")));
