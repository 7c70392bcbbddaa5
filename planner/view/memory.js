// What each device holds over time, on the axis of the timeline: bands for what stays, a curve on top of them, the limit,
// and the measured run as a line. More than a few devices are columns beside each other first.

const CURVE = 58; // height of a device's row
const CURVE_GAP = 10;
const ACTIVATIONS = 3; // the part that is drawn up to the curve
const FEW_CURVES = 4; // of more, a chart over time is mostly empty, and comes when it is asked for

class MemoryView {
  constructor(data, timeline) {
    this.data = data;
    this.timeline = timeline;
    this.root = byId("memory");
    const { predicted, measured } = data.memory;
    this.rows = predicted.map((curve, i) => {
      const device = data.devices[curve.device];
      const run = measured?.find((other) => other.device === curve.device) ?? null;
      const peak = Math.max(curve.peak_bytes, run?.peak_bytes ?? 0) || 1;
      return { curve, run, device, peak, limit: device.capacity_bytes, y: CURVE_GAP / 2 + i * (CURVE + CURVE_GAP) };
    });
    this.toLimit = true; // the scale of each device, else its own peak
    this.columns = data.devices.length > FEW_CURVES;
    this.#listen();
  }

  draw() {
    const { width, gutter, scale, range } = this.timeline;
    if (this.columns) {
      const [shapes, height] = memoryColumns(this.data, width, this.toLimit);
      this.root.setAttribute("height", height);
      this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.root.innerHTML = shapes;
      return;
    }
    const height = this.rows.length * (CURVE + CURVE_GAP);
    this.root.setAttribute("height", height);
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.x = (seconds) => gutter + (seconds - range[0]) * scale;
    this.right = width - 8;
    const window = element("rect", { x: gutter, y: 0, width: this.right - gutter, height });
    const curves = this.rows.map((row) => this.curve(row)).join("");
    const clipped = element("g", { "clip-path": "url(#memory-window)" }, curves);
    const texts = this.rows.map((row) => this.heading(row)).join("");
    this.root.innerHTML = element("clipPath", { id: "memory-window" }, window) + clipped + texts;
  }

  /** The height of so many bytes. */
  y(row, bytes) {
    const most = 1.12 * (this.toLimit && row.limit !== null ? Math.max(row.limit, row.peak) : row.peak);
    return row.y + CURVE * (1 - bytes / most);
  }

  /** What stays and what is no activation, one band on the other. */
  bands(row) {
    const { gutter } = this.timeline;
    let held = 0;
    return row.device.parts.map((bytes, part) => {
      if (part === ACTIVATIONS) return "";
      const [top, bottom] = [this.y(row, held + bytes), this.y(row, held)];
      held += bytes;
      const place = { x: gutter, width: round(this.right - gutter), y: round(top), height: round(bottom - top) };
      return bytes ? element("rect", { class: `part p${part}`, ...place }) : "";
    }).join("");
  }

  curve(row) {
    const { gutter } = this.timeline;
    const ground = element("rect", { class: "lane", x: gutter, y: row.y, width: this.right - gutter, height: CURVE, rx: 3 });
    const line = this.steps(row, row.curve);
    const area = `${line}V${round(row.y + CURVE)}H${gutter}Z`;
    const curve = element("path", { d: line, class: "curve", stroke: deviceColour(row.curve.device) });
    const below = `memory-of-${row.curve.device}`; // a cache comes and goes with its micro-batch
    const bands = element("clipPath", { id: below }, element("path", { d: area })) + element("g", { "clip-path": `url(#${below})` }, this.bands(row));
    const predicted = element("path", { d: area, class: `part p${ACTIVATIONS}` }) + bands + curve;
    const measured = row.run ? element("path", { d: this.steps(row, row.run), class: "curve measured" }) : "";
    const at = round(this.y(row, row.limit));
    const limit = row.limit !== null && at >= row.y ? element("line", { class: "limit", x1: gutter, x2: this.right, y1: at, y2: at }) : "";
    return ground + predicted + measured + limit;
  }

  /** The steps in sight, as a path. */
  steps(row, { time_s, bytes }) {
    const [from, to] = this.timeline.range;
    const first = Math.max(0, stepAt(time_s, from));
    let d = `M${round(this.x(Math.max(time_s[first], from)))} ${round(this.y(row, bytes[first]))}`;
    for (let i = first + 1; i < time_s.length && time_s[i] <= to; i += 1) {
      d += `H${round(this.x(time_s[i]))}V${round(this.y(row, bytes[i]))}`;
    }
    return `${d}H${round(this.right)}`;
  }

  heading(row) {
    const { device, curve, run, limit } = row;
    const fill = deviceColour(curve.device);
    const room = Math.round((this.timeline.gutter - 44) / LETTER);
    const name = device.name.length > room ? `${device.name.slice(0, room - 1)}…` : device.name;
    const square = element("rect", { x: 10, y: row.y + 4, width: 16, height: 16, rx: 3.5, fill });
    const style = `fill:${inkOn(fill)}`;
    const letter = element("text", { class: "number", x: 18, y: row.y + 16, style }, deviceLetter(curve.device));
    const text = (x, y, words, more = {}) => element("text", { x: round(x), y: round(y), ...more }, words);
    const lines = [
      [`peak ${formatBytes(curve.peak_bytes)}`, {}],
      ...(run ? [[`run ${formatBytes(run.peak_bytes)}`, {}]] : []),
      [limit === null ? "no limit" : `limit ${formatBytes(limit)}`, { class: limit === null ? "quiet" : "limit" }],
    ];
    const told = lines.map(([words, look], i) => text(32, row.y + 30 + 13 * i, words, look)).join("");
    return square + letter + text(32, row.y + 16, escapeHtml(name)) + told;
  }

  tip(row, seconds) {
    const held = ({ time_s, bytes }) => bytes[Math.max(0, stepAt(time_s, seconds))];
    const facts = [
      factRow("at", formatSeconds(seconds)),
      factRow("holds", `<b>${formatBytes(held(row.curve))}</b>`),
      row.run && factRow("measured run", formatBytes(held(row.run))),
      factRow("at most", `${formatBytes(row.curve.peak_bytes)}, at ${formatSeconds(row.curve.peak_s)}`),
      factRow("limit", formatBytes(row.limit)),
    ];
    return `<h3>${deviceName(this.data.devices, row.curve.device)}</h3><table>${facts.filter(Boolean).join("")}</table>`;
  }

  #listen() {
    this.root.addEventListener("pointermove", (event) => {
      if (this.columns) {
        const { device } = event.target.dataset;
        if (device === undefined) hideTip();
        else showTip(deviceTip(this.data.devices[device], Number(device)), pointRect(event));
        return;
      }
      const frame = this.root.getBoundingClientRect();
      const row = this.rows[Math.floor((event.clientY - frame.top) / (CURVE + CURVE_GAP))];
      const { gutter, scale, range } = this.timeline;
      const seconds = range[0] + (event.clientX - frame.left - gutter) / scale;
      if (row && seconds >= range[0] && seconds <= range[1]) showTip(this.tip(row, seconds), pointRect(event));
      else hideTip();
    });
    this.root.addEventListener("pointerleave", hideTip);
  }
}

/** The last step that begins at or before a second; -1 if there is none. */
function stepAt(time_s, seconds) {
  return lastBefore(time_s.length, (i) => time_s[i] <= seconds);
}

/** The last of so many for which it holds, where it holds for none behind one for which it does not. Bisection. */
function lastBefore(count, holds) {
  let [low, high] = [-1, count - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (holds(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}
