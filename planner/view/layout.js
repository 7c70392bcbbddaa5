// The whole graph: every open group is laid out by itself and then a large node of the level around it.
//
//   ┌ block ──────────────┐      An edge from a to c is three links: a to a passage in the border of `block`,
//   │  [a]──┐             │      `block` to `d` (both large nodes), and a passage of `d` to c. What leaves one node
//   │       ├──►[b]──►    ○────  is one net and passes a border once, however many readers it has.
//   │       └──────────── ○──┐
//   └─────────────────────┘  └──►

const SIZES = { op: [150, 40], group: [164, 46], end: [104, 34] }; // the least
const WIDER = [0, 24, 48, 72, 96]; // of what takes time; the last step is that of the longest
const CELL = { w: 22, h: 34, row: 968, gap: 18, least: 0.6, most: 2 }; // of a strip; sizes by time, 1 is the mean
const PADDING = 14;
const TITLE = 28;
const INNER_ASPECT = 3; // of open groups; the whole takes that of the window
const MOST_LABELS = 40;

/**
 * Returns {width, height, nodes, frames, nets, arrows, labels}, all in one system of coordinates.
 * nodes and frames: {id, x, y, w, h}, of strips with their cells, each with the width of the cuts before and within it; nets: {net, cut, wide, d, x, y, w, h}; arrows: {net, x, y, back, cut};
 * labels: {edge, x, y}.
 */
function layoutNetwork(network, aspect) {
  const edges = network.edges();
  const longest = longestNode(network);
  const levels = routeEdges(network, edges, labelledEdges(edges));
  const build = (group) => {
    const links = levels.get(group) ?? new Map();
    const items = network.members(group).map((id) => itemFor(network, id, build, longest));
    const level = { items, ...connect(network, items, links) };
    const whole = { aspect, padding: 0, least: 0, rowMin: ROW_MIN };
    const inner = { aspect: INNER_ASPECT, padding: PADDING, least: 120, rowMin: INNER_ROW_MIN };
    Object.assign(level, arrangeRows(level, group === TOP ? whole : inner));
    return level;
  };
  const root = build(TOP);
  const drawing = { edges, width: root.width, height: root.height, nodes: [], frames: [], arrows: [], labels: [] };
  drawing.paths = new Map();
  flatten(root, 0, 0, drawing);
  const sent = cutBytes(network, edges);
  const most = Math.max(1, ...sent.values(), ...network.cutBefore.values(), ...network.cutWithin.values());
  for (const cell of drawing.nodes.flatMap(({ cells }) => cells ?? [])) {
    cell.before = cutWidth(network.cutBefore.get(cell.id), most);
    cell.within = cutWidth(network.cutWithin.get(cell.id), most);
  }
  drawing.nets = [...drawing.paths.values()].map(({ parts, ...net }) => {
    return { ...net, wide: net.cut ? cutWidth(sent.get(net.net), most) : 0, d: parts.join("") };
  });
  drawing.labels = roomyLabels(drawing);
  return drawing;
}

/** The head of an arrow, as a path. */
function arrowHead({ x, y, back, cut }) {
  return `M${round(x)} ${round(y)}l${back ? 7 : -7} -${cut ? 4.5 : 3.5}v${cut ? 9 : 7}z`;
}

/** How thick a cut is drawn: the more bytes, the thicker, in a few steps; 0 without one. */
function cutWidth(bytes, most) {
  return bytes === undefined ? 0 : 2.6 + 0.8 * Math.round(3 * Math.sqrt(bytes / most));
}

/** What each net sends between devices, as far as one reader of it has it. */
function cutBytes(network, edges) {
  const bytes = new Map();
  for (const edge of edges) {
    if (edge.cuts.size) bytes.set(edge.from, Math.max(bytes.get(edge.from) ?? 0, cutFigures(network, edge)[0]));
  }
  return bytes;
}

/** [bytes, seconds] of all that an edge sends between devices. */
function cutFigures({ data }, edge) {
  const cuts = [...edge.cuts].map((i) => data.cuts[i]);
  return [cuts.reduce((sum, cut) => sum + data.flows[cut[0]][3], 0), cuts.reduce((sum, cut) => sum + cut[3], 0)];
}

/** Cuts to be labelled: each set of transfers once, and none at all where there would be too many. */
function labelledEdges(edges) {
  const labelled = new Map();
  for (const edge of edges) {
    const key = `${edge.from} ${[...edge.cuts].join(" ")}`;
    if (edge.cuts.size && !labelled.has(key)) labelled.set(key, edge);
  }
  return new Set(labelled.size <= MOST_LABELS ? labelled.values() : []);
}

/** Group -> its links by key; "in" and "out" stand for the passages through its border. */
function routeEdges(network, edges, labelled) {
  const levels = new Map();
  const levelDepth = (id) => (network.parent[id] === TOP ? 0 : network.depth[network.parent[id]] + 1);
  for (const edge of edges) {
    const link = (level, from, to) => {
      if (!levels.has(level)) levels.set(level, new Map());
      const key = `${from} ${to} ${edge.from}`;
      if (!levels.get(level).has(key)) levels.get(level).set(key, { from, to, net: edge.from, cut: false });
      const found = levels.get(level).get(key);
      found.cut ||= edge.cuts.size > 0;
      if (to === edge.to) {
        found.arrow = true;
        if (labelled.has(edge)) found.label = edge;
      }
    };
    let [a, b] = [edge.from, edge.to];
    while (network.parent[a] !== network.parent[b]) {
      if (levelDepth(a) >= levelDepth(b)) {
        link(network.parent[a], a, "out");
        a = network.parent[a];
      } else {
        link(network.parent[b], "in", b);
        b = network.parent[b];
      }
    }
    link(network.parent[a], a, b);
  }
  return levels;
}

/** Seconds of the node that takes longest, strips apart. */
function longestNode(network) {
  let longest = 0;
  const visit = (id) => {
    if (network.open.has(id)) network.members(id).forEach(visit);
    else if (!network.strips.has(id)) longest = Math.max(longest, network.totalSeconds(id));
  };
  network.children.get(TOP).forEach(visit);
  return longest;
}

/** [width, height] of a node; it is the wider the longer it takes. */
function sizeOf(network, id, longest) {
  const [w, h] = SIZES[network.isOp(id) ? "op" : network.isGroup(id) ? "group" : "end"];
  if (!network.isOp(id) && !network.isGroup(id)) return [w, h];
  const share = longest > 0 ? network.totalSeconds(id) / longest : 0;
  return [w + WIDER[Math.round(share * (WIDER.length - 1))], h];
}

/** {w, h, cells: [{id, x, y, w, h}, ...]} of a strip, in rows if it is long. */
function stripShape(network, strip) {
  const seconds = strip.map((id) => network.totalSeconds(id));
  const mean = seconds.reduce((a, b) => a + b, 0) / strip.length;
  const wide = seconds.map((s) => round(CELL.w * (mean > 0 ? Math.min(CELL.most, Math.max(CELL.least, s / mean)) : 1)));
  const all = wide.reduce((a, b) => a + b, 0);
  const row = all / Math.ceil(all / CELL.row); // rows of about one length
  const cells = [];
  let [x, y] = [0, CELL.gap];
  let w = 0;
  strip.forEach((id, i) => {
    if (x + wide[i] / 2 > row) [x, y] = [0, y + CELL.h + CELL.gap];
    cells.push({ id, x, y, w: wide[i], h: CELL.h });
    x += wide[i];
    w = Math.max(w, x);
  });
  return { w, h: y + CELL.h, cells };
}

function itemFor(network, id, build, longest) {
  const order = network.order[id];
  if (network.open.has(id)) {
    const inner = build(id);
    const below = PADDING / 2 + TITLE;
    return {
      id,
      order,
      inner,
      folded: inner.rows > 1,
      w: inner.width + 2 * PADDING,
      h: inner.height + PADDING * 1.5 + TITLE,
      inY: (net) => inner.entry.get(net).y + below,
      outY: (net) => inner.exit.get(net).y + below,
    };
  }
  if (network.strips.has(id)) {
    const { w, h, cells } = stripShape(network, network.strips.get(id));
    const middle = CELL.gap + CELL.h / 2;
    return { id, order, w, h, cells, inY: () => middle, outY: () => h - CELL.h / 2 };
  }
  const [w, h] = sizeOf(network, id, longest);
  return { id, order, w, h, inY: () => h / 2, outY: () => h / 2 };
}

/** Layers of a level with its passages; entry and exit are the passages' cells by net. */
function connect(network, items, links) {
  const itemOf = new Map(items.map((item) => [item.id, item]));
  const ports = new Map();
  const port = (side, net) => {
    const key = `${side} ${net}`;
    if (!ports.has(key)) {
      const order = side === "in" ? -Infinity : Infinity;
      ports.set(key, { port: side, net, order, w: 0, h: 0, inY: () => 0, outY: () => 0 });
    }
    return ports.get(key);
  };
  const ends = [...links.values()].map((link) => ({
    ...link,
    from: link.from === "in" ? port("in", link.net) : itemOf.get(link.from),
    to: link.to === "out" ? port("out", link.net) : itemOf.get(link.to),
  }));
  const level = layered([...items, ...ports.values()], ends);
  const cells = level.layers.flatMap((layer) => layer.cells).filter((cell) => cell.item?.port);
  const byNet = (side) => new Map(cells.filter((c) => c.item.port === side).map((c) => [c.item.net, c]));
  return { ...level, entry: byNet("in"), exit: byNet("out") };
}

/** Adds a level to the drawing, its upper left corner at (dx, dy). */
function flatten(level, dx, dy, drawing) {
  for (const cell of level.layers.flatMap((layer) => layer.cells)) {
    if (!cell.item || cell.item.port) continue;
    const box = { id: cell.item.id, x: dx + cell.x, y: dy + cell.y, w: cell.w, h: cell.h };
    if (cell.item.inner) {
      drawing.frames.push(box);
      flatten(cell.item.inner, box.x + PADDING, box.y + PADDING / 2 + TITLE, drawing);
    } else {
      const place = (inner) => ({ ...inner, x: box.x + inner.x, y: box.y + inner.y });
      drawing.nodes.push(cell.item.cells ? { ...box, cells: cell.item.cells.map(place) } : box);
    }
  }
  for (const step of level.steps) {
    const key = `${step.net} ${step.cut}`;
    const [start, end, places] = step.wraps ? cornerMarks(step.corners) : curveMarks(step.curve);
    if (!drawing.paths.has(key)) {
      const place = { x: dx + start[0], y: dy + start[1], w: 0, h: 0 };
      drawing.paths.set(key, { net: step.net, cut: step.cut, parts: [], ...place });
    }
    const path = drawing.paths.get(key);
    path.parts.push(step.wraps ? cornerPath(step.corners, dx, dy) : curvePath(step.curve, dx, dy));
    for (const [x, y] of step.wraps ? step.corners : [start, end]) include(path, dx + x, dy + y);
    if (step.arrow) {
      const [x, y] = step.back ? start : end;
      drawing.arrows.push({ net: step.net, x: dx + x, y: dy + y, back: step.back, cut: step.cut });
    }
    if (step.label) drawing.labels.push({ edge: step.label, places: places.map(([x, y]) => [dx + x - 4, dy + y]) });
  }
}

/** Makes a box large enough for a point. */
function include(box, x, y) {
  const [left, top] = [Math.min(box.x, x), Math.min(box.y, y)];
  const [right, bottom] = [Math.max(box.x + box.w, x), Math.max(box.y + box.h, y)];
  Object.assign(box, { x: left, y: top, w: right - left, h: bottom - top });
}

/** [start, end, places for a label] of a step: where it has most room first. */
function curveMarks({ x0, y0, xa, xb, x1, y1 }) {
  const at = (share) => [xa + share * (xb - xa), y0 + share * (y1 - y0)];
  return [[x0, y0], [x1, y1], [0.5, 0.35, 0.65, 0.2, 0.8].map(at)];
}

function cornerMarks(corners) {
  const [right, left] = [corners[2], corners[3]];
  const at = (share) => [right[0] + share * (left[0] - right[0]), right[1]];
  return [corners[0], corners.at(-1), [0.5, 0.3, 0.7, 0.1, 0.9].map(at)];
}

function round(value) {
  return Math.round(value * 10) / 10;
}

function curvePath({ x0, y0, xa, xb, x1, y1 }, dx, dy) {
  const middle = round(dx + (xa + xb) / 2);
  const [ya, yb] = [round(dy + y0), round(dy + y1)];
  if (ya === yb) return `M${round(dx + x0)} ${ya}H${round(dx + x1)}`;
  const curve = `C${middle} ${ya} ${middle} ${yb} ${round(dx + xb)} ${yb}`;
  return `M${round(dx + x0)} ${ya}H${round(dx + xa)}${curve}H${round(dx + x1)}`;
}

/** A line with rounded corners. */
function cornerPath(corners, dx, dy) {
  const at = corners.map(([x, y]) => [dx + x, dy + y]);
  let d = `M${round(at[0][0])} ${round(at[0][1])}`;
  for (let i = 1; i + 1 < at.length; i += 1) {
    const [before, corner, after] = [at[i - 1], at[i], at[i + 1]];
    const toward = (other) => {
      const length = Math.hypot(other[0] - corner[0], other[1] - corner[1]);
      const share = length ? Math.min(7, length / 2) / length : 0;
      return corner.map((c, axis) => round(c + share * (other[axis] - c)));
    };
    d += `L${toward(before).join(" ")}Q${corner.map(round).join(" ")} ${toward(after).join(" ")}`;
  }
  return `${d}L${at.at(-1).map(round).join(" ")}`;
}

/** The labels at the first of their places that covers no node and no other label; those without one are left out. */
function roomyLabels({ labels, nodes }) {
  const [halfWidth, halfHeight] = [31, 14];
  const kept = [];
  const apart = (n, x, y) =>
    n.x > x + halfWidth || n.x + n.w < x - halfWidth || n.y > y + halfHeight || n.y + n.h < y - halfHeight;
  const free = ([x, y]) =>
    kept.every((l) => Math.abs(l.x - x) > 2 * halfWidth || Math.abs(l.y - y) > 2 * halfHeight) &&
    nodes.every((n) => apart(n, x, y));
  for (const { edge, places } of labels) {
    const place = places.find(free);
    if (place) kept.push({ edge, x: place[0], y: place[1] });
  }
  return kept;
}
