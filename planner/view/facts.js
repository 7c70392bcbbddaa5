// The figures above the graph and the tables below it.

const FEW_CUTS = 12;

function fillHeader(data) {
  const { summary, devices } = data;
  byId("model").textContent = summary.model;
  const batch = `${plural(summary.batch, "sample")} a micro-batch, ${summary.in_flight} in flight`;
  const used = devices.filter((device) => device.ops > 0).length;
  const on = `${plural(data.ops.name.length, "operator")} on ${used} of ${plural(devices.length, "device")} of ${summary.cluster}`;
  byId("about").textContent = `${on} · planned for ${summary.goal} · ${batch}`;
  const rate = (r) => (r === null ? "unlimited" : digits(r));
  const measured = summary.measured_samples_per_s;
  const difference = measured && summary.samples_per_s ? measured / summary.samples_per_s - 1 : null;
  const percent = difference === null ? "" : `, ${difference < 0 ? "−" : "+"}${formatShare(Math.abs(difference))}`;
  const figures = [
    ["Throughput, predicted", `${rate(summary.samples_per_s)} <small>samples/s</small>`,
      measured ? `measured: ${rate(measured)} samples/s${percent}` : `${formatSeconds(summary.period_s)} from one micro-batch to the next`],
    ["Latency, predicted", withUnit(formatSeconds(summary.latency_s)), "one micro-batch, alone on the devices"],
    ["How good", gapFigure(summary), `${gapWords(summary)} Found by ${escapeHtml(summary.solver)}.`],
    ["Basis of the times", basisFigure(summary.shares), basisWords(summary.shares)],
  ];
  byId("figures").innerHTML = figures.map(([t, d, more]) => `<div><dt>${t}</dt><dd>${d}</dd><dd>${more}</dd></div>`).join("");
  byId("reasons").innerHTML = reasons(data).map(([text, bad]) => `<li${bad ? ' class="bad"' : ""}>${text}</li>`).join("");
}

function withUnit(text) {
  return text.replace(/ (\S+)$/, " <small>$1</small>");
}

const PROVED = 5e-4; // a gap that no reader cares about

function gapFigure({ status, gap }) {
  if (gap < PROVED) return "optimal <small>proved</small>";
  return gap >= 0.9995 ? escapeHtml(status) : `≤ ${formatShare(Math.max(gap, 0.001))} <small>from the best</small>`;
}

function gapWords({ gap }) {
  if (gap < 1e-5) return "No plan can be better.";
  if (gap >= 0.9995) return "Nothing is known about better plans.";
  return `No plan can be more than ${formatShare(Math.max(gap, 0.001))} better.`;
}

function basisFigure(shares) {
  const [[source, share]] = Object.entries(shares).sort((a, b) => b[1] - a[1]);
  return `${formatShare(share)} <small>${source}</small>`;
}

function basisWords(shares) {
  const others = Object.entries(shares).filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]).slice(1);
  if (!others.length) return "of all operators' time, on every device";
  return `of all operators' time; the rest: ${others.map(([s, share]) => `${formatShare(share)} ${s}`).join(", ")}`;
}

/** Why the plan is what it is: [html, whether it is bad news]. */
function reasons(data) {
  const { summary, devices, cuts, flows } = data;
  const name = (d) => `${badge(d)} ${escapeHtml(devices[d].name)}`;
  const found = summary.violations.map((line) => [`The plan breaks a constraint: ${escapeHtml(line)}.`, true]);
  const { bottleneck, alone } = summary;
  const busiest = bottleneck.devices.length ? name(bottleneck.devices[0]) : `the link ${escapeHtml(bottleneck.links.join(", "))}`;
  found.push([`The bottleneck is ${busiest}: ${formatSeconds(bottleneck.seconds)} for each micro-batch.`]);
  if (summary.period_s > 1.02 * bottleneck.seconds) {
    const flight = `${summary.in_flight.toLocaleString("en")} in flight`;
    found.push([`A micro-batch leaves every ${formatSeconds(summary.period_s)}: the difference is waiting, with ${flight}.`]);
  }
  if (alone && alone.speedup !== null) {
    const what = `everything on ${name(alone.device)} (${formatSeconds(alone.seconds)}${alone.fits ? "" : ", more than its memory holds"})`;
    const times = digits(alone.speedup);
    if (devices.filter((d) => d.ops).length === 1) found.push(["All operators share one device: no division was better."]);
    else if (summary.goal === "latency") found.push([`${times} times as fast as ${what}.`]);
    else found.push([`${times} times the throughput of ${what}.`]);
  }
  const bytes = cuts.reduce((sum, [flow]) => sum + flows[flow][3], 0);
  const seconds = cuts.reduce((sum, cut) => sum + cut[3], 0);
  const crossing = cuts.length === 1 ? "1 tensor crosses" : `${cuts.length.toLocaleString("en")} tensors cross`;
  if (cuts.length) found.push([`${crossing} between devices: ${formatBytes(bytes)}, ${formatSeconds(seconds)} for each micro-batch.`]);
  return found;
}

function meter(share, text, device) {
  const width = Math.min(100, share * 100).toFixed(1);
  return `<span class="meter${share > 1 + 1e-9 ? " over" : ""}" style="--d:${deviceColour(device)}"><i style="width:${width}%"></i></span>${text}`;
}

function fillDevices(data) {
  const heads = ["Device", "Kind", "Operators", "Load", "Of the bottleneck", "Memory"];
  const right = [2, 3];
  const cell = (html, i) => `<td${right.includes(i) ? ' class="right"' : ""}>${html}</td>`;
  const rows = data.devices.map((device, d) => {
    const used = device.capacity_bytes ? device.memory_bytes / device.capacity_bytes : 0;
    const cells = [
      `${badge(d)} ${escapeHtml(device.name)}`,
      escapeHtml(device.kind),
      device.ops.toLocaleString("en"),
      formatSeconds(device.load_s),
      meter(device.share, formatShare(device.share), d),
      meter(used, `${formatBytes(device.memory_bytes)} of ${formatBytes(device.capacity_bytes)}`, d),
    ];
    return `<tr>${cells.map(cell).join("")}</tr>`;
  });
  byId("devices").innerHTML = table(heads, right, rows);
}

function table(heads, right, rows) {
  const head = heads.map((text, i) => `<th scope="col"${right.includes(i) ? ' class="right"' : ""}>${text}</th>`).join("");
  return `<thead><tr>${head}</tr></thead><tbody>${rows.join("")}</tbody>`;
}

/** The cuts, largest first; a click calls `onPick` with the operator that writes the tensor. */
function fillCuts(data, onPick) {
  const { cuts, flows, devices } = data;
  const sorted = [...cuts].sort((a, b) => flows[b[0]][3] - flows[a[0]][3] || b[3] - a[3]);
  const name = (d) => `${badge(d)} ${escapeHtml(devices[d].name)}`;
  const show = (count) => {
    const rows = sorted.slice(0, count).map(([flow, src, dst, seconds]) => {
      const [tensor, writer, , bytes] = flows[flow];
      const cells = `<td>${name(src)}</td><td>${name(dst)}</td><td class="right">${formatBytes(bytes)}</td><td class="right">${formatSeconds(seconds)}</td>`;
      return `<tr class="goto" data-op="${writer}"><td class="name" title="${escapeHtml(tensor)}">${escapeHtml(tensor)}</td>${cells}</tr>`;
    });
    if (!rows.length) rows.push('<tr><td colspan="5" class="quiet">None: every tensor stays on its device.</td></tr>');
    byId("cuts").innerHTML = table(["Tensor", "From", "To", "Size", "Time"], [3, 4], rows);
    byId("more-cuts").hidden = sorted.length <= count;
  };
  byId("more-cuts").textContent = `Show all ${sorted.length.toLocaleString("en")}`;
  byId("more-cuts").addEventListener("click", () => show(Infinity));
  byId("cuts").addEventListener("click", (event) => {
    const line = event.target.closest("[data-op]");
    if (line) onPick(Number(line.dataset.op));
  });
  show(FEW_CUTS);
}

function timelineWords(data) {
  const { predicted, measured } = data.timelines;
  const one = (t) => `${plural(t.micro_batches, "micro-batch").replace("batchs", "batches")} in ${formatSeconds(t.makespan_s)}`;
  const idle = `, devices idle ${formatShare(predicted.bubble)} of it`;
  return measured ? `predicted: ${one(predicted)}${idle}; measured: ${one(measured)}` : `${one(predicted)}${idle}, predicted`;
}
