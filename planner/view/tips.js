// What the page says about a node, a net or a span when the reader points at it.

const MOST_ROWS = 8;

function describeNode(network, id) {
  if (!network.isOp(id) && !network.isGroup(id)) return `${endWord(network, id)} ${network.label(id)}`;
  const devices = network.data.devices;
  const where = network.split(id).map(([device, share]) => {
    const name = `${deviceLetter(device)} ${devices[device].name}`;
    return share < 0.9995 ? `${name} ${formatShare(share)}` : name;
  });
  const what = network.isOp(id) ? shortKind(network.kind(id)) : plural(network.opsIn[id].length, "operator");
  return `${network.label(id)}, ${what}, on ${where.join(", ")}, ${formatSeconds(network.totalSeconds(id))}`;
}

function endWord(network, id) {
  return network.end(id).input ? "input" : "output";
}

function factRow(head, html, attributes = "") {
  return `<tr${attributes}><td>${head}</td><td>${html}</td></tr>`;
}

function nodeTip(network, id) {
  if (network.isOp(id)) return opTip(network, id);
  if (network.isGroup(id)) return groupTip(network, id);
  const end = network.end(id);
  const about = `${endWord(network, id)} of the network, ${escapeHtml(end.shape)}`;
  return `<h3>${escapeHtml(end.name)}</h3><p class="quiet">${about}</p>`;
}

function opTip(network, op) {
  const { ops, devices } = network.data;
  const shapes = (list) => list.slice(0, MOST_ROWS).map((i) => escapeHtml(ops.shapes[i])).join("<br>") + rest(list);
  const bytes = ops.bytes[op] ? `<br><span class="quiet">${formatBytes(ops.bytes[op])} stay on the device</span>` : "";
  const rows = [
    ops.modules[ops.module[op]] && factRow("module", escapeHtml(ops.modules[ops.module[op]])),
    ops.reads[op].length && factRow("reads", shapes(ops.reads[op])),
    ops.state[op].length && factRow("parameters", shapes(ops.state[op]) + bytes),
    ops.writes[op].length && factRow("writes", shapes(ops.writes[op])),
    factRow("<b>Why not there?</b>", ""),
    ...costRows(network, op),
  ];
  const homes = network.homes(op);
  const title = `<h3>${homes.map(badge).join("")} ${escapeHtml(ops.name[op])}</h3>`;
  const names = homes.map((d) => devices[d].name).join(", in turns with ");
  const where = `<p class="quiet">${escapeHtml(network.kind(op))} on ${escapeHtml(names)}</p>`;
  return `${title}${where}<table>${rows.filter(Boolean).join("")}</table>`;
}

function rest(list) {
  return list.length > MOST_ROWS ? `<br><span class="quiet">and ${list.length - MOST_ROWS} more</span>` : "";
}

/** Why not there? The time on each device, and what the device would do then or what forbids it; alike ones together. */
function costRows(network, op) {
  const { ops, devices } = network.data;
  const sources = { m: "measured", l: "learned", e: "estimated", r: "estimated", g: "given" };
  const verdicts = devices.map((_, d) => verdict(network, op, d));
  const alike = groupBy(devices.map((_, d) => d), (d) => `${devices[d].cost} ${verdicts[d][0]}`);
  return [...alike].map(([, list]) => {
    const column = devices[list[0]].cost;
    const seconds = ops.cost_s[column][op];
    const here = verdicts[list[0]][0] === "here";
    const source = seconds === null ? "" : ` <span class="quiet">${sources[ops.source[column][op]]}</span>`;
    const busy = list.map((d) => verdicts[d][1]).filter((s) => s !== null);
    const then = busy.length ? ` ${valueRange(busy, formatSeconds)}` : "";
    const names = list.length > 6 ? escapeHtml(deviceRange(devices, list)) : list.map((d) => badge(d)).join(" ");
    const why = here ? " ◂ here" : ` <span class="quiet">·</span> ${escapeHtml(verdicts[list[0]][0])}${then}`;
    const words = seconds === null ? "" : why;
    return factRow(names, `${formatSeconds(seconds)}${source}${words}`, here ? ' class="here"' : "");
  });
}

/** [words, seconds that the device would be busy or nothing] for an operator on a device, transfers left out. */
function verdict(network, op, d) {
  const { ops, devices, forbidden, unlinked, summary } = network.data;
  const device = devices[d];
  const seconds = network.secondsOn(op, d);
  if (network.homes(op).includes(d)) return ["here", null];
  if (seconds === null) return ["cannot run", null];
  if (forbidden.some(([which, where]) => which === op && where.includes(d))) return ["a constraint forbids it", null];
  const over = device.memory_bytes + ops.bytes[op] - (device.capacity_bytes ?? Infinity);
  if (over > 0) return [`no room, ${formatBytes(over)} too much`, null];
  const cut = (a, b) => a !== b && unlinked.includes(a * devices.length + b);
  const near = unlinked.length ? neighbours(network, op) : [];
  const apart = near.find((other) => cut(d, other) || cut(other, d));
  if (apart !== undefined) return [`no link to ${devices[apart].name}`, null];
  const load = device.load_s + seconds / network.homes(op).length;
  return [load > summary.bottleneck.seconds * (1 + 1e-6) ? "would be the bottleneck:" : "would be busy", load];
}

/** The devices that an operator exchanges tensors with. */
function neighbours(network, op) {
  const found = network.data.flows.flatMap(([, writer, readers]) => {
    if (writer === op) return readers;
    return readers.includes(op) ? [writer] : [];
  });
  return [...new Set(found.flatMap((other) => network.homes(other)))];
}

function groupTip(network, id) {
  const { ops, cuts, flows, devices } = network.data;
  const inside = new Set(network.opsIn[id]);
  const inner = cuts.filter(([flow, , dst]) => {
    const [, writer, readers] = flows[flow];
    return inside.has(writer) && readers.some((r) => network.homes(r).includes(dst) && inside.has(r));
  });
  const seconds = inner.reduce((sum, cut) => sum + cut[3], 0);
  const total = network.totalSeconds(id);
  const bytes = network.opsIn[id].reduce((sum, op) => sum + ops.bytes[op], 0);
  const rows = network.split(id).map(([device, share]) => {
    const count = network.opsIn[id].filter((op) => network.homes(op).includes(device)).length;
    const name = `${badge(device)} ${escapeHtml(devices[device].name)}`;
    return factRow(name, `${plural(count, "operator")}, ${formatSeconds(total * (total > 0 ? share : 0))}`);
  });
  const path = network.module(id) ? `module ${escapeHtml(network.module(id))}, ` : "";
  const first = network.data.ops.name[network.opsIn[id][0]];
  const last = network.data.ops.name[network.opsIn[id].at(-1)];
  if (bytes) rows.push(factRow("parameters", formatBytes(bytes)));
  if (inner.length) rows.push(factRow("cuts inside", `${inner.length}, ${formatSeconds(seconds)}`));
  const head = `<h3>${escapeHtml(network.label(id))}</h3><p class="quiet">${path}${plural(inside.size, "operator")}`;
  return `${head}, ${escapeHtml(first)} to ${escapeHtml(last)}</p><table>${rows.join("")}</table>`;
}

/** What leaves a visible node. */
function netTip(scene, net) {
  const { network } = scene;
  const { flows, cuts } = network.data;
  const edges = scene.edgesFrom.get(net) ?? [];
  const from = `<h3>from ${escapeHtml(network.label(net))}</h3>`;
  const cutIndices = [...new Set(edges.flatMap((edge) => [...edge.cuts]))];
  const sent = new Set(cutIndices.map((i) => cuts[i][0]));
  const local = [...new Set(edges.flatMap((edge) => [...edge.flows]))].filter((flow) => !sent.has(flow));
  const lines = cutIndices.map((i) => {
    const [flow, src, dst, seconds] = cuts[i];
    const cost = `<b>${formatBytes(flows[flow][3])}, ${formatSeconds(seconds)}</b>`;
    return factRow(`${badge(src)} → ${badge(dst)}`, `${cost}<br>${tensorText(network.data, flows[flow])}`);
  });
  for (const flow of local) {
    lines.push(factRow(network.homes(flows[flow][1]).map(badge).join(""), `${formatBytes(flows[flow][3])}, stays here<br>${tensorText(network.data, flows[flow])}`));
  }
  if (!network.isOp(net) && !network.isGroup(net)) return nodeTip(network, net);
  return `${from}<table>${lines.slice(0, MOST_ROWS).join("")}</table>${rest(lines)}`;
}

function tensorText({ ops }, [name, writer, , , output]) {
  return `<span class="quiet">${escapeHtml(name)}, ${escapeHtml(ops.shapes[ops.writes[writer][output]])}</span>`;
}

/** Shows a text beside a rectangle of the window: where there is room, and else as far outside of it as there is. */
function showTip(html, rect) {
  const tip = byId("tip");
  tip.innerHTML = html;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const inside = (low, size, room) => Math.max(8, Math.min(low, room - size - 8));
  const [across, down] = [inside(rect.left, width, innerWidth), inside(rect.top, height, innerHeight)];
  const places = [
    [rect.right + 12, down],
    [rect.left - width - 12, down],
    [across, rect.bottom + 12],
    [across, rect.top - height - 12],
  ];
  const fits = ([x, y]) => x >= 8 && y >= 8 && x + width <= innerWidth - 8 && y + height <= innerHeight - 8;
  const [x, y] = places.find(fits) ?? [inside(rect.right + 12, width, innerWidth), inside(rect.bottom + 12, height, innerHeight)];
  tip.style.left = `${x}px`;
  tip.style.top = `${y}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function pointRect(event) {
  return { left: event.clientX, right: event.clientX, top: event.clientY + 8, bottom: event.clientY };
}
