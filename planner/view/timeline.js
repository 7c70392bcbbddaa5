// The timelines: a lane for each device and each link in use, predicted and measured one below the other on one axis.

const LANE = 22; // of a device
const LINK = 14; // of a link
const THIN = 7; // of one of many devices, at most
const THIN_ALL = 280; // of all of them, with what is between their hosts
const NARROW = 4; // pixels; a wider span is an element of its own
const TOGETHER = 8; // thin lanes that have one name
const HOST_GAP = 5; // between the thin lanes of two hosts, at most
const NAME_HEIGHT = 11;
const AXIS = 26;
const GUTTER = 280; // at most, for the names
const LEAST_GUTTER = 120; // figures of memory stand there too
const LETTER = 6.6; // width of one, about
const BACK = /^\d+[BIW]\d+$/; // actions of a backward pass, as 2B0
const FEW_LINKS = 12; // the busiest, unless all are asked for
const BATCH_HUES = [210, 30, 150, 330, 265, 90, 0, 180]; // micro-batches in turn

class TimelineView {
  constructor(data, onPick) {
    this.data = data;
    this.root = byId("timeline");
    this.colouring = "device";
    this.onDraw = () => {};
    this.end_s = Math.max(...Object.values(data.timelines).map((t) => t.makespan_s)) || 1;
    this.thin = hasMany(data);
    this.arrange(false);
    this.range = [0, this.end_s];
    this.#listen(onPick);
    new ResizeObserver(() => this.draw()).observe(this.root.parentElement);
  }

  /** Rows for the devices (of many, those in use) and the links, or the busiest ones; those of one name stand together. */
  arrange(allLinks) {
    const runs = Object.entries(this.data.timelines);
    const { devices } = this.data;
    this.shown = devices.map((_, d) => d).filter((d) => !this.thin || devices[d].ops);
    const links = new Set(runs.flatMap(([, timeline]) => timeline.lanes));
    for (const { name } of devices) links.delete(name);
    this.links = links.size;
    const chosen = allLinks ? [...links] : this.thin ? [] : busiest(runs[0][1], [...links]);
    const names = [...this.shown.map((d) => devices[d].name), ...chosen];
    const hosts = new Set(this.shown.map((d) => devices[d].host)).size;
    const between = Math.min(HOST_GAP, THIN_ALL / 4 / hosts);
    const thin = Math.min(THIN, (THIN_ALL - between * hosts) / (this.shown.length * runs.length));
    let y = AXIS;
    const spansOf = runs.map(([, timeline]) => groupBy(timeline.lane.map((_, s) => s), (s) => timeline.lane[s]));
    this.rows = names.flatMap((name, n) =>
      runs.map(([run, timeline], i) => {
        const spans = spansOf[i].get(timeline.lanes.indexOf(name)) ?? [];
        const device = this.shown[n] ?? null;
        const height = device === null ? LINK : this.thin ? thin : LANE;
        const row = { name, device, run: runs.length > 1 ? run : "", timeline, spans, y, height, first: i === 0 };
        const host = device !== null && devices[device].host !== devices[this.shown[n + 1]]?.host;
        const gap = device === null ? 5 : this.thin ? (host ? between : 0) : 7;
        y += height + (i + 1 < runs.length ? Number(!this.thin) : gap);
        return row;
      }),
    );
    const letters = Math.max(...this.rows.map((row) => row.name.length + 1.2 * row.run.length));
    this.gutter = Math.max(LEAST_GUTTER, Math.min(GUTTER, 40 + LETTER * letters));
  }

  /** The device that a row belongs to; of a link the sender. */
  device(row) {
    if (row.device !== null) return row.device;
    return Math.max(0, this.data.devices.findIndex((device) => row.name.startsWith(`${device.name} → `)));
  }

  colour(row, s) {
    if (this.colouring === "batch") {
      const batch = row.timeline.micro_batch[s];
      return hslToHex(BATCH_HUES[batch % BATCH_HUES.length], 0.55, 0.62);
    }
    return deviceColour(this.device(row));
  }

  draw() {
    const width = this.root.clientWidth || 800;
    this.width = width;
    const height = this.rows.at(-1).y + this.rows.at(-1).height + 18;
    this.scale = (width - this.gutter - 16) / (this.range[1] - this.range[0]);
    this.root.setAttribute("height", height);
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const x = (seconds) => this.gutter + (seconds - this.range[0]) * this.scale;
    const grid = niceTicks(this.range, Math.max(2, (width - this.gutter) / 110)).map(([t, text]) => {
      const at = round(x(t));
      const line = element("line", { class: "grid", x1: at, x2: at, y1: 20, y2: height });
      return line + element("text", { class: "quiet", x: at, y: 14, "text-anchor": "middle" }, text);
    });
    this.named = -Infinity; // where the last name of thin lanes is
    const names = this.rows.map((row) => this.heading(row, width)).join("");
    const window = element("rect", { x: this.gutter, y: 0, width: width - this.gutter - 8, height });
    const spans = this.rows.map((row, r) => this.spans(row, r, x)).join("");
    const shown = element("g", { "clip-path": "url(#window)" }, spans);
    const ground = names + grid.join("") + this.steady(x, height);
    this.root.innerHTML = element("clipPath", { id: "window" }, window) + ground + shown;
    this.onDraw();
  }

  /** Where devices fill and drain, on a darker ground. */
  steady(x, height) {
    const { steady_s: [fill, drain], makespan_s } = this.data.timelines.predicted;
    const apart = [[0, fill, "fill"], [drain, makespan_s, "drain"]];
    const parts = fill < drain ? apart : [[0, makespan_s, "fill and drain"]];
    return parts.map(([from, to, name]) => {
      const [left, right] = [Math.max(this.gutter, x(from)), Math.min(this.width - 8, x(to))];
      if (right - left < 2) return "";
      const ground = element("rect", { class: "unsteady", x: round(left), width: round(right - left), y: 18, height: height - 18 });
      const word = { class: "quiet", x: round((left + right) / 2), y: height - 3, "text-anchor": "middle" };
      return ground + (right - left > 8 * name.length ? element("text", word, name) : "");
    }).join("");
  }

  /** Beside the first of some thin lanes of a host, their names. */
  thinHeading({ device, y, height }) {
    const { devices } = this.data;
    const { host } = devices[device];
    const beside = this.shown.filter((other) => devices[other].host === host);
    const at = beside.indexOf(device);
    const middle = y + Math.min(12, (Math.min(TOGETHER, beside.length - at) * height) / 2 + 4);
    if (at % TOGETHER || middle < this.named + NAME_HEIGHT) return "";
    this.named = middle;
    const list = beside.slice(at, at + TOGETHER);
    const range = deviceRange(devices, list);
    const name = host && !range.startsWith(host) ? `${range}, ${host}` : range;
    const room = Math.round((this.gutter - 14) / LETTER);
    const short = name.length > room ? `${name.slice(0, room - 1)}…` : name;
    return element("text", { x: 10, y: middle }, escapeHtml(short));
  }

  heading(row, width) {
    const middle = row.y + row.height / 2 + 4;
    const long = width - this.gutter - 8;
    const lane = element("rect", { class: "lane", x: this.gutter, y: row.y, width: long, height: row.height, rx: 3 });
    const run = element("text", { class: "quiet", x: this.gutter - 8, y: middle, "text-anchor": "end" }, row.run);
    if (this.thin && row.device !== null) return lane + (row.first ? this.thinHeading(row) : "");
    if (!row.first) return lane + run;
    const most = Math.round((this.gutter - 40) / LETTER - 1.2 * row.run.length);
    const short = row.name.length > most ? `${row.name.slice(0, most - 1)}…` : row.name;
    const name = element("text", { x: 32, y: middle }, escapeHtml(short));
    if (row.device === null) return lane + run + name;
    const fill = deviceColour(row.device);
    const square = element("rect", { x: 10, y: middle - 12, width: 16, height: 16, rx: 3.5, fill });
    const style = `fill:${inkOn(fill)}`;
    const letter = element("text", { class: "number", x: 18, y: middle, style }, deviceLetter(row.device));
    return lane + run + name + square + letter;
  }

  /** The spans of a lane in sight: narrow ones are one path, and what is thinner than a pixel merges with its neighbours. */
  spans(row, r, x) {
    const { start_s, end_s, micro_batch } = row.timeline;
    const parts = [];
    const narrow = new Map(); // paths by look
    const pad = row.height >= LINK ? 1 : row.height > 2 ? 0.5 : 0;
    let filled = -Infinity;
    for (const s of row.spans) {
      const [left, right] = [x(start_s[s]), x(end_s[s])];
      if (end_s[s] < this.range[0] || start_s[s] > this.range[1] || right <= filled + 0.5) continue;
      const [from, to] = [Math.max(left, 0, filled), Math.min(right, this.width)];
      const fill = this.colour(row, s);
      const wide = Math.max(to - from, 0.8);
      filled = from + wide;
      const [y, height] = [row.y + pad, row.height - 2 * pad];
      const back = this.isBack(row.timeline, s);
      const look = { class: back ? "span back" : "span", fill, "data-row": r };
      if (wide <= NARROW) {
        const key = Object.values(look).join();
        const box = `M${round(from)} ${y}h${round(wide)}v${height}h${-round(wide)}z`;
        narrow.set(key, { ...look, d: (narrow.get(key)?.d ?? "") + box });
        continue;
      }
      const place = { x: round(from), y, width: round(wide), height, rx: 2.5 };
      parts.push(element("rect", { ...look, class: `${look.class} wide`, "data-span": s, ...place }));
      if (wide > 14 && row.height === LANE) {
        const text = row.timeline.label[s] === "optimizer" ? "opt" : micro_batch[s];
        const middle = { x: round((Math.max(from, this.gutter) + to) / 2), y: row.y + row.height / 2 + 4 };
        parts.push(element("text", { class: "number", ...middle, ...(back ? {} : { style: `fill:${inkOn(fill)}` }) }, text));
      }
    }
    return [...narrow.values()].map((look) => element("path", look)).join("") + parts.join("");
  }

  /** Whether a span is of a backward pass. */
  isBack(timeline, s) {
    return this.data.summary.step !== null && BACK.test(timeline.label[s]);
  }

  /** What a span works on: the operators of a stage, the bytes of a tensor; nothing for what a schedule sends. */
  what({ device, timeline: { index } }, s) {
    const { stages, flows, summary } = this.data;
    if (device !== null) return plural(stages[index[s]].length, "operator");
    return summary.step ? "" : formatBytes(flows[index[s]][3]);
  }

  tip(row, s) {
    const t = row.timeline;
    const what = this.what(row, s);
    const about = [escapeHtml(row.name), row.run, what].filter(Boolean).join(", ");
    const facts = [
      factRow("micro-batch", t.micro_batch[s]),
      factRow("from", formatSeconds(t.start_s[s])),
      factRow("to", formatSeconds(t.end_s[s])),
      factRow("takes", `<b>${formatSeconds(t.end_s[s] - t.start_s[s])}</b>`),
    ];
    const title = escapeHtml(t.label[s]);
    return `<h3>${title}</h3><p class="quiet">${about}</p><table>${facts.join("")}</table>`;
  }

  zoom(factor, at = 0.5) {
    const [from, to] = this.range;
    const length = Math.min(this.end_s, Math.max(this.end_s * 1e-5, (to - from) / factor));
    const middle = from + (to - from) * at;
    this.show(middle - length * at, length);
  }

  show(from, length) {
    const start = Math.min(Math.max(0, from), this.end_s - length);
    this.range = [start, start + length];
    this.draw();
  }

  #listen(onPick) {
    const { root } = this;
    const spanAt = (event) => {
      const { row: r, span } = event.target.dataset;
      if (r === undefined) return null;
      const row = this.rows[r];
      if (span !== undefined) return [row, Number(span)];
      const { start_s } = row.timeline;
      const seconds = this.range[0] + (event.clientX - root.getBoundingClientRect().left - this.gutter) / this.scale;
      return [row, row.spans[Math.max(0, lastBefore(row.spans.length, (i) => start_s[row.spans[i]] <= seconds))]];
    };
    root.addEventListener("pointermove", (event) => {
      const found = spanAt(event);
      if (found) showTip(this.tip(...found), pointRect(event));
      else hideTip();
    });
    root.addEventListener("pointerleave", hideTip);
    root.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== root) return; // the page scrolls until the chart was clicked
      event.preventDefault();
      const x = Math.max(0, event.clientX - root.getBoundingClientRect().left - this.gutter);
      this.zoom(Math.exp(-event.deltaY * WHEEL_ZOOM), x / this.scale / (this.range[1] - this.range[0]));
    }, { passive: false });
    let grabbed = null;
    let dragged = 0;
    root.addEventListener("pointerdown", (event) => {
      grabbed = event.clientX;
      dragged = 0;
    });
    addEventListener("pointermove", (event) => {
      if (grabbed === null) return;
      const dx = event.clientX - grabbed;
      dragged += Math.abs(dx);
      grabbed = event.clientX;
      if (dragged > 4) this.show(this.range[0] - dx / this.scale, this.range[1] - this.range[0]);
    });
    addEventListener("pointerup", () => (grabbed = null));
    root.addEventListener("click", (event) => {
      root.focus({ preventScroll: true });
      const found = spanAt(event);
      if (found && dragged <= 4) onPick(...found);
    });
    root.addEventListener("keydown", (event) => {
      const length = this.range[1] - this.range[0];
      const actions = {
        "+": () => this.zoom(1.5),
        "=": () => this.zoom(1.5),
        "-": () => this.zoom(1 / 1.5),
        0: () => this.show(0, this.end_s),
        ArrowLeft: () => this.show(this.range[0] - length / 5, length),
        ArrowRight: () => this.show(this.range[0] + length / 5, length),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });
  }
}

/** The names of the links that send the longest, in the order of the lanes. */
function busiest(timeline, links) {
  const seconds = new Map(links.map((name) => [name, 0]));
  timeline.lane.forEach((lane, s) => {
    const name = timeline.lanes[lane];
    if (seconds.has(name)) seconds.set(name, seconds.get(name) + timeline.end_s[s] - timeline.start_s[s]);
  });
  const chosen = new Set([...links].sort((a, b) => seconds.get(b) - seconds.get(a)).slice(0, FEW_LINKS));
  return links.filter((name) => chosen.has(name));
}

/** Round times in a range, about so many, with their texts: all in one unit, to the digit in which they differ. */
function niceTicks([from, to], count) {
  const raw = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= raw);
  const [unit, name] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]].find(([u]) => to >= u) ?? [1e-9, "ns"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-9); i += 1) {
    ticks.push([i * step, i === 0 ? "0" : `${((i * step) / unit).toFixed(decimals)} ${name}`]);
  }
  return ticks;
}
