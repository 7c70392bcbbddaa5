// The graph as the text of one SVG file, for documents: what is open, as the page lays it out. Light, with its legend.
//
//   GoogLeNet on 2 devices of desk
//   [A] cpu0, 74 operators, 12.1 ms  [B] cpu1, 68 operators, 11.9 ms
//   ┌──┬────────┐    ┌──┬────────┐
//   │A │ conv1  ├───►│A │ pool1  ├──━━ a tensor that goes to another device
//   └──┴────────┘    └──┴────────┘
//
// It uses nothing of a browser, so that Python can run it too.

const PICTURE = {
  margin: 24,
  ink: "#1a1e24",
  quiet: "#5b6572",
  frame: "#f6f7f9",
  line: "#cdd3da",
  wire: "#98a2af",
  cut: "#15181d",
  row: 20, // heights of a line of the title, of one of the legend, and of what is below it
  legend: 26,
  below: 14,
  least: 520, // width of the whole
};
const PICTURE_STYLE = `
text { font-family: Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; font-size: 12px; fill: ${PICTURE.ink}; }
.title { font-size: 17px; font-weight: 700; }
.name, .letter { font-weight: 600; }
.letter, .label { text-anchor: middle; }
.small { font-size: 10.5px; fill: ${PICTURE.quiet}; }
.label { font-size: 10px; font-weight: 600; }
.wire, .cut { fill: none; stroke: ${PICTURE.wire}; stroke-width: 1.3; }
.cut { stroke: ${PICTURE.cut}; stroke-width: 3; stroke-linejoin: round; }
`;
const LETTERS = 26; // width of the column with the devices' letters
const CORNER = 6;
const NAME = 12; // sizes of bold texts as wide as names, and as small ones
const SMALL = 9.7;

/** The text of the picture of what is open. */
function drawPicture(network, layout) {
  const { summary } = network.data;
  const width = Math.max(PICTURE.least, layout.width) + 2 * PICTURE.margin;
  const lines = legendLines(network.data, width - 2 * PICTURE.margin);
  const top = PICTURE.margin + 2 * PICTURE.row + lines.length * PICTURE.legend + PICTURE.below;
  const height = top + layout.height + PICTURE.margin;
  const size = { width: round(width), height: round(height), viewBox: `0 0 ${round(width)} ${round(height)}` };
  const title = pictureTitle(network.data);
  const graph = [
    ...layout.frames.map((box) => pictureFrame(network, box)),
    pictureWires(layout),
    ...layout.nodes.map((box) => pictureNode(network, box)),
    ...layout.labels.map((label) => pictureLabel(network, label)),
  ];
  const parts = [
    element("title", {}, escapeHtml(title)),
    element("style", {}, PICTURE_STYLE),
    pictureCorners(layout),
    element("rect", { width: "100%", height: "100%", fill: "#ffffff" }),
    pictureText("title", PICTURE.margin, PICTURE.margin + 12, title),
    pictureText("small", PICTURE.margin, PICTURE.margin + 12 + PICTURE.row, pictureFigures(summary, network.data)),
    ...lines.flatMap((line, i) => pictureLegend(line, PICTURE.margin + 2 * PICTURE.row + i * PICTURE.legend)),
    element("g", { transform: `translate(${round((width - layout.width) / 2)} ${round(top)})` }, graph.join("\n")),
  ];
  return `${element("svg", { xmlns: "http://www.w3.org/2000/svg", ...size }, `\n${parts.join("\n")}\n`)}\n`;
}

function pictureTitle({ summary }) {
  return `${summary.model} on ${summary.division} of ${summary.cluster}`;
}

function pictureFigures(summary, { ops, cuts, flows }) {
  const bytes = cuts.reduce((sum, cut) => sum + flows[cut[0]][3], 0);
  const { generation } = summary;
  const [per, unit] = generation ? [generation.tokens_per_s, "tokens/s"] : [summary.samples_per_s, "samples/s"];
  const rate = per === null ? [] : [`${digits(per)} ${unit}`];
  const times = summary.alone?.speedup ? [`${digits(summary.alone.speedup)} × one device`] : [];
  const one = generation ? "one pass alone, in the mean," : "one micro-batch alone";
  const alone = `${summary.step ? "a step" : one} ${formatSeconds(summary.latency_s)}`;
  const sent = cuts.length ? [`${plural(cuts.length, "tensor")} between devices, ${formatBytes(bytes)}`] : [];
  const about = [`planned for ${summary.goal}`, plural(ops.name.length, "operator")];
  return [...about, ...rate, ...times, alone, ...sent].join(" · ");
}

/** [[{x, device, text}, ...], ...]: the devices in use, in as many lines as they need; of many only the names. */
function legendLines({ devices }, width) {
  const lines = [[]];
  const many = devices.length > FEW_DEVICES;
  let x = 0;
  devices.forEach((device, d) => {
    if (!device.ops) return;
    const text = many ? device.name : `${device.name}: ${plural(device.ops, "operator")}, ${formatSeconds(device.load_s)}`;
    const needed = 8 + badgeWidth(d) + textWidth(text, NAME) + 18;
    if (x + needed > width && x > 0) {
      lines.push([]);
      x = 0;
    }
    lines.at(-1).push({ x, device: d, text });
    x += needed;
  });
  return lines;
}

function badgeWidth(device) {
  return Math.max(18, textWidth(deviceLetter(device), NAME) + 6);
}

function pictureLegend(line, y) {
  return line.map(({ x, device, text }) => {
    const left = PICTURE.margin + x;
    const wide = badgeWidth(device);
    return pictureBadge(device, left, y, wide, 18) + pictureText("", left + wide + 7, y + 13.5, text);
  });
}

function pictureBadge(device, x, y, w, h, rx = 4) {
  const fill = deviceColour(device);
  const place = { x: round(x), y: round(y), width: round(w), height: round(h), rx };
  const square = element("rect", { ...place, fill });
  if (h < 13) return square;
  const style = { class: "letter", x: round(x + w / 2), y: round(y + h / 2 + 4.3), style: `fill:${inkOn(fill)}` };
  return square + element("text", style, deviceLetter(device));
}

function pictureText(kind, x, y, text) {
  return element("text", { ...(kind ? { class: kind } : {}), x: round(x), y: round(y) }, escapeHtml(text));
}

/** Equal groups in a row, as the page draws them. */
function pictureStrip(network, cells) {
  return cells.map(({ id, x, y, w, h, before, within }, i) => {
    const split = network.split(id);
    const row = i === 0 || cells[i - 1].y !== y;
    const first = row || mainDevice(network.split(cells[i - 1].id)) !== mainDevice(split);
    const line = Math.min(within, h / split.length / 5); // between devices that share the cell
    let at = y;
    const parts = split.map(([device, share]) => {
      const look = { fill: deviceColour(device), stroke: "#ffffff", "stroke-width": 0.5 };
      const [top, high] = [at, h * share];
      at += high;
      const border = line && top > y ? pictureBox(x, top, w, line, { fill: PICTURE.cut }) : "";
      const style = `fill:${inkOn(deviceColour(device))}`;
      const middle = { class: "letter", x: round(x + w / 2), y: round(top + high / 2 + 4), style };
      const letter = first && high >= 13 ? element("text", middle, deviceLetter(device)) : "";
      return pictureBox(x, top, w, high, look) + border + letter;
    });
    const tick = i > 0 && before ? pictureBox(x - before / 2, y - 2, before, h + 4, { fill: PICTURE.cut }) : "";
    const number = i % 5 === 0 || row ? pictureText("small", x, y - 4, lastPart(network.label(id))) : "";
    return parts.join("") + tick + number;
  }).join("");
}

function pictureNode(network, { id, x, y, w, h, cells }) {
  if (cells) return pictureStrip(network, cells);
  const label = network.label(id);
  if (!network.isOp(id) && !network.isGroup(id)) {
    const look = { fill: "#ffffff", stroke: PICTURE.wire, "stroke-dasharray": "4 3", rx: h / 2 };
    const words = shorten(label, w - 20, 10);
    const text = element("text", { class: "label", x: round(x + w / 2), y: round(y + h / 2 + 4) }, escapeHtml(words));
    return pictureBox(x, y, w, h, look) + text;
  }
  const split = network.split(id);
  const main = mainDevice(split);
  const what = network.isOp(id) ? shortKind(network.kind(id)) : plural(network.opsIn[id].length, "op");
  const time = ` · ${formatSeconds(network.totalSeconds(id))}`;
  const kind = network.isGroup(id) ? "group" : "op";
  const edge = { fill: "none", stroke: mixed(deviceColour(main), PICTURE.line, 0.65), rx: CORNER };
  const behind = kind === "group" ? pictureBox(3, 3, w, h, { ...edge, fill: "#ffffff" }) : "";
  const room = w - LETTERS - 12;
  const ground = [...tints(split, LETTERS, w - LETTERS, h), ...stacked(split, h)].join("");
  const parts = [
    behind,
    element("g", { "clip-path": `url(#plan-${w}-${h})` }, ground),
    pictureBox(0, 0, w, h, edge),
    pictureText("name", LETTERS + 7, h / 2 - 2, shorten(label, room, NAME)),
    pictureText("small", LETTERS + 7, h / 2 + 12, shorten(what, room - textWidth(time, SMALL), SMALL) + time),
  ];
  return element("g", { transform: `translate(${round(x)} ${round(y)})` }, parts.join(""));
}

/** What keeps grounds within the rounded corners of nodes: one for each size. */
function pictureCorners({ nodes }) {
  const sizes = new Map(nodes.filter((node) => !node.cells).map(({ w, h }) => [`${w}-${h}`, { width: w, height: h }]));
  const clips = [...sizes].map(([name, size]) => {
    return element("clipPath", { id: `plan-${name}` }, element("rect", { ...size, rx: CORNER }));
  });
  return element("defs", {}, clips.join(""));
}

/** The devices' letters, one below the other, as high as their shares. */
function stacked(split, h) {
  let at = 0;
  return split.map(([device, share]) => {
    const part = pictureBadge(device, 0, at, LETTERS, h * share, 0);
    at += h * share;
    return part;
  });
}

/** Pale grounds side by side, as wide as the devices' shares. */
function tints(split, x, w, h) {
  let at = x;
  return split.map(([device, share]) => {
    const part = pictureBox(at, 0, w * share, h, { fill: mixed(deviceColour(device), "#ffffff", 0.17) });
    at += w * share;
    return part;
  });
}

function pictureBox(x, y, w, h, look) {
  return element("rect", { x: round(x), y: round(y), width: round(w), height: round(h), ...look });
}

function pictureFrame(network, { id, x, y, w, h }) {
  const fill = network.depth[id] % 2 ? "#ffffff" : PICTURE.frame;
  const label = network.label(id);
  const facts = `${plural(network.opsIn[id].length, "op")} · ${formatSeconds(network.totalSeconds(id))}`;
  const words = shorten(label, w - 20, NAME);
  const at = x + 10 + textWidth(words, NAME) + 8;
  const room = x + w - at - 8;
  return [
    pictureBox(x, y, w, h, { fill, stroke: PICTURE.line, rx: 9 }),
    pictureText("name", x + 10, y + 18, words),
    room > 60 ? pictureText("small", at, y + 18, shorten(facts, room, SMALL)) : "",
  ].join("");
}

function pictureWires({ nets, arrows }) {
  const way = (kind, some, more) => element("path", { class: kind, d: some.map((net) => net.d).join(""), ...more });
  const path = (kind, cut) => {
    const some = nets.filter((net) => net.cut === cut);
    const byWidth = new Map(some.map((net) => [net.wide, some.filter((other) => other.wide === net.wide)]));
    const thick = (wide) => (cut ? { style: `stroke-width:${wide.toFixed(1)}` } : {});
    const ways = [...byWidth].map(([wide, alike]) => way(kind, alike, thick(wide)));
    const heads = arrows.filter((arrow) => arrow.cut === cut).map(arrowHead).join("");
    const fill = cut ? PICTURE.cut : PICTURE.wire;
    const tips = heads ? element("path", { d: heads, fill }) : "";
    return ways.join("") + tips;
  };
  return path("wire", false) + path("cut", true);
}

function pictureLabel(network, { edge, x, y }) {
  const [bytes, seconds] = cutFigures(network, edge);
  const box = { fill: "#ffffff", stroke: PICTURE.cut, rx: 4 };
  const text = (dy, words) => element("text", { class: "label", x: round(x), y: round(y + dy) }, words);
  return pictureBox(x - 31, y - 14, 62, 28, box) + text(-2, formatBytes(bytes)) + text(10, formatSeconds(seconds));
}

/** Both ends of a text that does not fit: names are alike at their beginnings. */
function shorten(text, room, size) {
  const signs = [...text];
  if (textWidth(text, size) <= room) return text;
  let kept = signs.length - 1;
  const ends = () => {
    const last = signs.length - Math.floor(kept / 2);
    return [...signs.slice(0, Math.ceil(kept / 2)), "…", ...signs.slice(last)].join("");
  };
  while (kept > 2 && textWidth(ends(), size) > room) kept -= 1;
  return ends();
}

/** So much of one colour in another. */
function mixed(colour, ground, share) {
  const channel = (text, i) => parseInt(text.slice(i, i + 2), 16);
  const part = (i) => Math.round(share * channel(colour, i) + (1 - share) * channel(ground, i));
  return `#${[1, 3, 5].map((i) => part(i).toString(16).padStart(2, "0")).join("")}`;
}
