// The figures above the graph and the tables below it.

const FEW_CUTS = 12; // that are listed at first; with many devices a third of them
const FEW_BROKEN = 3;
const FEW_MEASURED = 4; // whose measured time is told; with many devices one
const NO_BOUND = 0.9995; // a gap that says nothing

function fillHeader(data) {
  const { summary, devices, ops } = data;
  const used = devices.filter((device) => device.ops > 0).length;
  const unused = used < devices.length ? ` (${devices.length - used} of ${devices.length} unused)` : "";
  byId("model").textContent = summary.model;
  byId("about").textContent = [
    ...summary.holds,
    `${plural(ops.name.length, "operator")} on ${summary.division}${unused} of ${summary.cluster}`,
    `planned for ${summary.goal}`,
    summary.generation ? sequencesOf(summary) : `${plural(summary.batch, "sample")} a micro-batch, ${inTurn(summary)}`,
  ].join(" · ");
  byId("figures").innerHTML = figures(data)
    .map(([name, figure, more]) => `<div><dt>${name}</dt><dd>${figure}</dd><dd>${more}</dd></div>`)
    .join("");
  const broken = summary.violations.slice(0, FEW_BROKEN).map((line) => {
    return element("li", { class: "bad" }, `The plan breaks a constraint: ${escapeHtml(line)}.`);
  });
  const more = summary.violations.length - FEW_BROKEN;
  if (more > 0) broken.push(element("li", { class: "bad" }, `And ${plural(more, "constraint")} more.`));
  byId("reasons").innerHTML = [...broken, ...reasons(data).map((html) => `<li>${html}</li>`)].join("");
}

/** How micro-batches follow each other. */
function inTurn({ step, in_flight }) {
  return step ? `${grouped(step[0])} micro-batches a step by ${step[1]}` : `${in_flight} in flight`;
}

/** The sequences of a language model that generates, and the groups that one pass advances. */
function sequencesOf({ generation, batch, in_flight }) {
  const free = in_flight * batch - generation.sequences;
  const groups = in_flight > 1 || free ? ` in ${plural(in_flight, "group")} of ${free ? "up to " : ""}${batch}` : "";
  return `${plural(generation.sequences, "sequence")}${groups}, prompts of ${plural(generation.prompt, "token")} and ${grouped(generation.output)} after them`;
}

/** The figures of a language model that generates, as `figures` has them: tokens a second first. */
function tokenFigures(summary) {
  const rate = (r) => (r === null ? "unlimited" : digits(r));
  const { generation } = summary;
  const runs = (text, [low, high]) => `80 % of runs ${text(low)} – ${text(high)}`;
  return [
    [
      "Tokens of all, predicted",
      `${rate(generation.tokens_per_s)} <small>tokens/s</small>`,
      `${runs(rate, generation.range)}; with the time for the prompts; caches of ${formatBytes(generation.cache_bytes)}`,
    ],
    [
      "One sequence, predicted",
      `${rate(generation.one)} <small>tokens/s</small>`,
      `${runs(rate, generation.one_range)}; with the time for its prompt; its first token after ${formatSeconds(generation.first_s)} (${runs(formatSeconds, generation.first_range)})`,
    ],
  ];
}

/** What a pass of each phase takes, as HTML. */
function phases({ phases }) {
  return phases.map(([tokens, length, prompt, output, alone, period]) => {
    const counts = [[prompt, "for the prompt"], [output, "after it"]].filter(([count]) => count);
    const passes = counts.map(([count, what]) => `${grouped(count)} ${what}`).join(" and ");
    const read = tokens ? `${plural(tokens, "token")} over` : "the encoder over";
    return `A pass of ${read} ${grouped(length)} positions takes ${formatSeconds(alone)} alone, and one leaves every ${formatSeconds(period)} with all sequences: ${passes}.`;
  });
}

/** [name, figure, what more there is to say], as HTML. */
function figures({ summary, devices }) {
  const rate = (r) => (r === null ? "unlimited" : digits(r));
  const [rates, latencies] = summary.ranges; // where 80 % of runs are expected
  const more = (goal, text, shown, [low, high], what) => {
    const { of, measured, predicted } = summary.run ?? {};
    const run = of === goal ? [`measured: ${text(measured)}`] : [];
    if (of === goal && text(predicted) !== text(shown)) run.push(`predicted for that run: ${text(predicted)}`);
    return [`80 % of runs ${text(low)} – ${text(high)}`, ...run, what].join("; ");
  };
  const tokens = summary.language ? `${rate(summary.language[0])} ${summary.language[2]}, MFU ${formatShare(summary.language[1])} of full attention; ` : "";
  const every = `${tokens}a micro-batch every ${formatSeconds(summary.period_s)}`;
  const whole = summary.step ? "all micro-batches, forward and backward" : "one micro-batch, alone on the devices";
  const speed = summary.generation ? tokenFigures(summary) : [
    [
      "Throughput, predicted",
      `${rate(summary.samples_per_s)} <small>samples/s</small>`,
      more("throughput", rate, summary.samples_per_s, rates, every),
    ],
    [
      `${summary.step ? "Step" : "Latency"}, predicted`,
      formatSeconds(summary.latency_s).replace(/ (\S+)$/, " <small>$1</small>"),
      more("latency", formatSeconds, summary.latency_s, latencies, whole),
    ],
  ];
  return [
    ...speed,
    ["× one device", ...timesOneDevice(summary, devices)],
    ["How good", gapFigure(summary), `${gapWords(summary)} ${summary.solver === "by hand" ? "Placed" : "Found by"} ${escapeHtml(summary.solver)}.`],
  ];
}

/** How much faster than everything on the best single device, and what that takes. */
function timesOneDevice({ alone, step }, devices) {
  if (!alone) return ["–", "No device can run all operators."];
  const name = deviceName(devices, alone.device);
  const what = `${name} ${alone.fits ? "alone takes" : "would take"} ${formatSeconds(alone.seconds)}${step ? " a step" : ""}`;
  if (!alone.fits) return ["–", `No device holds all of it; ${what} if its memory did.`];
  return alone.speedup === null ? ["–", what] : [`${digits(alone.speedup)} <small>×</small>`, what];
}

function gapFigure({ status, gap }) {
  if (status === "optimal") return "optimal <small>proved</small>";
  return gap >= NO_BOUND ? escapeHtml(status) : `≤ ${atMost(gap)} <small>from the best</small>`;
}

function gapWords({ status, gap, step }) {
  const plans = step ? "No plan for these steps" : "No plan";
  if (status === "optimal") return `${plans} can be better.`;
  if (gap >= NO_BOUND) return "Nothing is known about better plans.";
  return `${plans} can be more than ${atMost(gap)} better.`;
}

/** A bound as a share, rounded up: what is said is then still true. */
function atMost(gap) {
  const steps = gap < 0.1 ? 1000 : 100; // as many as formatShare shows
  return formatShare(Math.max(1, Math.ceil(gap * steps - 1e-9)) / steps);
}

/** Where the times come from. */
function basis(shares) {
  const sorted = Object.entries(shares).filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]);
  return `The operators' time is ${sorted.map(([source, share]) => `${formatShare(share)} ${source}`).join(", ")}.`;
}

/** Where the time of each device went in the measured run, as HTML. */
function usage(rows, few) {
  const reasons = ["waiting for input", "waiting for a micro-batch", "between stages"];
  return rows.slice(0, few).map(([name, busy, ...idle]) => {
    const period = busy + idle.reduce((sum, s) => sum + s, 0);
    const parts = idle.map((s, i) => [s, `${formatShare(s / period)} ${reasons[i]}`]).filter(([s]) => s >= 0.005 * period);
    const rest = parts.length ? `, ${parts.map(([, words]) => words).join(", ")}` : "";
    return `Measured: ${escapeHtml(name)} computes ${formatShare(busy / period)} of ${formatSeconds(period)}${rest}.`;
  });
}

/** Why the plan is what it is, as HTML. */
function reasons(data) {
  const { summary, devices, cuts, flows } = data;
  const { bottleneck, period_s } = summary;
  const name = (d) => deviceName(devices, d);
  const busiest = bottleneck.devices.length
    ? name(bottleneck.devices[0])
    : `the link ${escapeHtml(bottleneck.links.slice(0, MOST_NAMES).join(", "))}${alsoLinks(bottleneck.links)}`;
  const found = summary.generation ? [...phases(summary.generation), "Below, a micro-batch is a pass of one group, in the mean of all passes."] : [];
  found.push(`The bottleneck is ${busiest}: ${formatSeconds(bottleneck.seconds)} for each micro-batch.`);
  if (period_s > 1.02 * bottleneck.seconds) {
    const flight = summary.step ? "by the schedule" : `with ${inTurn(summary)}`;
    found.push(`A micro-batch leaves every ${formatSeconds(period_s)}: the difference is waiting, ${flight}.`);
  }
  if (devices.filter((device) => device.ops).length === 1) {
    if (devices.length > 1) found.push("All operators share one device: no division found was better.");
  }
  if (summary.copies > 1 && !cuts.length) {
    found.push("Each copy of the network is on one device, so nothing is sent between devices.");
  }
  found.push(...usage(summary.run?.usage ?? [], hasMany(data) ? 1 : FEW_MEASURED));
  if (cuts.length) {
    const bytes = cuts.reduce((sum, [flow, , , , share]) => sum + flows[flow][3] * share, 0);
    const seconds = cuts.reduce((sum, [, , , each, share]) => sum + each * share, 0);
    const crossing = cuts.length === 1 ? "1 tensor crosses" : `${grouped(cuts.length)} tensors cross`;
    const cost = `${formatBytes(bytes)}, ${formatSeconds(seconds)} for each micro-batch`;
    found.push(`${crossing} between devices: ${cost}.`);
  }
  if (summary.price) found.push(`All devices together cost ${escapeHtml(summary.price)}.`);
  if (Object.values(summary.shares).some((share) => share > 0)) found.push(basis(summary.shares));
  return found;
}

function alsoLinks({ length }) {
  return length > MOST_NAMES ? ` and ${length - MOST_NAMES} more that share its channel` : "";
}

function deviceName(devices, d) {
  return `${badge(d)} ${escapeHtml(devices[d].name)}`;
}

/** A table of [[head, whether it is a column of numbers], ...] and rows of cells; a single cell fills its row. */
function table(heads, rows) {
  const side = (numbers) => (numbers ? { class: "right" } : {});
  const head = heads.map(([text, numbers]) => element("th", { scope: "col", ...side(numbers) }, text));
  const span = (cells) => (cells.length === 1 ? { colspan: heads.length } : {});
  const cell = (cells) => (html, i) => element("td", { ...side(heads[i][1]), ...span(cells) }, html);
  const body = rows.map((cells) => `<tr>${cells.map(cell(cells)).join("")}</tr>`);
  return `<thead><tr>${head.join("")}</tr></thead><tbody>${body.join("")}</tbody>`;
}

function meter(share, text, device) {
  const bar = element("i", { style: `width:${Math.min(100, share * 100).toFixed(1)}%` });
  const kind = share > 1 + 1e-9 ? "meter over" : "meter";
  return element("span", { class: kind, style: deviceStyle(device) }, bar) + text;
}

/** The cuts, largest first; a click calls `onPick` with the operator that writes the tensor. */
function fillCuts(data, onPick) {
  const { cuts, flows, devices } = data;
  const sorted = [...cuts].sort((a, b) => flows[b[0]][3] - flows[a[0]][3] || b[3] - a[3]);
  const heads = [["Tensor"], ["From"], ["To"], ["Size", true], ["Time", true]];
  const show = (count) => {
    const rows = sorted.slice(0, count).map(([flow, src, dst, seconds]) => {
      const [tensor, writer, , bytes] = flows[flow];
      const attributes = { type: "button", class: "link", "data-op": writer, title: "Show where it is written" };
      const name = element("button", attributes, escapeHtml(tensor));
      return [name, deviceName(devices, src), deviceName(devices, dst), formatBytes(bytes), formatSeconds(seconds)];
    });
    if (!rows.length) rows.push(["None: every tensor stays on its device."]);
    byId("cuts").innerHTML = table(heads, rows);
    byId("more-cuts").hidden = sorted.length <= count;
  };
  byId("more-cuts").textContent = `Show all ${grouped(sorted.length)}`;
  byId("more-cuts").addEventListener("click", () => show(Infinity));
  byId("cuts").addEventListener("click", (event) => {
    const button = event.target.closest("[data-op]");
    if (button) onPick(Number(button.dataset.op));
  });
  show(hasMany(data) ? FEW_CUTS / 3 : FEW_CUTS);
}

/** The device that is nearest to its limit. */
function memoryWords(data) {
  const { memory: { predicted, measured }, devices } = data;
  const used = (curve) => (devices[curve.device].capacity_bytes ? curve.peak_bytes / devices[curve.device].capacity_bytes : 0);
  const fullest = predicted.reduce((a, b) => (used(b) > used(a) ? b : a));
  const { name, capacity_bytes, memory_bytes } = devices[fullest.device];
  const most = `${formatBytes(fullest.peak_bytes)} of ${formatBytes(capacity_bytes)} at most on ${name}`;
  const kept = memory_bytes > 1.001 * fullest.peak_bytes ? ` (the plan keeps ${formatBytes(memory_bytes)} for it)` : "";
  return `predicted: ${most}${kept}${measured ? "; dashed: the measured run" : ""}`;
}

function timelineWords({ timelines: { predicted, measured }, summary: { step, filled }, devices }) {
  const count = (n) => `${grouped(n)} micro-batch${n === 1 ? "" : "es"}`;
  const one = (t) => `${count(t.micro_batches)} in ${formatSeconds(t.makespan_s)}`;
  const used = devices.filter((device) => device.ops);
  const share = used.reduce((sum, device) => sum + device.idle, 0) / Math.max(1, used.length);
  const idle = `; ${filled ? "once filled" : "never all at work"}, devices idle ${formatShare(share)}${step ? "; backward passes paler" : ""}`;
  return measured ? `predicted: ${one(predicted)}${idle}; measured: ${one(measured)}` : `${one(predicted)}${idle}, predicted`;
}
