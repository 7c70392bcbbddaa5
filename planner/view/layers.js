// One level of the graph in layers, left to right (Sugiyama, Tagawa, Toda 1981): layers by longest path, orders by
// barycentres, heights by isotonic regression, and, where the result is wider than the screen, cut into rows like text.
//
//   items ──assignLayers──► layer of each ──addCells──► cells and steps ──orderCells──► ──placeCells──► x, y
//
// An item is {id, w, h, order, port?, inY(net), outY(net)}; port is "in" or "out" for a passage through the border.
// A link is {from, to, net, cut, label} between items. All links of a net leave the same writer and share their way.
// A cell is an item or a bend of a net in a layer that it only passes. A step joins cells of neighbouring layers.

const SWEEPS = 8;
const NODE_GAP = 14;
const BEND_GAP = 9;
const LAYER_GAP = 30;
const LABEL_GAP = 90;

/** Returns {layers, steps}: layers of placed cells with x and width, steps between them. */
function layered(items, links) {
  const layerOf = assignLayers(items, links);
  const { layers, steps } = addCells(items, links, layerOf);
  orderCells(layers, steps);
  placeColumns(layers, steps);
  placeCells(layers);
  return { layers, steps };
}

/** Edges run from the smaller order to the larger one, whatever the link says: groups may depend on each other. */
function assignLayers(items, links) {
  const layer = new Map();
  const before = new Map(items.map((item) => [item, []]));
  const after = new Map(items.map((item) => [item, []]));
  for (const link of links) {
    link.back = link.from.order > link.to.order;
    const [a, b] = link.back ? [link.to, link.from] : [link.from, link.to];
    before.get(b).push(a);
    after.get(a).push(b);
  }
  const inner = items.filter((item) => !item.port).sort((a, b) => a.order - b.order);
  const first = items.some((item) => item.port === "in") ? 1 : 0;
  for (const item of inner) {
    layer.set(item, before.get(item).reduce((l, a) => (a.port ? l : Math.max(l, layer.get(a) + 1)), first));
  }
  for (const item of inner.reverse()) {
    // What has more readers than writers saves edge length by waiting for the earliest reader.
    const readers = after.get(item).filter((b) => !b.port);
    const latest = Math.min(...readers.map((b) => layer.get(b) - 1));
    if (readers.length === after.get(item).length && readers.length > before.get(item).length) layer.set(item, latest);
  }
  const last = Math.max(0, ...layer.values());
  for (const item of items) if (item.port) layer.set(item, item.port === "in" ? 0 : last + 1);
  return layer;
}

/** Cells by layer, with a bend for each layer that a net passes, and the steps between them. */
function addCells(items, links, layerOf) {
  const layers = [];
  const add = (cell) => {
    while (layers.length <= cell.layer) layers.push({ cells: [] });
    layers[cell.layer].cells.push(cell);
    return cell;
  };
  const cellOf = new Map();
  for (const item of [...items].sort((a, b) => a.order - b.order)) {
    const { w, h } = item;
    cellOf.set(item, add({ item, w, h, layer: layerOf.get(item), key: item.order, ins: [], outs: [] }));
  }
  const steps = new Map();
  const step = (a, b, link) => {
    const key = `${a.number} ${b.number} ${link.net}`;
    if (!steps.has(key)) {
      const made = { a, b, net: link.net, cut: false, label: null, arrow: false, back: link.back };
      steps.set(key, made);
      a.outs.push(made);
      b.ins.push(made);
    }
    const found = steps.get(key);
    found.cut ||= link.cut;
    return found;
  };
  let number = 0;
  for (const cell of cellOf.values()) cell.number = number++;
  const bends = new Map();
  const bend = (start, net, layer, back) => {
    const key = `${start.number} ${net} ${layer} ${back}`;
    if (!bends.has(key)) {
      const cell = { item: null, w: 0, h: 0, layer, key: start.key, ins: [], outs: [], number: number++ };
      bends.set(key, add(cell));
    }
    return bends.get(key);
  };
  for (const link of links) {
    const [a, b] = link.back ? [link.to, link.from] : [link.from, link.to];
    let at = cellOf.get(a);
    const way = [];
    const goal = cellOf.get(b);
    for (let layer = at.layer + 1; layer < goal.layer; layer += 1) {
      const next = bend(cellOf.get(a), link.net, layer, link.back ? link.to.id : "");
      way.push(step(at, next, link));
      at = next;
    }
    way.push(step(at, goal, link));
    const last = link.back ? way[0] : way.at(-1); // the one that touches the reader
    last.arrow ||= Boolean(link.arrow);
    last.label ??= link.label ?? null;
  }
  return { layers, steps: [...steps.values()] };
}

/** Orders each layer by the mean position of its neighbours, to and fro; keeps the order with the fewest crossings. */
function orderCells(layers, steps) {
  const number = (layer) => layer.cells.forEach((cell, i) => (cell.pos = i));
  for (const layer of layers) {
    layer.cells.sort((a, b) => a.key - b.key);
    number(layer);
  }
  let best = Infinity;
  let kept = [];
  for (let sweep = 0; sweep <= SWEEPS && best > 0; sweep += 1) {
    if (sweep > 0) {
      const forward = sweep % 2 === 1;
      for (const layer of forward ? layers : [...layers].reverse()) {
        for (const cell of layer.cells) {
          const near = forward ? cell.ins.map((s) => s.a.pos) : cell.outs.map((s) => s.b.pos);
          cell.bary = near.length ? near.reduce((a, b) => a + b, 0) / near.length : cell.pos;
        }
        layer.cells.sort((a, b) => a.bary - b.bary || a.pos - b.pos);
        number(layer);
      }
    }
    const crossings = layers.reduce((sum, layer) => sum + countCrossings(layer), 0);
    if (crossings < best) {
      best = crossings;
      kept = layers.map((layer) => [...layer.cells]);
    }
  }
  layers.forEach((layer, i) => {
    layer.cells = kept[i];
    number(layer);
  });
}

/** Pairs of steps out of a layer that cross (Barth, Jünger, Mutzel 2002: inversions, counted with a Fenwick tree). */
function countCrossings(layer) {
  const ends = layer.cells.flatMap((cell) => cell.outs.map((s) => s.b.pos).sort((a, b) => a - b));
  const size = ends.reduce((a, b) => Math.max(a, b), 0) + 1;
  const tree = new Int32Array(size + 1);
  let crossings = 0;
  ends.forEach((end, seen) => {
    let notAbove = 0;
    for (let i = end + 1; i > 0; i -= i & -i) notAbove += tree[i];
    crossings += seen - notAbove;
    for (let i = end + 1; i <= size; i += i & -i) tree[i] += 1;
  });
  return crossings;
}

/** x and width of each layer; gaps grow with what has to turn in them, and with labels. */
function placeColumns(layers, steps) {
  const turns = new Array(layers.length).fill(0);
  const labelled = new Array(layers.length).fill(false);
  for (const step of steps) {
    turns[step.a.layer] += 1;
    labelled[step.a.layer] ||= Boolean(step.label);
  }
  let x = 0;
  layers.forEach((layer, i) => {
    layer.x = x;
    layer.w = layer.cells.reduce((w, cell) => Math.max(w, cell.w), 0);
    const gap = Math.max(LAYER_GAP + Math.min(60, 3 * Math.max(0, turns[i] - 2)), labelled[i] ? LABEL_GAP : 0);
    x += layer.w + (i + 1 < layers.length ? gap : 0);
  });
}

/** Where a step touches its cells, from the top of the cell. */
function leaves(step) {
  return step.a.item ? (step.back ? step.a.item.inY : step.a.item.outY)(step.net, step) : 0;
}

function enters(step) {
  return step.b.item ? (step.back ? step.b.item.outY : step.b.item.inY)(step.net, step) : 0;
}

/** How much lower the end of a step should start than its beginning; folded groups align by their middles. */
function drop(step) {
  if (step.a.item?.folded || step.b.item?.folded) return (step.a.h - step.b.h) / 2;
  return leaves(step) - enters(step);
}

/** How much a step wants to be level: long edges most, then steps from item to item. */
function stiffness(step) {
  if (!step.a.item && !step.b.item) return 8;
  return step.a.item && step.b.item ? 3 : 1;
}

/** y of each cell: as level with its neighbours as the order allows. Steps between rows do not count. */
function placeCells(layers) {
  for (const layer of layers) {
    let y = 0;
    layer.cells.forEach((cell, i) => {
      cell.y = y;
      y += cell.h + (i + 1 < layer.cells.length ? cellGap(cell, layer.cells[i + 1]) : 0);
    });
    layer.cells.forEach((cell) => (cell.y -= y / 2));
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forward = sweep % 2 === 0;
    const both = sweep >= SWEEPS - 2;
    for (const layer of forward ? layers : [...layers].reverse()) {
      settle(layer.cells, both || forward, both || !forward);
    }
  }
}

function cellGap(above, below) {
  return above.item && below.item ? NODE_GAP : BEND_GAP;
}

/**
 * The heights in a fixed order with the least squares from where each cell would like to be: isotonic regression by
 * pooling adjacent violators (Barlow, Bartholomew, Bremner, Brunk 1972).
 */
function settle(cells, left, right) {
  const blocks = [];
  let offset = 0;
  cells.forEach((cell, i) => {
    let weight = 0;
    let sum = 0;
    const pull = (y, w) => {
      weight += w;
      sum += w * y;
    };
    for (const s of left ? cell.ins : []) if (!s.wraps) pull(s.a.y + drop(s), stiffness(s));
    for (const s of right ? cell.outs : []) if (!s.wraps) pull(s.b.y - drop(s), stiffness(s));
    if (!weight) pull(cell.y, 0.01);
    let block = { weight, sum: sum - offset * weight, cells: [{ cell, offset }] };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight > block.sum / block.weight) {
      const above = blocks.pop();
      above.weight += block.weight;
      above.sum += block.sum;
      for (const entry of block.cells) above.cells.push(entry);
      block = above;
    }
    blocks.push(block);
    if (i + 1 < cells.length) offset += cell.h + cellGap(cell, cells[i + 1]);
  });
  for (const block of blocks) {
    for (const entry of block.cells) entry.cell.y = block.sum / block.weight + entry.offset;
  }
}
