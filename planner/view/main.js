// Starts the page: reads the payload, fills in the facts, draws, and joins the controls.

const THEMES = ["auto", "light", "dark"];

function start(data) {
  const begun = performance.now();
  const network = new Network(data);
  const scene = new Scene(network);
  fillHeader(data);
  document.body.classList.toggle("many", hasMany(data));
  document.body.classList.toggle("hundreds", data.devices.length > 100); // numbers of three digits
  network.openReadable();
  scene.begin();
  controlScene(scene);
  controlBar(scene);
  const filter = controlSearch(scene);
  fillLegend(data, filter);
  const timeline = startTimeline(data, scene, filter);
  fillDevices(data);
  fillParts(data);
  fillCuts(data, (op) => revealOp(scene, op));
  controlTheme();
  controlPrint(scene, timeline);
  let width = scene.size.join();
  new ResizeObserver(() => {
    if (scene.size.join() !== width && !scene.moved) scene.update();
    width = scene.size.join();
  }).observe(scene.root);
  Object.assign(globalThis, { planView: { scene, network, timeline } }); // for the browser's console
  document.body.dataset.readyMs = (performance.now() - begun).toFixed(0);
  document.body.dataset.ready = "";
}

function revealOp(scene, op) {
  scene.network.reveal(op);
  scene.update();
  scene.focus(op);
  scene.root.scrollIntoView({ block: "nearest" });
}

function controlBar(scene) {
  const { network } = scene;
  let depth = null; // of "one level"; unknown until one of its buttons was used
  const openDepth = () => depth ?? Math.max(0, ...[...network.open].map((id) => network.depth[id] + 1));
  const to = (level) => {
    depth = Math.max(0, Math.min(network.maxDepth, level));
    network.openTo(depth);
    scene.moved = false;
    scene.update();
  };
  const actions = {
    close: () => to(openDepth() - 1),
    open: () => to(openDepth() + 1),
    collapse: () => to(0),
    expand: () => to(network.maxDepth),
    in: () => scene.zoom(1.4),
    out: () => scene.zoom(1 / 1.4),
    fit: () => scene.fit(),
    save: () => savePicture(scene),
  };
  listenButtons("do", actions);
  scene.root.addEventListener("click", () => (depth = null));
}

/** What is open, as a file for documents. */
function savePicture({ network, layout }) {
  const link = document.createElement("a");
  link.href = `data:image/svg+xml,${encodeURIComponent(drawPicture(network, layout))}`;
  link.download = `${network.data.summary.model}.svg`;
  link.click();
}

/** Buttons name their action in an attribute, `data-<attribute>`. */
function listenButtons(attribute, actions) {
  for (const button of document.querySelectorAll(`[data-${attribute}]`)) {
    button.addEventListener("click", actions[button.dataset[attribute]]);
  }
}

/** Search and the other filters; returns a function that shows only some operators (null: all). */
function controlSearch(scene) {
  const query = byId("query");
  let found = [];
  let at = -1;
  const show = (ops, searching, device = null) => {
    scene.matches = ops && new Set(ops);
    scene.device = device;
    scene.searching = searching;
    scene.draw();
  };
  query.addEventListener("input", () => {
    found = query.value.trim() ? scene.network.find(query.value) : [];
    at = -1;
    clearPressed();
    show(query.value.trim() ? found : null, true);
    byId("matches").textContent = query.value.trim() ? grouped(found.length) : "";
  });
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!found.length) return;
    at = (at + 1) % found.length;
    byId("matches").textContent = `${at + 1} of ${grouped(found.length)}`;
    revealOp(scene, found[at]);
    query.focus({ preventScroll: true });
  });
  const filter = (ops, device = null) => {
    query.value = "";
    byId("matches").textContent = "";
    show(ops, false, device);
  };
  scene.onClear = () => {
    clearPressed();
    filter(null);
  };
  return filter;
}

function clearPressed() {
  const pressed = document.querySelectorAll("[data-device][aria-pressed=true]");
  for (const button of pressed) button.setAttribute("aria-pressed", "false");
}

/** A button for each device; many devices have heat maps instead. */
function fillLegend(data, filter) {
  const legend = byId("legend");
  const pick = (button) => {
    const on = button.getAttribute("aria-pressed") === "true";
    clearPressed();
    button.setAttribute("aria-pressed", String(!on));
    const device = Number(button.dataset.device);
    const homes = data.ops.homes ?? data.ops.device.map((d) => [d]);
    if (on) filter(null);
    else filter(homes.flatMap((devices, op) => (devices.includes(device) ? [op] : [])), device);
  };
  const { copies } = data.summary;
  byId("graph-about").textContent = hasMany(data) && copies > 1 ? `the first of ${copies} copies` : "";
  legend.hidden = hasMany(data);
  byId("many").hidden = !hasMany(data);
  if (hasMany(data)) {
    fillMaps(data, pick);
    return;
  }
  const button = (device, d) => {
    const attributes = { type: "button", "aria-pressed": false, "data-device": d };
    return element("button", attributes, `${badge(d)}<span>${escapeHtml(device.name)}</span>`);
  };
  legend.innerHTML = data.devices.map(button).join("");
  legend.addEventListener("click", (event) => {
    const button = event.target.closest("[data-device]");
    if (button) pick(button);
  });
}

/** A click on a stage shows its operators in the graph, one on a transfer its writer. */
function startTimeline(data, scene, filter) {
  const timeline = new TimelineView(data, ({ device, timeline: { index } }, span) => {
    clearPressed();
    if (device !== null || data.summary.step) filter(data.stages[index[span]]);
    else revealOp(scene, data.flows[index[span]][1]);
  });
  byId("timeline-about").textContent = timelineWords(data);
  timeline.root.setAttribute("aria-label", `Timeline: ${timelineWords(data)}`);
  byId("colouring").addEventListener("change", (event) => {
    timeline.colouring = event.target.value;
    timeline.draw();
  });
  const links = byId("all-links");
  links.parentElement.hidden = timeline.links <= (timeline.thin ? 0 : FEW_LINKS);
  byId("links-count").textContent = `all ${timeline.links} links`;
  links.addEventListener("change", () => {
    timeline.arrange(links.checked);
    timeline.draw();
  });
  listenButtons("time", {
    in: () => timeline.zoom(1.5),
    out: () => timeline.zoom(1 / 1.5),
    fit: () => timeline.show(0, timeline.end_s),
  });
  const memory = new MemoryView(data, timeline);
  const thick = byId("all-lanes");
  thick.parentElement.hidden = !hasMany(data);
  thick.addEventListener("change", () => {
    timeline.thin = !thick.checked;
    timeline.arrange(links.checked);
    timeline.draw();
  });
  const curves = byId("over-time");
  curves.parentElement.hidden = !memory.columns;
  curves.addEventListener("change", () => {
    memory.columns = !curves.checked;
    memory.draw();
  });
  byId("scale").addEventListener("change", (event) => {
    memory.toLimit = event.target.value === "limit";
    memory.draw();
  });
  byId("memory-about").textContent = memoryWords(data);
  memory.root.setAttribute("aria-label", `Memory: ${memoryWords(data)}`);
  timeline.onDraw = () => memory.draw();
  timeline.draw();
  return timeline;
}

function controlTheme() {
  const button = byId("theme");
  const set = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    button.onclick = () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  };
  set("auto");
}

/** On paper everything is shown, at the width of the paper. */
function controlPrint(scene, timeline) {
  const redraw = (printing) => {
    document.body.classList.toggle("printing", printing);
    scene.fit();
    timeline.draw();
  };
  addEventListener("beforeprint", () => redraw(true));
  addEventListener("afterprint", () => redraw(false));
}

addEventListener("error", (event) => {
  document.body.dataset.error = event.message;
});
globalThis.planReady = unpack(byId("payload").textContent).then(start);
planReady.catch((error) => reportError(error));
