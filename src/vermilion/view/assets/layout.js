// Where boxes lie: each open group is laid out by itself, by dagre, and is a box to its parent.
const PAD = 14, HEAD = 30, GAP_X = 20, GAP_Y = 36;

class Layout {
  constructor(m) {
    this.m = m;
    this.done = new Map();
  }

  // The size of a closed box or a node, by its words.
  size(id) {
    const e = this.m.entities[id];
    const longest = Math.max(plain(this.m.title(id)).length * 7.4, plain(this.m.subtitle(id)).length * 6.3);
    const extra = e.kind === "group" ? 58 : 30;
    return { w: Math.round(Math.min(236, Math.max(92, longest + extra))), h: e.kind === "group" ? 52 : 44 };
  }

  forget(id) {
    for (const at of [id, ...this.m.ancestors(id), -1]) this.done.delete(at);
  }

  level(id, open) {
    const known = this.done.get(id);
    if (known) return known;
    const ids = id < 0 ? this.m.roots : this.m.entities[id].children;
    const edges = [...(this.m.edges.get(id)?.values() ?? [])];
    const boxes = new Map();
    for (const child of ids) {
      if (open.has(child)) {
        const inner = this.level(child, open);
        boxes.set(child, { id: child, w: Math.max(inner.w + 2 * PAD, this.size(child).w), h: inner.h + HEAD + PAD, inner });
      } else boxes.set(child, { id: child, ...this.size(child) });
    }
    const found = edges.length ? this.layered(boxes, edges) : this.grid(boxes);
    this.done.set(id, found);
    return found;
  }

  layered(boxes, edges) {
    const g = new dagre.graphlib.Graph();
    g.setGraph({ rankdir: "TB", nodesep: GAP_X, ranksep: GAP_Y, edgesep: 10, marginx: 0, marginy: 0, ranker: boxes.size > 120 ? "longest-path" : "network-simplex" });
    g.setDefaultEdgeLabel(() => ({}));
    for (const box of boxes.values()) g.setNode(String(box.id), { width: box.w, height: box.h });
    for (const edge of edges) g.setEdge(String(edge.u), String(edge.v), { weight: 1 });
    try { dagre.layout(g); } catch (error) { console.warn("laid out as a grid:", error.message); return this.grid(boxes); }
    for (const box of boxes.values()) {
      const at = g.node(String(box.id));
      box.x = at.x - box.w / 2;
      box.y = at.y - box.h / 2;
    }
    const lines = edges.map((edge) => ({ ...edge, points: g.edge(String(edge.u), String(edge.v))?.points ?? [] }));
    return this.framed(boxes, lines);
  }

  grid(boxes) {
    const list = [...boxes.values()];
    const columns = Math.max(1, Math.round(Math.sqrt(list.length / 2.2)));
    let x = 0, y = 0, row = 0;
    list.forEach((box, n) => {
      if (n && n % columns === 0) { x = 0; y += row + GAP_X; row = 0; }
      box.x = x; box.y = y;
      x += box.w + GAP_X; row = Math.max(row, box.h);
    });
    return this.framed(boxes, []);
  }

  framed(boxes, lines) {
    const list = [...boxes.values()];
    const xs = [...list.map((b) => b.x), ...lines.flatMap((l) => l.points.map((p) => p.x))];
    const ends = [...list.map((b) => b.x + b.w), ...lines.flatMap((l) => l.points.map((p) => p.x))];
    const left = Math.min(...xs, 0), top = Math.min(...list.map((b) => b.y), 0);
    for (const box of list) { box.x -= left; box.y -= top; }
    const moved = lines.map((l) => ({ ...l, points: l.points.map((p) => ({ x: p.x - left, y: p.y - top })) }));
    return { boxes, lines: moved, w: Math.max(...ends, 1) - left, h: Math.max(...list.map((b) => b.y + b.h), 1) };
  }
}

function curve(points, dx, dy) {
  if (points.length < 2) return "";
  const p = points.map(({ x, y }) => [Math.round((x + dx) * 10) / 10, Math.round((y + dy) * 10) / 10]);
  if (p.length === 2) return `M${p[0]}L${p[1]}`;
  let path = `M${p[0]}`;
  for (let n = 1; n < p.length - 1; n += 1) {
    const end = n === p.length - 2 ? p[n + 1] : [(p[n][0] + p[n + 1][0]) / 2, (p[n][1] + p[n + 1][1]) / 2];
    path += `Q${p[n]} ${end}`;
  }
  return path;
}
