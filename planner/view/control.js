// What mouse, touch and keyboard do to the graph.

const WHEEL_ZOOM = 0.0016; // per unit of the wheel
const SCROLL_REST_MS = 250; // a wheel that was scrolling the page goes on doing so

function controlScene(scene) {
  const { root, network } = scene;
  controlPointers(scene);
  controlKeys(scene);

  let scrolled = -Infinity;
  addEventListener("wheel", (event) => {
    if (!root.contains(event.target)) scrolled = event.timeStamp;
  }, { passive: true });
  root.addEventListener("wheel", (event) => {
    if (event.timeStamp - scrolled < SCROLL_REST_MS && !event.ctrlKey) {
      scrolled = event.timeStamp;
      return;
    }
    const frame = root.getBoundingClientRect();
    const factor = Math.exp(-event.deltaY * WHEEL_ZOOM);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      scene.move(-(event.deltaX || event.deltaY), 0);
    } else if (!scene.zoom(factor, event.clientX - frame.left, event.clientY - frame.top)) {
      return; // as small or as large as it gets: the page scrolls
    }
    event.preventDefault();
    hideTip();
  }, { passive: false });

  const point = (id) => {
    const node = network.stripOf.get(id) ?? id;
    const incoming = (scene.edgesTo.get(node) ?? []).map((edge) => edge.from);
    scene.light(network.open.has(id) ? [] : [node, ...incoming]);
  };
  root.addEventListener("pointerover", (event) => {
    const node = event.target.closest("[data-id]");
    const net = event.target.dataset.net;
    if (node) {
      const id = Number(node.dataset.id);
      point(id);
      showTip(nodeTip(network, id), scene.around(id));
    } else if (net !== undefined) {
      scene.light([Number(net)]);
      showTip(netTip(scene, Number(net)), pointRect(event));
    }
  });
  root.addEventListener("pointermove", (event) => {
    if (scene.drawn.detail !== "map" || event.buttons) return;
    const id = scene.nodeAt(event.clientX, event.clientY);
    if (id === null) hideTip();
    else showTip(nodeTip(network, id), pointRect(event));
  });
  root.addEventListener("pointerout", () => {
    scene.light([]);
    hideTip();
  });
  root.addEventListener("focusin", (event) => {
    const id = Number(event.target.dataset.id);
    scene.current = id;
    if (!event.target.matches(":focus-visible")) return;
    point(id);
    showTip(nodeTip(network, id), scene.around(id));
  });
  root.addEventListener("focusout", hideTip);
}

/** Opens or closes a group; anything else becomes the current node. */
function activate(scene, id) {
  scene.current = id;
  hideTip();
  const { network } = scene;
  if (network.isGroup(id)) {
    network.toggle(id);
    const opened = network.open.has(id);
    scene.update(opened ? null : id);
    if (opened) {
      scene.grow();
      scene.show(id);
    }
  } else {
    scene.draw();
  }
  scene.elementOf(id)?.focus({ preventScroll: true });
}

function controlPointers(scene) {
  const { root } = scene;
  const pointers = new Map();
  let dragged = 0;
  const spread = () => {
    const [a, b] = [...pointers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  root.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    dragged = 0;
  });
  root.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const width = pointers.size === 2 ? spread() : 0;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    const [dx, dy] = [event.clientX - before[0], event.clientY - before[1]];
    dragged += Math.abs(dx) + Math.abs(dy);
    if (dragged < 5) return;
    if (!root.hasPointerCapture(event.pointerId)) root.setPointerCapture(event.pointerId);
    root.classList.add("moving");
    hideTip();
    if (width) {
      const frame = root.getBoundingClientRect();
      scene.zoom(spread() / width, event.clientX - frame.left, event.clientY - frame.top);
    } else {
      scene.move(dx, dy);
    }
  });
  const release = (event) => {
    pointers.delete(event.pointerId);
    root.classList.remove("moving");
  };
  root.addEventListener("pointerup", release);
  root.addEventListener("pointercancel", release);
  root.addEventListener("click", (event) => {
    if (dragged >= 5) return;
    const node = event.target.closest("[data-id]");
    if (node) activate(scene, Number(node.dataset.id));
    else if (scene.drawn.detail === "map" && scene.matches === null) {
      const frame = root.getBoundingClientRect();
      scene.zoom((1.3 * FAR) / scene.view.scale, event.clientX - frame.left, event.clientY - frame.top);
    } else scene.onClear();
  });
}

function controlKeys(scene) {
  const { root, network } = scene;
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const id = scene.current;
    const parent = network.parent[id];
    const actions = {
      "+": () => scene.zoom(1.3),
      "=": () => scene.zoom(1.3),
      "-": () => scene.zoom(1 / 1.3),
      0: () => scene.fit(),
      Escape: () => scene.onClear(),
      Enter: () => activate(scene, id),
      " ": () => activate(scene, id),
      Backspace: () => {
        const group = network.open.has(id) ? id : parent;
        if (group !== TOP && group !== undefined) activate(scene, group);
      },
      ArrowRight: () => scene.focus(neighbour(scene, id, "from", "to")),
      ArrowLeft: () => scene.focus(neighbour(scene, id, "to", "from")),
      ArrowDown: () => scene.focus(beside(scene, id, 1)),
      ArrowUp: () => scene.focus(beside(scene, id, -1)),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
}

/** The nearest node along an edge; into an open group from its title. */
function neighbour(scene, id, near, far) {
  const { network } = scene;
  if (network.open.has(id)) return far === "to" ? network.children.get(id)[0] : network.parent[id];
  const strip = network.strips.get(network.stripOf.get(id));
  const next = strip?.[strip.indexOf(id) + (far === "to" ? 1 : -1)];
  if (next !== undefined) return next;
  const edges = (near === "from" ? scene.edgesFrom : scene.edgesTo).get(network.stripOf.get(id) ?? id) ?? [];
  const here = scene.boxes.get(id);
  const distance = (other) => Math.hypot(other.x - here.x, 2 * (other.y - here.y));
  const boxes = edges.map((edge) => scene.boxes.get(edge[far]));
  return boxes.length ? boxes.reduce((a, b) => (distance(b) < distance(a) ? b : a)).id : id;
}

/** The next node or title above or below. */
function beside(scene, id, sign) {
  const here = scene.boxes.get(id);
  let best = id;
  let least = Infinity;
  for (const box of scene.boxes.values()) {
    const dy = sign * (box.y - here.y);
    const dx = Math.max(0, box.x - here.x - here.w, here.x - box.x - box.w);
    if (box.id !== id && dy > 0 && dy + 4 * dx < least) {
      least = dy + 4 * dx;
      best = box.id;
    }
  }
  return best;
}
