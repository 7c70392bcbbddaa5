// The graph on the screen: draws the layout, zooms and moves it. Nodes are HTML (texts that shorten themselves), edges
// SVG. Where nodes become too small to read and are many, they are drawn as a map: one path for each colour.

const NEAR = 0.62; // from this scale on, everything can be read
const FAR = 0.3; // below it, only letters and colours
const MAP = 0.17;
const MAP_FRAME = 70; // groups at least so wide, in pixels, are framed on the map
const FULL = 1200; // up to so many nodes all are drawn, beyond it those in sight
const LEAST_HEIGHT = 240; // in pixels
const MOST_HEIGHT = 0.7; // of the window, once more is open
const ZOOMS = [0.004, 2.5];

class Scene {
  constructor(network) {
    this.network = network;
    this.root = byId("graph");
    this.view = { x: 0, y: 0, scale: 1 };
    this.moved = false; // until the reader moves it, it fits the window
    this.current = null; // the node that the keyboard is on
    this.matches = null; // Set of operators, or null for all
    this.device = null; // whose operators these are; the tensors that it sends and receives keep their colours
    this.onClear = () => {}; // the reader wants to see all again
  }

  get size() {
    return [this.root.clientWidth, this.root.clientHeight];
  }

  /** Lays out what is open now; the node `anchor` stays where it is on the screen. */
  update(anchor = null) {
    const before = anchor === null ? null : this.onScreen(anchor);
    this.#lay();
    const after = before && this.onScreen(anchor);
    if (after) {
      this.view.x += before[0] - after[0];
      this.view.y += before[1] - after[1];
      this.moved = true;
      this.keepInside();
    }
    if (this.moved) this.draw();
    else this.fit();
  }

  #lay() {
    const [width, height] = this.size;
    this.layout = layoutNetwork(this.network, width / Math.max(height, 1));
    const nodes = this.layout.nodes.flatMap((box) => box.cells ?? [box]);
    this.boxes = new Map([...this.layout.frames, ...nodes].map((box) => [box.id, box]));
    this.edgesFrom = groupBy(this.layout.edges, (edge) => edge.from);
    this.edgesTo = groupBy(this.layout.edges, (edge) => edge.to);
    if (!this.boxes.has(this.current)) this.current = this.layout.nodes[0]?.id ?? null;
    document.body.dataset.nodes = this.layout.nodes.length;
    document.body.dataset.edges = this.layout.edges.length;
  }

  /** What a tip about a node must not cover: an open group, or the strip of a cell. */
  around(id) {
    const { left, top } = this.root.getBoundingClientRect();
    const rect = ({ x, y, w, h }) => {
      const at = { left: left + this.view.x + x * this.view.scale, top: top + this.view.y + y * this.view.scale };
      return { ...at, right: at.left + w * this.view.scale, bottom: at.top + h * this.view.scale };
    };
    const strip = this.layout.nodes.find((node) => node.id === this.network.stripOf.get(id));
    return rect(strip ?? this.boxes.get(id));
  }

  onScreen(id) {
    const box = this.boxes?.get(id);
    return box && [this.view.x + box.x * this.view.scale, this.view.y + box.y * this.view.scale];
  }

  fit() {
    this.#fitView();
    this.draw();
  }

  #fitView() {
    const [width, height] = this.size;
    const margin = 18;
    const room = [(width - 2 * margin) / this.layout.width, (height - 2 * margin) / this.layout.height];
    const scale = Math.min(1.25, Math.max(ZOOMS[0], Math.min(...room)));
    this.view = { x: (width - this.layout.width * scale) / 2, y: (height - this.layout.height * scale) / 2, scale };
    this.moved = false;
  }

  /** Takes more height once more is open. */
  grow() {
    const [width, height] = this.size;
    const needed = Math.min(innerHeight * MOST_HEIGHT, (this.layout.height * (width - 36)) / this.layout.width + 48);
    if (needed > height) this.root.style.height = `${Math.ceil(needed)}px`;
  }

  /** Shows what was opened as large as it fits. */
  show(id) {
    const box = this.boxes.get(id);
    const [width, height] = this.size;
    const room = Math.min((width - 36) / box.w, (height - 36) / box.h);
    const scale = Math.min(1.25, Math.max(ZOOMS[0], room));
    const [x, y] = [width / 2 - (box.x + box.w / 2) * scale, height / 2 - (box.y + box.h / 2) * scale];
    this.view = { x, y, scale };
    this.moved = true;
    this.draw();
  }

  /** The first drawing, which takes no more height than it needs. */
  begin() {
    this.#lay();
    this.#fitView();
    const needed = this.layout.height * this.view.scale + 48;
    if (needed < this.size[1]) this.root.style.height = `${Math.max(LEAST_HEIGHT, Math.ceil(needed))}px`;
    this.fit();
  }

  zoom(factor, x = this.size[0] / 2, y = this.size[1] / 2) {
    const scale = Math.min(ZOOMS[1], Math.max(ZOOMS[0], this.view.scale * factor));
    const real = scale / this.view.scale;
    this.view = { x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real, scale };
    this.changed();
    return real !== 1;
  }

  move(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.changed();
  }

  changed() {
    this.moved = true;
    this.keepInside();
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      if (this.detail() !== this.drawn.detail || !this.covered()) this.draw();
      else this.place();
    });
  }

  /** Some of the drawing always stays in sight. */
  keepInside() {
    const [width, height] = this.size;
    const { scale } = this.view;
    this.view.x = Math.min(width - 60, Math.max(60 - this.layout.width * scale, this.view.x));
    this.view.y = Math.min(height - 60, Math.max(60 - this.layout.height * scale, this.view.y));
  }

  detail() {
    const { scale } = this.view;
    if (scale < MAP && this.layout.nodes.length > FULL / 4) return "map";
    return scale < FAR ? "far" : scale < NEAR ? "mid" : "near";
  }

  /** The part of the drawing that is in sight, with a margin around it. */
  sight(margin) {
    const [width, height] = this.size;
    const { x, y, scale } = this.view;
    return [(-x - margin) / scale, (-y - margin) / scale, (width - x + margin) / scale, (height - y + margin) / scale];
  }

  covered() {
    if (!this.drawn.sight) return true;
    const now = this.sight(0);
    return now.every((value, i) => (i < 2 ? value >= this.drawn.sight[i] : value <= this.drawn.sight[i]));
  }

  place() {
    const { x, y, scale } = this.view;
    byId("scene").style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    byId("wires").style.setProperty("--unit", `${Math.max(1, (this.drawn.detail === "map" ? 0.45 : 0.8) / scale)}px`);
  }

  draw() {
    const detail = this.detail();
    const all = this.layout.nodes.length <= FULL || detail === "map";
    this.drawn = { detail, sight: all ? null : this.sight(600) };
    const seen = (box) => {
      if (all) return true;
      const [left, top, right, bottom] = this.drawn.sight;
      return box.x <= right && box.x + (box.w ?? 0) >= left && box.y <= bottom && box.y + (box.h ?? 0) >= top;
    };
    this.root.dataset.lod = detail;
    this.root.classList.toggle("faded", this.matches !== null);
    this.kept = new Set(this.layout.edges.filter((edge) => this.touches(edge)).map((edge) => edge.from));
    this.place();
    const focused = this.root.contains(document.activeElement);
    const wide = (box) => detail !== "map" || box.w * this.view.scale > MAP_FRAME;
    const frames = this.layout.frames.filter((box) => seen(box) && wide(box));
    byId("frames").innerHTML = frames.map((box) => this.frame(box)).join("");
    const labels = detail === "near" ? this.layout.labels.map((label) => this.label(label)).join("") : "";
    const nodes = detail === "map" ? "" : this.layout.nodes.filter(seen).map((box) => this.node(box)).join("");
    byId("nodes").innerHTML = nodes + labels;
    byId("wires").innerHTML = this.wires(detail, seen);
    if (focused) this.elementOf(this.current)?.focus({ preventScroll: true });
  }

  /** Whether an edge has a border of the device that is looked at. */
  touches(edge) {
    const { cuts } = this.network.data;
    return this.device !== null && [...edge.cuts].some((i) => cuts[i][1] === this.device || cuts[i][2] === this.device);
  }

  elementOf(id) {
    return byId(`n${id}`);
  }

  /** How many operators of a node are among the matches; all if nothing is searched. */
  count(id) {
    if (this.matches === null) return this.network.opsIn[id].length;
    return this.network.opsIn[id].reduce((n, op) => n + (this.matches.has(op) ? 1 : 0), 0);
  }

  attributes(id, expanded) {
    const level = this.network.depth[id] + (this.network.isOp(id) && this.network.parent[id] !== TOP ? 2 : 1);
    return {
      id: `n${id}`,
      "data-id": id,
      role: "treeitem",
      "aria-level": level,
      "aria-label": describeNode(this.network, id),
      tabindex: id === this.current ? 0 : -1,
      ...(expanded === null ? {} : { "aria-expanded": expanded }),
    };
  }

  /** Equal groups in a row: cells in the colours of their devices, and a mark where one passes on to another device. */
  strip({ cells }) {
    const { network } = this;
    return cells.map(({ id, x, y, w, h, before, within }, i) => {
      const split = network.split(id);
      const inner = Math.min(within, round(h / split.length / 5)); // between devices that share the cell
      const line = `--wide:${before.toFixed(1)}px;--line:${inner.toFixed(1)}px`;
      const main = mainDevice(split);
      const first = !i || cells[i - 1].y !== y || mainDevice(network.split(cells[i - 1].id)) !== main;
      const parts = split.map(([device, share]) => {
        const letter = first && share * h >= 13 ? deviceLetter(device) : "";
        return element("i", { style: `flex-grow:${share.toFixed(3)};${deviceStyle(device)}` }, letter);
      });
      const cut = i > 0 && before > 0;
      const number = i % 5 && cells[i - 1]?.y === y ? "" : `<small>${escapeHtml(lastPart(network.label(id)))}</small>`;
      const hits = this.count(id);
      const state = `${cut ? " cutting" : ""}${within > 0 ? " within" : ""}${hits === 0 ? " dim" : this.matches && this.searching ? " hit" : ""}`;
      const style = `left:${round(x)}px;top:${round(y)}px;width:${w}px;height:${h}px;${line}`;
      return element("div", { class: `cell${state}`, style, ...this.attributes(id, false) }, parts.join("") + number);
    }).join("");
  }

  node({ id, x, y, w, h, cells }) {
    const { network } = this;
    if (cells) return this.strip({ cells });
    const place = `left:${round(x)}px;top:${round(y)}px;width:${w}px;height:${h}px`;
    const label = `<b>${escapeHtml(network.label(id))}</b>`;
    if (!network.isOp(id) && !network.isGroup(id)) {
      const text = `<span class="words">${label}<small>${network.end(id).input ? "input" : "output"}</small></span>`;
      const kind = `node end${this.matches ? " dim" : ""}`;
      return element("div", { class: kind, style: place, ...this.attributes(id, null) }, text);
    }
    const split = network.split(id);
    const letters = split.map(([device, share]) => {
      const style = `flex-grow:${share.toFixed(3)};${deviceStyle(device)}`;
      return element("i", { style }, share * h >= 13 ? deviceLetter(device) : "");
    });
    const count = network.opsIn[id].length;
    const what = network.isOp(id) ? shortKind(network.kind(id)) : plural(count, "op");
    const time = formatSeconds(network.totalSeconds(id));
    const text = `${label}<small><span>${escapeHtml(what)}</span><span> · ${time}</span></small>`;
    const hits = this.count(id);
    const state = hits === 0 ? " dim" : this.matches && this.searching ? " hit" : "";
    const style = `${place};--d:${deviceColour(mainDevice(split))};--tint:${tint(split)}`;
    const open = network.isGroup(id) ? false : null;
    const kind = network.groupKind(id) === "capsule" ? "group capsule" : network.isGroup(id) ? "group" : "op";
    const inside = `<span class="letters">${letters.join("")}</span><span class="words">${text}</span>`;
    return element("div", { class: `node ${kind}${state}`, style, ...this.attributes(id, open) }, inside);
  }

  frame({ id, x, y, w, h }) {
    const { network } = this;
    const place = `left:${round(x)}px;top:${round(y)}px;width:${round(w)}px;height:${round(h)}px`;
    const parts = network.split(id).map(([device, share]) => {
      return element("i", { style: `flex-grow:${share.toFixed(3)};${deviceStyle(device)}` });
    });
    const facts = `${plural(network.opsIn[id].length, "op")} · ${formatSeconds(network.totalSeconds(id))}`;
    const split = `<span class="split">${parts.join("")}</span><small>${facts}</small>`;
    const label = `<span>${escapeHtml(network.label(id))}</span>`;
    const title = element("div", { class: "title", ...this.attributes(id, true) }, label + split);
    const kind = `frame${network.depth[id] % 2 ? " odd" : ""}${this.count(id) ? "" : " dim"}`;
    return element("div", { class: kind, style: place }, title);
  }

  label({ edge, x, y }) {
    const [bytes, seconds] = cutFigures(this.network, edge);
    const style = `left:${round(x)}px;top:${round(y)}px`;
    const kept = this.touches(edge) ? " kept" : "";
    return `<div class="label${kept}" style="${style}">${formatBytes(bytes)}<br>${formatSeconds(seconds)}</div>`;
  }

  wires(detail, seen) {
    const nets = this.layout.nets.filter(seen);
    const arrows = this.layout.arrows.filter(seen);
    const path = (name, d, more = {}) => (d ? element("path", { class: name, d, ...more }) : "");
    const joined = (some) => some.map((net) => net.d).join("");
    const cuts = [...groupBy(nets.filter((net) => net.cut), (net) => `${net.wide} ${this.kept.has(net.net)}`)];
    const cutPaths = cuts.map(([, some]) => {
      const state = this.kept.has(some[0].net) ? " kept" : "";
      return path(`cut${state}`, joined(some), { style: `--wide:${some[0].wide.toFixed(1)}` });
    });
    const heads = (kind, wanted) => path(kind, arrows.filter(wanted).map(arrowHead).join(""));
    const all = [
      heads("tip", (arrow) => !arrow.cut),
      heads("tip cut", (arrow) => arrow.cut && !this.kept.has(arrow.net)),
      heads("tip cut kept", (arrow) => arrow.cut && this.kept.has(arrow.net)),
    ].join("");
    const tips = detail === "near" || detail === "mid" ? all : "";
    const touch = nets.map((net) => path("touch", net.d, { "data-net": net.net }));
    const [map, touches] = detail === "map" ? [mapShapes(this, this.layout.nodes), ""] : ["", touch.join("")];
    const wires = path("wire", joined(nets.filter((net) => !net.cut)));
    return `${wires}${cutPaths.join("")}<g id="lit"></g>${tips}${map}${touches}`;
  }

  /** Lights up nets up; none with an empty list. */
  light(nets) {
    const lit = byId("lit");
    if (!lit) return;
    const wanted = new Set(nets);
    const ways = wanted.size ? this.layout.nets.filter((net) => wanted.has(net.net)) : [];
    lit.innerHTML = ways.length ? element("path", { class: "lit", d: ways.map((net) => net.d).join("") }) : "";
  }

  /** The node at a point of the window; for the map, which has no elements. */
  nodeAt(clientX, clientY) {
    const frame = this.root.getBoundingClientRect();
    const x = (clientX - frame.left - this.view.x) / this.view.scale;
    const y = (clientY - frame.top - this.view.y) / this.view.scale;
    const boxes = this.layout.nodes.flatMap((node) => node.cells ?? [node]);
    return boxes.find((n) => x >= n.x && x <= n.x + n.w && y >= n.y && y <= n.y + n.h)?.id ?? null;
  }

  /** Puts the keyboard on a node and brings it into sight. */
  focus(id) {
    const box = this.boxes.get(id);
    if (!box) return;
    const [width, height] = this.size;
    this.current = id;
    if (this.view.scale < NEAR) this.view.scale = 0.9;
    const { scale } = this.view;
    const inside = (low, size, room) => low >= 40 && low + size <= room - 40;
    const [w, h] = [box.w * scale, Math.min(box.h, 60) * scale];
    const centred = (middle, whole, room) => {
      const slack = room - whole * scale;
      return Math.min(Math.max(18, slack / 2), Math.max(Math.min(slack - 18, slack / 2), room / 2 - middle * scale));
    };
    if (!inside(this.view.x + box.x * scale, w, width)) this.view.x = centred(box.x + box.w / 2, this.layout.width, width);
    if (!inside(this.view.y + box.y * scale, h, height)) this.view.y = centred(box.y + 20, this.layout.height, height);
    this.moved = true;
    this.draw();
    this.elementOf(id)?.focus({ preventScroll: true });
  }
}

function groupBy(list, key) {
  const groups = new Map();
  for (const entry of list) {
    const own = key(entry);
    const group = groups.get(own);
    if (group) group.push(entry);
    else groups.set(own, [entry]);
  }
  return groups;
}

/** A background in the pale colours of its devices, side by side in proportion. */
function tint(split) {
  const pale = (device) => `color-mix(in srgb, ${deviceColour(device)} 17%, var(--surface))`;
  if (split.length === 1) return pale(split[0][0]);
  let at = 0;
  const stops = split.map(([device, share]) => {
    const from = at;
    at += share * 100;
    return `${pale(device)} ${from.toFixed(1)}% ${at.toFixed(1)}%`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** The nodes as one path for each colour. */
function mapShapes(scene, nodes) {
  const shapes = new Map();
  for (const { id, x, y, w, h } of nodes.flatMap((node) => node.cells ?? [node])) {
    let left = x;
    for (const [device, share] of scene.network.split(id)) {
      const key = `${device} ${scene.count(id) > 0}`;
      if (!shapes.has(key)) shapes.set(key, []);
      shapes.get(key).push(`M${round(left)} ${round(y)}h${round(w * share)}v${round(h)}h${-round(w * share)}z`);
      left += w * share;
    }
  }
  const style = (key) => {
    const [device, match] = key.split(" ");
    return `fill:${deviceColour(Number(device))};opacity:${match === "true" ? 1 : 0.2}`;
  };
  return [...shapes].map(([key, parts]) => element("path", { style: style(key), d: parts.join("") })).join("");
}
