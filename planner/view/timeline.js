// The timelines: a lane for each device and each link in use, predicted and measured one below the other on one axis.

const LANE = 22; // of a device
const LINK = 14; // of a link
const AXIS = 26;
const FEW_LINKS = 12; // the busiest, unless all are asked for
const BATCH_HUES = [210, 30, 150, 330, 265, 90, 0, 180]; // micro-batches in turn

class TimelineView {
  constructor(data, onPick) {
    this.data = data;
    this.root = byId("timeline");
    this.colouring = "device";
    this.end_s = Math.max(...Object.values(data.timelines).map((t) => t.makespan_s)) || 1;
    this.arrange(false);
    this.range = [0, this.end_s];
    this.#listen(onPick);
    new ResizeObserver(() => this.draw()).observe(this.root.parentElement);
  }

  /** Rows for the devices and the links, or the busiest links; those of one name stand together. */
  arrange(allLinks) {
    const runs = Object.entries(this.data.timelines);
    const devices = this.data.devices.map((device) => device.name);
    const links = [...new Set(runs.flatMap(([, timeline]) => timeline.lanes.slice(devices.length)))];
    this.links = links.length;
    const names = [...devices, ...(allLinks ? links : busiest(runs[0][1], links))];
    let y = AXIS;
    this.rows = names.flatMap((name, n) =>
      runs.map(([run, timeline], i) => {
        const lane = timeline.lanes.indexOf(name);
        const spans = timeline.lane.flatMap((l, s) => (l === lane ? [s] : []));
        const device = n < devices.length ? n : null;
        const height = device === null ? LINK : LANE;
        const row = { name, device, run: runs.length > 1 ? run : "", timeline, spans, y, height, first: i === 0 };
        y += height + (i + 1 < runs.length ? 1 : device === null ? 5 : 7);
        return row;
      }),
    );
    this.gutter = Math.min(280, 40 + 6.6 * Math.max(...this.rows.map((row) => row.name.length + 1.2 * row.run.length)));
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
    const height = this.rows.at(-1).y + this.rows.at(-1).height + 8;
    this.scale = (width - this.gutter - 16) / (this.range[1] - this.range[0]);
    this.root.setAttribute("height", height);
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const x = (seconds) => this.gutter + (seconds - this.range[0]) * this.scale;
    const ticks = niceTicks(this.range, Math.max(2, (width - this.gutter) / 110));
    const grid = ticks.map((t) => {
      const at = round(x(t));
      return `<line class="grid" x1="${at}" x2="${at}" y1="20" y2="${height}"/><text class="quiet" x="${at}" y="14" text-anchor="middle">${formatSeconds(t)}</text>`;
    });
    const names = this.rows.map((row) => this.heading(row, width)).join("");
    const clip = `<clipPath id="window"><rect x="${this.gutter}" y="0" width="${width - this.gutter - 8}" height="${height}"/></clipPath>`;
    const spans = this.rows.map((row, r) => this.spans(row, r, x)).join("");
    this.root.innerHTML = `${clip}${names}${grid.join("")}<g clip-path="url(#window)">${spans}</g>`;
  }

  heading(row, width) {
    const middle = row.y + row.height / 2 + 4;
    const back = `<rect class="lane" x="${this.gutter}" y="${row.y}" width="${width - this.gutter - 8}" height="${row.height}" rx="3"/>`;
    const run = row.run ? `<text class="quiet" x="${this.gutter - 8}" y="${middle}" text-anchor="end">${row.run}</text>` : "";
    if (!row.first) return back + run;
    const colour = deviceColour(this.device(row));
    const mark = `<rect x="10" y="${middle - 12}" width="16" height="16" rx="3.5" fill="${colour}"/><text class="number" x="18" y="${middle}" style="fill:${inkOn(colour)}">${deviceLetter(row.device ?? 0)}</text>`;
    return `${back}${run}${row.device === null ? "" : mark}<text x="32" y="${middle}">${escapeHtml(row.name)}</text>`;
  }

  /** The spans of a lane in sight; what is thinner than a pixel merges with its neighbours. */
  spans(row, r, x) {
    const { start_s, end_s, micro_batch } = row.timeline;
    const parts = [];
    let filled = -Infinity;
    for (const s of row.spans) {
      const [left, right] = [x(start_s[s]), x(end_s[s])];
      if (end_s[s] < this.range[0] || start_s[s] > this.range[1] || right <= filled + 0.5) continue;
      const [from, to] = [Math.max(left, -100, filled), Math.min(right, 10000)];
      const colour = this.colour(row, s);
      const wide = Math.max(to - from, 0.8);
      filled = from + wide;
      parts.push(`<rect class="span${wide > 4 ? " wide" : ""}" data-row="${r}" data-span="${s}" x="${round(from)}" y="${row.y + 1}" width="${round(wide)}" height="${row.height - 2}" rx="${wide > 6 ? 2.5 : 0}" fill="${colour}"/>`);
      if (wide > 14 && row.device !== null) {
        parts.push(`<text class="number" x="${round((Math.max(from, this.gutter) + to) / 2)}" y="${row.y + row.height / 2 + 4}" style="fill:${inkOn(colour)}">${micro_batch[s]}</text>`);
      }
    }
    return parts.join("");
  }

  tip(row, s) {
    const t = row.timeline;
    const compute = t.lane[s] < this.data.devices.length;
    const count = compute ? this.data.stages[t.index[s]]?.length : null;
    const what = compute ? (count ? plural(count, "operator") : "") : formatBytes(this.data.flows[t.index[s]]?.[3] ?? null);
    const rows = `<table>${factRow("micro-batch", t.micro_batch[s])}${factRow("from", formatSeconds(t.start_s[s]))}${factRow("to", formatSeconds(t.end_s[s]))}${factRow("takes", `<b>${formatSeconds(t.end_s[s] - t.start_s[s])}</b>`)}</table>`;
    return `<h3>${escapeHtml(t.labels[t.label[s]])}</h3><p class="quiet">${[escapeHtml(row.name), row.run, what].filter(Boolean).join(", ")}</p>${rows}`;
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
      const { row, span } = event.target.dataset;
      return row === undefined ? null : [this.rows[row], Number(span)];
    };
    root.addEventListener("pointerover", (event) => {
      const found = spanAt(event);
      if (found) showTip(this.tip(...found), pointRect(event));
      else hideTip();
    });
    root.addEventListener("pointerleave", hideTip);
    root.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== root) return; // the page scrolls until the chart was clicked
      event.preventDefault();
      const x = event.clientX - root.getBoundingClientRect().left - this.gutter;
      this.zoom(Math.exp(-event.deltaY * WHEEL_ZOOM), Math.max(0, x * this.perPixel() / (this.range[1] - this.range[0])));
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
      if (dragged > 4) this.show(this.range[0] - dx * this.perPixel(), this.range[1] - this.range[0]);
    });
    addEventListener("pointerup", () => (grabbed = null));
    root.addEventListener("click", (event) => {
      root.focus({ preventScroll: true });
      const found = spanAt(event);
      if (found && dragged <= 4) onPick(found[0].timeline, found[1]);
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

  perPixel() {
    return 1 / this.scale;
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

/** Round numbers in a range, about so many. */
function niceTicks([from, to], count) {
  const raw = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= raw);
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-9); i += 1) ticks.push(i * step);
  return ticks;
}
