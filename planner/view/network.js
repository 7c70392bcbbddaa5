// The network as a tree of groups that open and close, and the edges between what is visible.
//
// Everything drawn has a number: operators 0..nOps-1, then groups, then the network's inputs and outputs ("ends").
// The members of an open ribbon are cells: equal groups in a row. Closed cells one after the other are one node, a
// strip, which has the number of its first cell.

const TOP = -1; // the parent of what is in no group
const READABLE = 60; // so many nodes are taken in at a glance
const EASY = 40; // so many leave room to open what devices share
const FULL_OF_MAIN = 80; // so many are still shown if that opens what takes most of the time
const FEW = 12;
const MANY = 160;
const LEAST_MIXED = 0.03;
const LEAST_OPEN = 0.01; // a group that takes a smaller share of the time stays closed at first,
const SURELY_OPEN = 0.05; // and one below this share
const LEAST_MEMBER = 0.005; // whose members take less than this share each

class Network {
  constructor(data) {
    this.data = data;
    this.nOps = data.ops.name.length;
    const { inputs, outputs } = data.ends;
    this.firstGroup = this.nOps;
    this.firstEnd = this.nOps + data.groups.length;
    this.size = this.firstEnd + inputs.length + outputs.length;
    this.ends = [
      ...inputs.map(([name, shape, ops]) => ({ name, shape, ops, input: true })),
      ...outputs.map(([name, shape, op]) => ({ name, shape, ops: [op], input: false })),
    ];
    this.open = new Set();
    this.strips = new Map(); // cells by the number of their strip
    this.stripOf = new Map(); // number of the strip by cell
    this.splits = new Map();
    choosePalette(data);
    this.#hang();
    this.#gather();
    this.cutWithin = new Map();
    this.cutBefore = new Map();
    this.#markCuts();
  }

  /** "ribbon", "capsule" or nothing. */
  groupKind(id) {
    return this.isGroup(id) ? this.data.groups[id - this.firstGroup][3] : "";
  }

  isCell(id) {
    return this.groupKind(this.parent[id]) === "ribbon";
  }

  /** The nodes and open groups of an open group, or of the top. */
  members(group) {
    const children = this.children.get(group);
    if (this.groupKind(group) !== "ribbon") return children;
    const members = [];
    let strip = null;
    for (const cell of children) {
      if (this.open.has(cell)) {
        members.push(cell);
        strip = null;
      } else if (strip) {
        strip.push(cell);
        this.stripOf.set(cell, strip[0]);
      } else {
        strip = [cell];
        this.strips.set(cell, strip);
        this.stripOf.set(cell, cell);
        members.push(cell);
      }
    }
    return members;
  }

  /** Cuts the open ribbons into strips anew. */
  #cutStrips() {
    this.strips = new Map();
    this.stripOf = new Map();
    for (const id of this.open) if (this.groupKind(id) === "ribbon") this.members(id);
  }

  #hang() {
    const { ops, groups } = this.data;
    const up = (parent) => (parent < 0 ? TOP : this.firstGroup + parent);
    this.parent = [...ops.parent.map(up), ...groups.map((group) => up(group[2])), ...this.ends.map(() => TOP)];
    this.children = new Map([[TOP, []]]);
    for (let id = this.firstGroup; id < this.firstEnd; id += 1) this.children.set(id, []);
    this.parent.forEach((parent, id) => this.children.get(parent).push(id));
    this.depth = new Array(this.size).fill(0);
    for (let id = this.firstGroup; id < this.firstEnd; id += 1) {
      this.depth[id] = this.parent[id] === TOP ? 0 : this.depth[this.parent[id]] + 1;
    }
    this.maxDepth = this.depth.reduce((a, b) => Math.max(a, b), 0) + (this.data.groups.length ? 1 : 0);
  }

  /** Operators below each number, and the seconds that they take by device. */
  #gather() {
    const { ops, devices } = this.data;
    this.opsIn = Array.from({ length: this.size }, (_, id) => (id < this.nOps ? [id] : []));
    for (let op = 0; op < this.nOps; op += 1) {
      for (let id = this.parent[op]; id !== TOP; id = this.parent[id]) this.opsIn[id].push(op);
    }
    const homes = ops.homes ?? ops.device.map((device) => [device]); // several with several copies of the network
    this.homes = (op) => homes[op];
    const many = devices.length > FEW_DEVICES; // of many, the colours of the first copy's devices are those of all
    this.shownOn = (op) => (many ? [ops.device[op]] : homes[op]);
    this.secondsOn = (op, device) => ops.cost_s[devices[device].cost][op];
    this.seconds = (op) => homes[op].reduce((sum, device) => sum + this.secondsOn(op, device), 0) / homes[op].length;
    this.order = this.opsIn.map((list) => list[0]);
    this.ends.forEach((end, i) => {
      this.order[this.firstEnd + i] = end.input ? -1 : this.nOps;
    });
  }

  isOp(id) {
    return id < this.nOps;
  }

  isGroup(id) {
    return id >= this.firstGroup && id < this.firstEnd;
  }

  end(id) {
    return this.ends[id - this.firstEnd];
  }

  label(id) {
    if (this.isOp(id)) return this.data.ops.label[id];
    return this.isGroup(id) ? this.data.groups[id - this.firstGroup][0] : this.end(id).name;
  }

  kind(op) {
    return this.data.ops.kinds[this.data.ops.kind[op]];
  }

  module(id) {
    const { ops, groups } = this.data;
    return this.isOp(id) ? ops.modules[ops.module[id]] : groups[id - this.firstGroup][1];
  }

  /** [[device, share], ...] of the time below a number, in the order of the devices; by count if nothing takes time. */
  split(id) {
    if (!this.splits.has(id)) this.splits.set(id, this.#splitOf(id));
    return this.splits.get(id);
  }

  #splitOf(id) {
    const seconds = new Map();
    const count = new Map();
    for (const op of this.opsIn[id]) {
      const homes = this.shownOn(op);
      for (const device of homes) {
        seconds.set(device, (seconds.get(device) ?? 0) + this.secondsOn(op, device) / homes.length);
        count.set(device, (count.get(device) ?? 0) + 1 / homes.length);
      }
    }
    const total = [...seconds.values()].reduce((a, b) => a + b, 0);
    const weight = total > 0 ? seconds : count;
    const sum = total > 0 ? total : this.opsIn[id].length;
    return [...weight].map(([d, w]) => [d, w / sum]).sort((a, b) => a[0] - b[0]);
  }

  totalSeconds(id) {
    return this.opsIn[id].reduce((sum, op) => sum + this.seconds(op), 0);
  }

  /** Opens exactly the groups of the outer levels. */
  openTo(depth, wanted = () => true) {
    this.open.clear();
    for (let id = this.firstGroup; id < this.firstEnd; id += 1) {
      const inside = this.parent[id] === TOP || this.open.has(this.parent[id]);
      if (inside && this.depth[id] < depth && wanted(id)) this.open.add(id);
    }
  }

  /** The cells that read what another device sends, with its bytes: one that holds a part of the same cell, or of another one. */
  #markCuts() {
    const { cuts, flows } = this.data;
    const cellsAround = (op) => {
      const cells = [];
      for (let id = this.parent[op]; id !== TOP; id = this.parent[id]) if (this.isCell(id)) cells.push(id);
      return cells;
    };
    for (const [flow, , dst] of cuts) {
      const [, writer, readers] = flows[flow];
      const from = cellsAround(writer);
      const read = from.length ? readers.filter((op) => this.homes(op).includes(dst)).flatMap(cellsAround) : [];
      for (const cell of new Set(read)) {
        const sent = (marked) => marked.set(cell, (marked.get(cell) ?? 0) + flows[flow][3]);
        if (from.includes(cell)) sent(this.cutWithin);
        else if (from.some((other) => this.parent[other] === this.parent[cell])) sent(this.cutBefore);
      }
    }
  }

  /** How many nodes are visible. */
  visibleCount() {
    this.#cutStrips();
    let count = 0;
    const visit = (id) => {
      if (this.open.has(id)) this.members(id).forEach(visit);
      else count += 1;
    };
    this.children.get(TOP).forEach(visit);
    return count;
  }

  /**
   * Opens as much as can be taken in at a glance: whole levels of what takes time first, then what takes most of it and
   * what devices share. Ribbons open into strips; capsules stay closed.
   */
  openReadable() {
    const seconds = new Map();
    for (let id = this.firstGroup; id < this.firstEnd; id += 1) seconds.set(id, this.totalSeconds(id));
    const total = this.children.get(TOP).reduce((sum, id) => sum + this.totalSeconds(id), 0);
    const worth = (id) => {
      const share = seconds.get(id) / total;
      const enough = share >= (share < LEAST_MEMBER * this.children.get(id).length ? SURELY_OPEN : LEAST_OPEN);
      const some = total === 0 || enough || this.data.groups.length < FEW;
      return some && this.groupKind(id) !== "capsule" && !this.isCell(id);
    };
    const countAt = (depth) => {
      this.openTo(depth, worth);
      return this.visibleCount();
    };
    let depth = 0;
    while (depth < this.maxDepth && countAt(depth + 1) <= READABLE) depth += 1;
    if (depth < this.maxDepth && countAt(depth) < FEW && countAt(depth + 1) <= MANY) depth += 1;
    let count = countAt(depth);
    const mixed = new Map(); // closed groups that can be opened, by the share that is not on their main device
    const offer = (id) => {
      const ribbon = this.groupKind(id) === "ribbon";
      if (!this.isGroup(id) || (!ribbon && !worth(id))) return;
      const rest = ribbon ? 1 : 1 - Math.max(...this.split(id).map(([, share]) => share));
      if (rest >= LEAST_MIXED) mixed.set(id, rest);
    };
    for (let id = this.firstGroup; id < this.firstEnd; id += 1) {
      if (!this.open.has(id) && (this.parent[id] === TOP || this.open.has(this.parent[id]))) offer(id);
    }
    while (mixed.size) {
      const [id] = [...mixed].reduce((a, b) => (b[1] > a[1] ? b : a));
      mixed.delete(id);
      const more = this.groupKind(id) === "ribbon" ? 0 : this.children.get(id).length - 1;
      const main = seconds.get(id) > total / 4;
      if (count + more > (main ? FULL_OF_MAIN : EASY)) continue;
      this.open.add(id);
      count += more;
      this.children.get(id).forEach(offer);
    }
  }

  toggle(id) {
    if (!this.open.delete(id)) this.open.add(id);
  }

  /** Opens all groups around a number. */
  reveal(id) {
    for (let up = this.parent[id]; up !== TOP; up = this.parent[up]) this.open.add(up);
  }

  /** What stands for a number now: itself, the outermost closed group around it, or the strip of that. */
  visible(id) {
    let shown = id;
    for (let up = this.parent[id]; up !== TOP; up = this.parent[up]) if (!this.open.has(up)) shown = up;
    return this.stripOf.get(shown) ?? shown;
  }

  /**
   * The edges between visible nodes: [{from, to, flows, cuts}], where flows and cuts are indices into the data.
   * A cut is listed on each edge to a reader that it serves.
   */
  edges() {
    const { flows, cuts } = this.data;
    this.#cutStrips();
    const shown = Array.from({ length: this.nOps }, (_, op) => this.visible(op));
    const cutOf = new Map(cuts.map(([flow, , dst], i) => [flow * this.data.devices.length + dst, i]));
    const edges = new Map();
    const edge = (from, to) => {
      const key = from * this.size + to;
      if (!edges.has(key)) edges.set(key, { from, to, flows: new Set(), cuts: new Set() });
      return edges.get(key);
    };
    flows.forEach(([, writer, readers], f) => {
      for (const reader of readers) {
        if (shown[reader] === shown[writer]) continue;
        const found = edge(shown[writer], shown[reader]);
        found.flows.add(f);
        for (const device of this.homes(reader)) {
          const cut = cutOf.get(f * this.data.devices.length + device);
          if (cut !== undefined) found.cuts.add(cut);
        }
      }
    });
    this.ends.forEach((end, i) => {
      for (const op of end.ops) {
        if (end.input) edge(this.firstEnd + i, shown[op]);
        else edge(shown[op], this.firstEnd + i);
      }
    });
    return [...edges.values()];
  }

  /** Operators whose name, kind or module contains a text. */
  find(text) {
    const { ops } = this.data;
    const wanted = text.trim().toLowerCase();
    const hit = (s) => s.toLowerCase().includes(wanted);
    const kinds = ops.kinds.map(hit);
    const modules = ops.modules.map(hit);
    const found = [];
    for (let op = 0; op < this.nOps; op += 1) {
      if (kinds[ops.kind[op]] || modules[ops.module[op]] || hit(ops.name[op])) found.push(op);
    }
    return found;
  }
}

/** The device with the largest share. */
function mainDevice(split) {
  return split.reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}
