// Many devices at a glance: heat maps of load, memory and idle time with a frame for each host, who stands out, and what
// each device holds against its limit.
//
//   load  1.39 – 1.39 – 3.03 ms        ┌ node0 ──────────┐ ┌ node1 ──────────┐
//   gpu0: 3.03 ms                      │ 0 1 2 3 4 5 6 7 │ │ 8 9 ...         │
//   gpu1–3, 5–7, … (63): 1.39–1.4 ms   └─────────────────┘ └─────────────────┘

const ALIKE = 1.12; // values that differ by a smaller factor belong together
const MOST_GROUPS = 3; // of values that are told, the highest first
const MOST_SETS = 5; // of the table at first
const MOST_RANGES = 3; // of devices in one name
const MOST_NAMES = 2; // of devices that share no name
const TILES = [20, 17, 14, 11, 9, 7, 5, 3]; // widths of a device in a map
const NUMBERED = 17; // from this width on, tiles have numbers
const NAMED = 9; // and hosts names
const MAP_HEIGHT = 336; // of all tiles of a map

const PARTS = ["weights", "gradients", "optimizer", "activations", "cache"];

/** The colours of those parts that some device holds. */
function fillParts({ devices }) {
  const held = PARTS.flatMap((name, i) => (devices.some((d) => d.ops && d.parts[i]) ? [`<i class="p${i}"></i> ${name}`] : []));
  byId("parts").innerHTML = held.join(" ");
}

function hasMany(data) {
  return data.devices.length > FEW_DEVICES;
}

const IDLE = { title: "Idle", value: (d) => d.idle, share: (d) => d.idle, text: (share) => formatShare(share) };

/** What is shown of each device: [title, value, share of the scale, text of a value, the least factor between groups]. */
const MEASURES = [
  { title: "Load of a micro-batch", value: (d) => d.load_s, share: (d) => d.share, text: formatSeconds },
  {
    title: "Memory, of the limit",
    value: (d) => memoryShare(d),
    share: (d) => memoryShare(d),
    text: (share) => formatShare(share),
  },
  IDLE,
];

function memoryShare(device) {
  return device.capacity_bytes ? device.memory_bytes / device.capacity_bytes : 0;
}

/** Devices by host, in the order of the cluster: [[host, [device, ...]], ...]. */
function byHost(devices, list = devices.map((_, d) => d)) {
  return [...groupBy(list, (d) => devices[d].host)];
}

/** A name for several devices: "gpu1–3, 5, 8, …", or "host0–7-gpu3" of as many hosts. */
function deviceRange(devices, list) {
  if (list.length === 1) return devices[list[0]].name;
  const parts = list.map((d) => devices[d].name.match(/^(?:(.*?\D)(\d+)(\D.*?)|(.*?))(\d+)$/));
  const before = groupBy(parts, (part) => (part ? JSON.stringify([part[1], part[3], part[4]]) : null));
  if (before.size > 1 || before.has(null)) return someNames(devices, list);
  const [, first, , middle, only] = parts[0];
  const hosts = groupBy(parts, (part) => part[2]);
  const numbers = new Set([...hosts.values()].map((host) => numberRanges(host.map((part) => Number(part[5])))));
  if (numbers.size > 1) return someNames(devices, list);
  const host = first === undefined ? only : `${first}${numberRanges([...hosts.keys()].map(Number))}${middle}`;
  return `${host}${[...numbers][0]}`;
}

function someNames(devices, list) {
  const names = list.slice(0, MOST_NAMES).map((d) => devices[d].name);
  return names.join(", ") + (list.length > MOST_NAMES ? ", …" : "");
}

/** "1–3, 5, 8, …". */
function numberRanges(numbers) {
  const ranges = [];
  for (const number of numbers.sort((a, b) => a - b)) {
    const last = ranges.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else ranges.push([number, number]);
  }
  const words = ranges.slice(0, MOST_RANGES).map(([a, b]) => (a === b ? String(a) : `${a}–${b}`));
  return `${words.join(", ")}${ranges.length > MOST_RANGES ? ", …" : ""}`;
}

/** Devices with about the same value: [[device, ...], ...], the highest first. */
function clusters(devices, list, value) {
  const sorted = [...list].sort((a, b) => value(devices[b]) - value(devices[a]) || a - b);
  const found = [];
  let last = null;
  for (const d of sorted) {
    const v = value(devices[d]);
    if (last === null || last > v * ALIKE) found.push([]);
    found.at(-1).push(d);
    last = v;
  }
  return found.map((group) => group.sort((a, b) => a - b));
}

/** "1.39 ms", or "748 – 848 µs" of the least and the most. */
function valueRange(values, text) {
  const [low, high] = [text(Math.min(...values)), text(Math.max(...values))];
  if (low === high) return low;
  const [, unit] = high.split(" ");
  return low.endsWith(` ${unit}`) ? `${low.slice(0, -unit.length - 1)} – ${high}` : `${low} – ${high}`;
}

/** The least, the median and the most; then [names, how many and how much] of who stands out. */
function measureWords(devices, used, { value, text }) {
  const values = used.map((d) => value(devices[d])).sort((a, b) => a - b);
  const median = values[Math.floor(values.length / 2)];
  const spread = [values[0], median, values.at(-1)].map(text);
  const groups = clusters(devices, used, value);
  const rows = groups.slice(0, MOST_GROUPS).map((group) => {
    const count = group.length > 1 ? ` (${group.length})` : "";
    return [deviceRange(devices, group), `${count}: ${valueRange(group.map((d) => value(devices[d])), text)}`];
  });
  if (groups.length > MOST_GROUPS) rows.push([`and ${groups.slice(MOST_GROUPS).flat().length} devices with less`, ""]);
  return [`${spread.join(" – ")}`, rows];
}

function describeDevice(device) {
  const memory = `${formatBytes(device.memory_bytes)} of ${formatBytes(device.capacity_bytes)}`;
  const host = device.host ? ` in ${device.host}` : "";
  if (!device.ops) return `${device.name}${host}: nothing is placed here`;
  const busy = `${formatSeconds(device.load_s)} for each micro-batch`;
  return `${device.name}${host}: ${busy}, ${memory}, idle ${formatShare(device.idle)}`;
}

/** The heat maps; a click on a device calls `onPick` with it, the arrow keys walk. */
function fillMaps(data, onPick) {
  const { devices, summary } = data;
  const used = devices.flatMap((device, d) => (device.ops ? [d] : []));
  const tile = (measure) => (d) => {
    const device = devices[d];
    const share = Math.min(1, measure.share(device));
    const over = measure.share(device) > 1 + 1e-9 ? " over" : "";
    const hot = share > 0.6 ? " hot" : "";
    const most = measure === MEASURES[0] && summary.bottleneck.devices.includes(d) ? " bottleneck" : "";
    const style = `--share:${(device.ops ? share * 100 : 0).toFixed(0)}%;${deviceStyle(d)}`;
    const long = deviceLetter(d).length > 2 ? " long" : "";
    const kind = `tile${long}${hot}${over}${most}${device.ops ? "" : " unused"}`;
    const look = { type: "button", class: kind, style, "data-device": d, "aria-pressed": false, tabindex: d ? -1 : 0 };
    return element("button", { ...look, "aria-label": describeDevice(device) }, deviceLetter(d));
  };
  const map = (measure) => {
    const [spread, rows] = measureWords(devices, used, measure);
    const hosts = byHost(devices).map(([host, list]) => {
      const name = host ? `<small>${escapeHtml(host)}</small>` : "";
      return `<div class="host">${name}<div class="tiles">${list.map(tile(measure)).join("")}</div></div>`;
    });
    const told = rows.map(([names, range]) => `<li><span>${escapeHtml(names)}</span>${range}</li>`).join("");
    const title = measure === IDLE && summary.filled ? "Idle, once filled" : measure.title;
    const head = `<h3>${title}</h3><p><b>${spread}</b> <span class="quiet">least – median – most</span></p>`;
    const tiles = element("div", { class: "hosts", role: "group", "aria-label": measure.title }, hosts.join(""));
    return `<div class="map">${head}${tiles}<ul class="quiet">${told}</ul></div>`;
  };
  const root = byId("maps");
  root.style.setProperty("--map", `${MAP_HEIGHT}px`);
  root.innerHTML = MEASURES.map(map).join("");
  new ResizeObserver(() => fitMaps(root)).observe(root);
  fitMaps(root);
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-device]");
    if (button) onPick(button);
  });
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const tiles = step ? [...event.target.closest(".map").querySelectorAll("[data-device]")] : [];
    const next = tiles[tiles.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  const about = (event) => {
    const d = event.target.dataset?.device;
    if (d === undefined) hideTip();
    else showTip(deviceTip(devices[d], Number(d)), event.target.getBoundingClientRect());
  };
  root.addEventListener("pointerover", about);
  root.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && about(event));
  root.addEventListener("pointerleave", hideTip);
  root.addEventListener("focusout", hideTip);
}

/** The largest tiles with which no map is higher than it may be, however many devices there are. */
function fitMaps(root) {
  const all = [...root.querySelectorAll(".hosts")];
  for (const width of TILES) {
    root.style.setProperty("--tile", `${width}px`);
    root.classList.toggle("plain", width < NUMBERED);
    root.classList.toggle("bare", width < NAMED);
    if (all.every((hosts) => hosts.scrollHeight <= MAP_HEIGHT)) return;
  }
}

function deviceTip(device, d) {
  const held = device.parts.map((bytes, i) => bytes && factRow(PARTS[i], formatBytes(bytes))).filter(Boolean);
  const rows = [
    device.host && factRow("host", escapeHtml(device.host)),
    factRow("operators", grouped(device.ops)),
    factRow("load", `${formatSeconds(device.load_s)}, ${formatShare(device.share)} of the bottleneck`),
    device.ops && factRow("idle", formatShare(device.idle)),
    factRow("memory", `${formatBytes(device.memory_bytes)} of ${formatBytes(device.capacity_bytes)}`),
    ...held,
  ];
  return `<h3>${badge(d)} ${escapeHtml(device.name)}</h3><table>${rows.filter(Boolean).join("")}</table>`;
}

/** Rows of the table of devices: [list, ...], those with equal figures together. */
function deviceRows({ devices }, all) {
  const list = devices.map((_, d) => d);
  if (all) return list.map((d) => [d]);
  const near = (x) => (x ? Math.round(Math.log(x) / Math.log(ALIKE)) : -1);
  const key = (d) => {
    const { kind, ops, load_s, memory_bytes } = devices[d];
    return `${kind} ${ops > 0} ${near(load_s)} ${near(memory_bytes)}`;
  };
  return [...groupBy(list, key).values()];
}

function fillDevices(data) {
  const { devices } = data;
  const more = byId("more-devices");
  const alike = new Set(devices.map((device) => device.kind)).size === 1; // then their kind is told once, above the table
  const told = (cells) => cells.filter((_, i) => !alike || i !== 1);
  byId("devices-about").textContent = `load of one micro-batch${alike ? `; all are ${devices[0].kind}` : ""}`;
  const show = (all) => {
    const numbers = ["Operators", "Load", "Idle"];
    const names = ["Device", "Kind", "Operators", "Load", "Of the bottleneck", "Idle", "Memory"];
    const heads = names.map((name) => [name, numbers.includes(name)]);
    const load = ([d]) => devices[d].load_s;
    const sets = deviceRows(data, all);
    const rows = all || sets.length <= MOST_SETS ? sets : sets.sort((a, b) => load(b) - load(a)).slice(0, MOST_SETS);
    byId("devices").innerHTML = table(told(heads), rows.map((list) => told(deviceRow(devices, list))));
    more.textContent = all ? "Show equal devices together" : `Show all ${grouped(devices.length)}`;
    more.onclick = () => show(!all);
  };
  more.hidden = !hasMany(data);
  show(!hasMany(data));
}

/** One device, or several with nearly equal figures. */
function deviceRow(devices, list) {
  const each = (value) => list.map((d) => value(devices[d]));
  const range = (value, text) => valueRange(each(value), text);
  const [first] = list;
  const several = `${escapeHtml(deviceRange(devices, list))} <span class="quiet">(${list.length})</span>`;
  const name = list.length > 1 ? several : deviceName(devices, first);
  const share = Math.max(...each((d) => d.share));
  const held = `${range((d) => d.memory_bytes, formatBytes)} of ${formatBytes(devices[first].capacity_bytes)}`;
  return [
    name,
    escapeHtml(devices[first].kind),
    range((d) => d.ops, grouped),
    range((d) => d.load_s, formatSeconds),
    meter(share, range((d) => d.share, formatShare), first),
    devices[first].ops ? range((d) => d.idle, formatShare) : "not used",
    meter(Math.max(...each(memoryShare)), held, first),
  ];
}

const COLUMN = { height: 150, top: 16, bottom: 34, most: 56, gutter: 74, gap: 6 };

/** What each device in use holds, one column beside the other, stacked by what it is, with the limits where they fit the scale. */
function memoryColumns({ devices, memory: { measured } }, width, toLimit) {
  const limit = (device) => (toLimit ? device.capacity_bytes ?? 0 : 0);
  const most = 1.06 * Math.max(1, ...devices.map((d) => Math.max(d.memory_bytes, limit(d))));
  const { gutter } = COLUMN;
  const used = devices.flatMap((device, d) => (device.ops ? [d] : []));
  const hosts = byHost(devices, used);
  const gap = hosts.length > 1 ? Math.min(COLUMN.gap, (width - gutter) / 4 / hosts.length) : 0;
  const wide = (width - gutter - 16 - gap * (hosts.length - 1)) / used.length;
  const bar = Math.min(COLUMN.most, wide > 4 ? wide - 1 : wide);
  const run = new Map(measured?.map((curve) => [curve.device, curve.peak_bytes]));
  const y = (bytes) => COLUMN.top + COLUMN.height * (1 - bytes / most);
  const shapes = [];
  let x = gutter;
  for (const [host, list] of hosts) {
    const left = x;
    for (const d of list) {
      const device = devices[d];
      let held = 0;
      device.parts.forEach((bytes, part) => {
        const [top, bottom] = [y(held + bytes), y(held)];
        const place = { x: round(x + (wide - bar) / 2), width: round(bar), y: round(top), height: round(bottom - top) };
        if (bytes) shapes.push(element("rect", { ...place, class: `part p${part}`, "data-device": d }));
        held += bytes;
      });
      if (wide > COLUMN.most) {
        const over = { class: "quiet letter", x: round(x + wide / 2), y: round(y(device.memory_bytes)) - 4 };
        shapes.push(element("text", over, formatBytes(device.memory_bytes)));
      }
      if (run.has(d)) {
        const at = round(y(run.get(d)));
        shapes.push(element("line", { class: "measured", x1: round(x), x2: round(x + wide), y1: at, y2: at }));
      }
      if (device.capacity_bytes !== null && device.capacity_bytes <= most) {
        const at = round(y(device.capacity_bytes));
        shapes.push(element("line", { class: "limit", x1: round(x), x2: round(x + wide), y1: at, y2: at }));
      }
      const room = 6.5 * Math.max(...devices.map((_, i) => deviceLetter(i).length));
      const every = Math.max(1, Math.ceil(room / wide));
      if (used.indexOf(d) % every === 0) {
        const middle = { class: "letter", x: round(x + wide / 2), y: COLUMN.top + COLUMN.height + 12 };
        shapes.push(element("text", middle, deviceLetter(d)));
      }
      x += wide;
    }
    const foot = COLUMN.top + COLUMN.height + 26;
    if (host && wide * list.length > 6.5 * host.length) {
      shapes.push(element("text", { class: "quiet letter", x: round((left + x) / 2), y: foot }, escapeHtml(host)));
    }
    x += gap;
  }
  const marks = [0, 0.5, 1].map((share) => {
    const bytes = (share * most) / 1.06;
    const place = { x: gutter - 8, y: round(y(bytes)) + 4, "text-anchor": "end" };
    return element("text", { class: "quiet", ...place }, formatBytes(bytes));
  });
  return [marks.join("") + shapes.join(""), COLUMN.top + COLUMN.height + COLUMN.bottom];
}
