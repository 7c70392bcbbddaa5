// The payload as the page works with it: what it says in few bytes is written out.

/** The document that `packed_text` of packing.py has deflated. */
async function unpack(text) {
  const signs = atob(text);
  const bytes = new Uint8Array(signs.length);
  for (let i = 0; i < signs.length; i += 1) bytes[i] = signs.charCodeAt(i);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = unpacked(...(await new Response(inflated).json()));
  const timelines = Object.entries(data.timelines).map(([run, timeline]) => [run, unpackTimeline(timeline)]);
  return { ...data, timelines: Object.fromEntries(timelines) };
}

/** What `_packed` has made small: each list is a pair of its form and what that has. */
function unpacked(texts, value) {
  if (value === null || typeof value !== "object") return value;
  if (!Array.isArray(value)) return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, unpacked(texts, one)]));
  const [form, held] = value;
  if (form === "steps" || form === "names") {
    let sum = 0;
    return held.map(form === "steps" ? (step) => (sum += step) : (step) => texts[(sum += step)]);
  }
  const parts = held.map((one) => unpacked(texts, one));
  if (form === "list") return parts;
  if (form === "columns") return parts[0].map((_, row) => parts.map((column) => column[row]));
  const [lengths, all] = parts;
  let from = 0;
  return lengths.map((length) => all.slice(from, (from += length)));
}

/** One list for each attribute of the spans; see `packed` in timelines.py. */
function unpackTimeline({ what, spans, labels, ...timeline }) {
  const kinds = spans.what.map((number) => what[number]);
  const lists = { lane: kinds.map(([lane]) => lane), index: kinds.map(([, , index]) => index), micro_batch: spans.micro_batch };
  const label = kinds.map(([, name, , numbered], s) => (numbered ? labels[name] + spans.micro_batch[s] : labels[name]));
  let end_ns = 0;
  const start_s = [];
  const end_s = kinds.map(([lane], s) => {
    const start_ns = (s && lane === kinds[s - 1][0] ? end_ns : 0) + spans.wait_ns[s];
    end_ns = start_ns + spans.takes_ns[s];
    start_s.push(start_ns / 1e9);
    return end_ns / 1e9;
  });
  return { ...timeline, ...lists, label, start_s, end_s };
}
