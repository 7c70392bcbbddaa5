// The payload as the page works with it: what it says in few bytes is written out.

function unpack(data) {
  const timelines = Object.entries(data.timelines).map(([run, timeline]) => [run, unpackTimeline(timeline)]);
  return { ...data, timelines: Object.fromEntries(timelines) };
}

/** One list for each attribute of the spans; see `packed` in payload.py. */
function unpackTimeline({ what, takes_ns, spans, labels, ...timeline }) {
  const lists = { lane: [], label: [], index: [], micro_batch: [], start_s: [], end_s: [] };
  let start_ns = 0;
  for (let i = 0; i < spans.length; i += 4) {
    const [lane, label, index, numbered] = what[spans[i]];
    lists.lane.push(lane);
    lists.label.push(numbered ? labels[label] + spans[i + 1] : labels[label]);
    lists.index.push(index);
    lists.micro_batch.push(spans[i + 1]);
    start_ns += spans[i + 2];
    lists.start_s.push(start_ns / 1e9);
    lists.end_s.push((start_ns + takes_ns[spans[i + 3]]) / 1e9);
  }
  return { ...timeline, ...lists };
}
