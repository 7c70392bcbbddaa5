// Cuts a level that is wider than the screen into rows, read like text, and draws its steps.
//
//   ┌─►[a]──►[b]──►[c]──┐        steps to the next row leave to the right, run back between the rows
//   ┌───────────────────┘        and come in from the left; those that start higher turn further out,
//   └─►[d]──►[e]──►[f]           so that they do not cross
//
// The result: cells with x and y, steps with curves or corners, the size of it all.

const ROW_MIN = 620; // no row of the whole is shorter by intent
const INNER_ROW_MIN = 1000; // nor one of an open group
const ROW_GAIN = 0.85; // one more row must make the drawing this much smaller
const TRACK = 8; // between parallel lines
const ROW_GAP = 26;
const LABELLED_GAP = 44; // with room for what a cut sends

/**
 * Returns {width, height, rows}; every cell gets x, every step its curve or its corners.
 * The room is {aspect, padding, least, rowMin}: width / height that fits best, the distance of the border at which the
 * passages are, the least width, and that of a row.
 */
function arrangeRows(level, room) {
  const { layers, steps } = level;
  if (!layers.length) return { width: room.least, height: 0, rows: 0 };
  const rows = chooseRows(layers, steps, room);
  const rowOf = rows.flatMap(([from, to], r) => new Array(to - from).fill(r));
  for (const step of steps) step.wraps = rowOf[step.a.layer] !== rowOf[step.b.layer];
  if (rows.length > 1) placeCells(layers);

  const channels = rows.map(() => []);
  for (const track of tracksOf(steps)) channels[rowOf[track[0].a.layer]].push(track);
  const margin = rows.length > 1 ? Math.max(...channels.map((tracks) => tracks.length)) * TRACK + 14 : 0;
  const gaps = channels.map((tracks) => (tracks.flat().some((step) => step.label) ? LABELLED_GAP : ROW_GAP));
  const channelTop = [];
  let top = 0;
  let width = room.least;
  rows.forEach(([from, to], r) => {
    const inRow = layers.slice(from, to);
    const start = inRow[0].x;
    const [low, high] = extent(inRow);
    for (const layer of inRow) {
      layer.x += margin - start;
      for (const cell of layer.cells) {
        cell.y += top - low;
        cell.x = layer.x + (layer.w - cell.w) / 2;
      }
    }
    width = Math.max(width, inRow.at(-1).x + inRow.at(-1).w + margin);
    channelTop.push(top + high - low);
    top += high - low + (r + 1 < rows.length ? channels[r].length * TRACK + gaps[r] : 0);
  });
  for (const cell of layers.flatMap((layer) => layer.cells)) {
    if (cell.item?.port) cell.x = cell.item.port === "in" ? -room.padding : width + room.padding;
  }
  for (const step of steps) if (!step.wraps) step.curve = straight(step, layers);
  channels.forEach((tracks, r) => drawTracks(tracks, layers, channelTop[r] + gaps[r] / 2, rows[r], margin));
  return { width, height: top, rows: rows.length };
}

function extent(layers) {
  const cells = layers.flatMap((layer) => layer.cells);
  const low = cells.reduce((y, cell) => Math.min(y, cell.y), Infinity);
  return [low, cells.reduce((y, cell) => Math.max(y, cell.y + cell.h), -Infinity)];
}

/** [[from, to], ...]: the number of rows with which the drawing is shown largest. */
function chooseRows(layers, steps, { aspect, rowMin }) {
  const total = layers.at(-1).x + layers.at(-1).w;
  const crossing = new Array(layers.length).fill(0); // nets between a layer and the next one
  for (const track of tracksOf(steps, true)) crossing[track[0].a.layer] += 1;
  const size = (rows) => {
    const widths = rows.map(([from, to]) => layers[to - 1].x + layers[to - 1].w - layers[from].x);
    const heights = rows.map(([from, to]) => extent(layers.slice(from, to))).map(([low, high]) => high - low);
    const between = rows.slice(0, -1).reduce((sum, [, to]) => sum + ROW_GAP + TRACK * crossing[to - 1], 0);
    return Math.max(Math.max(...widths) / aspect, heights.reduce((a, b) => a + b, 0) + between);
  };
  let best = [[0, layers.length]];
  let bestSize = size(best);
  for (let count = 2; count <= Math.min(40, total / rowMin); count += 1) {
    const rows = balancedRows(layers, crossing, count);
    const found = size(rows);
    if (found < bestSize * ROW_GAIN || (best.length > 1 && found < bestSize)) [best, bestSize] = [rows, found];
  }
  return best;
}

/** At most so many rows, the longest as short as possible, then broken where fewer nets pass if that makes no more. */
function balancedRows(layers, crossing, count) {
  let [low, high] = [0, layers.at(-1).x + layers.at(-1).w];
  for (let i = 0; i < 20; i += 1) {
    const middle = (low + high) / 2;
    if (breakRows(layers, crossing, middle, 1).length <= count) high = middle;
    else low = middle;
  }
  const plain = breakRows(layers, crossing, high, 1);
  const clean = breakRows(layers, crossing, high * 1.03, 0.7);
  return clean.length <= plain.length ? clean : plain;
}

/** Rows up to this length, each broken in its last part (from `least` of the length on) where the fewest nets pass. */
function breakRows(layers, crossing, length, least) {
  const rows = [];
  let from = 0;
  while (from < layers.length) {
    const end = (to) => layers[to - 1].x + layers[to - 1].w - layers[from].x;
    let to = from + 1;
    while (to < layers.length && (end(to + 1) <= length || layers[to].w === 0 || end(to) === 0)) to += 1;
    if (to < layers.length) {
      let chosen = to;
      for (let t = to - 1; t > from && end(t) >= least * length; t -= 1) {
        if (crossing[t - 1] < crossing[chosen - 1] && layers[t - 1].w > 0) chosen = t;
      }
      to = chosen;
    }
    rows.push([from, to]);
    from = to;
  }
  return rows;
}

/** Steps that wrap (or all of them), grouped where they leave the same cell with the same net; highest first. */
function tracksOf(steps, all = false) {
  const tracks = new Map();
  for (const step of steps) {
    if (!all && !step.wraps) continue;
    const key = `${step.a.number} ${step.net}`;
    if (!tracks.has(key)) tracks.set(key, []);
    tracks.get(key).push(step);
  }
  return [...tracks.values()].sort((s, t) => s[0].a.y + leaves(s[0]) - t[0].a.y - leaves(t[0]));
}

/** Where a step touches its cells: items at their sides, bends at the borders of their layers. */
function startOf(step, layers) {
  return step.a.item ? step.a.x + step.a.w : layers[step.a.layer].x;
}

function endOf(step, layers) {
  return step.b.item ? step.b.x : layers[step.b.layer].x;
}

/** {x0, y0, xa, xb, x1, y1}: level from x0 to xa, a curve in the gap from xa to xb, level to x1. */
function straight(step, layers) {
  const x0 = startOf(step, layers);
  const from = layers[step.a.layer];
  const [y0, y1] = [step.a.y + leaves(step), step.b.y + enters(step)];
  return { x0, y0, xa: Math.max(x0, from.x + from.w), xb: layers[step.b.layer].x, x1: endOf(step, layers), y1 };
}

function drawTracks(tracks, layers, top, [, to], margin) {
  const right = layers[to - 1].x + layers[to - 1].w;
  tracks.forEach((track, k) => {
    const outward = tracks.length - 1 - k;
    const xr = right + 10 + outward * TRACK;
    const y = top + outward * TRACK;
    const xl = margin - 10 - k * TRACK;
    for (const step of track) {
      const [x0, y0] = [startOf(step, layers), step.a.y + leaves(step)];
      const [x1, y1] = [endOf(step, layers), step.b.y + enters(step)];
      step.corners = [[x0, y0], [xr, y0], [xr, y], [xl, y], [xl, y1], [x1, y1]];
    }
  });
}
