// The map: what is on the screen is drawn, what is too small to read is drawn as one box.
const SMALL = 46;

class Atlas {
  constructor(host) {
    this.host = host;
    this.world = s("g");
    this.edgesAt = s("g");
    this.boxesAt = s("g");
    this.world.append(this.edgesAt, this.boxesAt);
    this.svg = s("svg", { "aria-hidden": "true", focusable: "false" }, this.world);
    host.prepend(this.svg);
    this.view = { x: 0, y: 0, k: 1 };
    this.open = M.map(() => new Set());
    this.layouts = M.map((m) => new Layout(m));
    this.near = new Set();
    this.hits = null;
    this.wire();
  }

  get m() { return M[state.model]; }
  get opened() { return this.open[state.model]; }
  get layout() { return this.layouts[state.model]; }

  toggle(id, wanted = !this.opened.has(id)) {
    if (!this.m.entities[id]?.children.length || this.opened.has(id) === wanted) return;
    const before = this.place(id);
    if (wanted) this.opened.add(id); else this.opened.delete(id);
    this.layout.forget(id);
    const after = this.place(id);
    if (before && after) { // What was asked for stays under the pointer.
      this.view.x += (before.x - after.x) * this.view.k;
      this.view.y += (before.y - after.y) * this.view.k;
    }
    this.draw();
  }

  foldAll() {
    this.opened.clear();
    this.layout.done.clear();
    this.draw();
    this.fit();
  }

  // Opens every group of the uppermost closed level.
  unfold() {
    const closed = this.m.entities.filter((e) => e.kind === "group" && !["unit", "ports"].includes(e.group.kind) && !this.opened.has(e.id) && this.m.ancestors(e.id).every((a) => this.opened.has(a)));
    for (const e of closed) this.opened.add(e.id);
    this.layout.done.clear();
    this.draw();
    this.fit();
  }

  place(id) {
    let x = 0, y = 0, found = null;
    let level = -1;
    for (const at of [...this.m.ancestors(id), id]) {
      if (level >= 0 && !this.opened.has(level)) return found;
      const box = this.layout.level(level, this.opened).boxes.get(at);
      if (!box) return found;
      x += box.x; y += box.y;
      found = { id: at, x, y, w: box.w, h: box.h };
      x += inset(box); y += HEAD;
      level = at;
    }
    return found;
  }

  // The box in which an entity is seen: its own, or the closed group's that holds it.
  seen(id) { return this.place(id)?.id ?? id; }

  reveal(id) {
    for (const at of this.m.ancestors(id)) if (!this.opened.has(at)) { this.opened.add(at); this.layout.forget(at); }
    this.draw();
    this.centre(id);
  }

  centre(id) {
    const box = this.place(id);
    if (!box) return;
    const { width, height } = this.host.getBoundingClientRect();
    const k = Math.min(Math.max(this.view.k, 0.75), 1.4);
    this.view = { k, x: width / 2 - (box.x + box.w / 2) * k, y: height / 2 - (box.y + Math.min(box.h, height / k) / 2) * k };
    this.draw();
  }

  fit(id = -1) {
    const { width, height } = this.host.getBoundingClientRect();
    const root = this.layout.level(-1, this.opened);
    const box = id < 0 ? { x: 0, y: 0, w: root.w, h: root.h } : this.place(id);
    if (!box || !width) return;
    // A long chain is read from its beginning, not as a thread.
    const whole = Math.min((width - 60) / box.w, (height - 90) / box.h, 1.25);
    const k = id < 0 ? Math.max(whole, Math.min(0.62, (width - 60) / box.w)) : whole;
    const y = k === whole ? (height - box.h * k) / 2 - box.y * k : 48 - box.y * k;
    this.view = { k, x: (width - box.w * k) / 2 - box.x * k, y };
    this.draw();
  }

  all() {
    const { width, height } = this.host.getBoundingClientRect();
    const root = this.layout.level(-1, this.opened);
    const k = Math.min((width - 40) / root.w, (height - 60) / root.h, 1.25);
    this.view = { k, x: (width - root.w * k) / 2, y: (height - root.h * k) / 2 };
    this.draw();
  }

  zoom(by, x, y) {
    const { width, height } = this.host.getBoundingClientRect();
    const k = Math.min(4, Math.max(0.02, this.view.k * by));
    const [cx, cy] = [x ?? width / 2, y ?? height / 2];
    this.view.x = cx - ((cx - this.view.x) * k) / this.view.k;
    this.view.y = cy - ((cy - this.view.y) * k) / this.view.k;
    this.view.k = k;
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }

  paint() {
    const { width, height } = this.host.getBoundingClientRect();
    const { x, y, k } = this.view;
    this.world.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    this.host.classList.toggle("far", k < 0.5);
    this.frame = { left: -x / k - 60, top: -y / k - 60, right: (width - x) / k + 60, bottom: (height - y) / k + 60 };
    const boxes = [], edges = [];
    this.shown = [];
    this.walk(-1, 0, 0, boxes, edges);
    this.boxesAt.replaceChildren(...boxes);
    this.edgesAt.replaceChildren(...edges);
  }

  inFrame(x, y, w, hh) {
    const f = this.frame;
    return x < f.right && x + w > f.left && y < f.bottom && y + hh > f.top;
  }

  walk(id, dx, dy, boxes, edges) {
    const level = this.layout.level(id, this.opened);
    const coarse = this.view.k < 0.22;
    let path = "", lit = "";
    for (const line of level.lines) {
      const first = line.points[0], last = line.points.at(-1);
      if (!first) continue;
      const xs = line.points.map((p) => p.x), left = Math.min(...xs), right = Math.max(...xs);
      if (!this.inFrame(left + dx, Math.min(first.y, last.y) + dy, right - left + 1, Math.abs(last.y - first.y) + 1)) continue;
      const drawn = curve(line.points, dx, dy) + (coarse ? "" : `M${last.x + dx - 3.5},${last.y + dy - 6}L${last.x + dx},${last.y + dy}L${last.x + dx + 3.5},${last.y + dy - 6}`);
      if (this.litEdge(line)) lit += drawn; else path += drawn;
    }
    if (path) edges.push(s("path", { class: "edge", d: path }));
    if (lit) edges.push(s("path", { class: "edge lit", d: lit }));
    for (const box of level.boxes.values()) {
      const x = box.x + dx, y = box.y + dy;
      if (!this.inFrame(x, y, box.w, box.h)) continue;
      const isOpen = box.inner && box.w * this.view.k > SMALL;
      this.shown.push({ id: box.id, x, y, w: box.w, h: box.h, open: !!isOpen });
      boxes.push(this.box(box, x, y, isOpen));
      if (isOpen) this.walk(box.id, x + inset(box), y + HEAD, boxes, boxes);
    }
  }

  litEdge(line) {
    const picked = state.picked;
    return picked !== null && (line.u === this.pickedAt || line.v === this.pickedAt);
  }

  box(box, x, y, isOpen) {
    const m = this.m, e = m.entities[box.id], k = this.view.k;
    const classes = ["item", e.kind === "group" ? "group" : e.kind === "node" ? "node" : "port"];
    if (isOpen) classes.push("open");
    if (box.id === this.pickedAt) classes.push("picked");
    else if (this.near.has(box.id)) classes.push("near");
    if (this.hits) classes.push(this.hits.has(box.id) ? "hit" : isOpen ? "" : "dim");
    if (k < 0.22) classes.push("coarse");
    const g = s("g", { class: classes.join(" "), transform: `translate(${x} ${y})`, "data-id": box.id });
    if (e.kind === "group" && e.group.kind === "repeat" && !isOpen) g.append(s("rect", { class: "back", x: 6, y: 6, width: box.w, height: box.h, rx: 8 }), s("rect", { class: "back", x: 3, y: 3, width: box.w, height: box.h, rx: 8 }));
    const round = e.kind === "group" ? 8 : e.kind === "node" ? 6 : box.h / 2;
    g.append(s("rect", { class: "box", width: box.w, height: box.h, rx: round }));
    if (isOpen) return this.header(g, box, k);
    this.tint(g, box, round);
    const room = Math.floor((box.w - 24 - (e.kind === "group" ? 26 : 0)) / 6.9);
    if (k >= 0.22) {
      g.append(s("text", { class: "t1", x: 14, y: box.h / 2 - 3 }, cut(m.title(box.id), room)));
      g.append(s("text", { class: "t2", x: 14, y: box.h / 2 + 13 }, cut(m.subtitle(box.id), Math.floor((box.w - 22) / 6))));
    } else if (box.inner) this.label(g, box, k);
    if (e.kind === "group") this.badge(g, e, box);
    return g;
  }

  header(g, box, k) {
    const size = Math.min(22, Math.max(12, 11 / k));
    const room = Math.floor((box.w - 40) / (size * 0.58));
    if (room > 2) g.append(s("text", { class: "t1", x: 12, y: 20, "font-size": size }, cut(this.m.title(box.id), room)));
    g.append(s("path", { class: "chevron", d: `M${box.w - 22},13l5,5l5,-5` }));
    return g;
  }

  label(g, box, k) {
    const size = Math.min(box.h / 3, 13 / k), room = Math.floor(box.w / (size * 0.6));
    if (room > 4) g.append(s("text", { class: "t1", x: box.w / 2, y: box.h / 2, "text-anchor": "middle", "font-size": size }, cut(this.m.title(box.id), room)));
  }

  tint(g, box, round) {
    const parts = state.colouring.parts(box.id);
    const [colour] = parts[0];
    if (colour !== "transparent") g.append(s("rect", { class: "tint", width: box.w, height: box.h, rx: round, fill: colour }));
    let y = round / 2;
    const room = box.h - round;
    for (const [part, of] of parts) {
      if (part !== "transparent") g.append(s("rect", { class: "bar", x: 0, y, width: 5, height: Math.max(1, room * of), fill: part }));
      y += room * of;
    }
  }

  badge(g, e, box) {
    if (e.group.kind === "repeat") g.append(s("text", { class: "count", x: box.w - 10, y: 18 }, `× ${e.group.count}`));
    else if (e.group.kind === "unit") g.append(s("text", { class: "count", x: box.w - 10, y: 18 }, `+${e.group.count - 1}`));
    g.append(s("path", { class: "chevron", d: `M${box.w - 19},${box.h - 19}l5,5l-5,5` }));
  }

  at(clientX, clientY) {
    const rect = this.svg.getBoundingClientRect();
    const x = (clientX - rect.left - this.view.x) / this.view.k, y = (clientY - rect.top - this.view.y) / this.view.k;
    let found = null;
    for (const one of this.shown ?? []) if (x >= one.x && x <= one.x + one.w && y >= one.y && y <= one.y + one.h) found = { ...one, dx: x - one.x, dy: y - one.y };
    return found;
  }

  pick(id) {
    this.pickedAt = id === null ? null : this.seen(id);
    this.near = new Set();
    if (id !== null) for (const other of neighbours(this.m, id)) this.near.add(this.seen(other));
    this.draw();
  }

  wire() {
    const svg = this.svg, pointers = new Map();
    let start = null, apart = 0;
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const rect = svg.getBoundingClientRect();
      if (event.ctrlKey || !event.shiftKey) this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - rect.left, event.clientY - rect.top);
      else { this.view.x -= event.deltaY; this.draw(); }
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event);
      svg.setPointerCapture(event.pointerId);
      start = { x: event.clientX, y: event.clientY, view: { ...this.view }, moved: false };
      apart = distance([...pointers.values()]);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) { hover(this.at(event.clientX, event.clientY), event); return; }
      pointers.set(event.pointerId, event);
      if (pointers.size === 2) {
        const now = distance([...pointers.values()]);
        if (apart) this.zoom(now / apart);
        apart = now;
        start.moved = true;
        return;
      }
      const [dx, dy] = [event.clientX - start.x, event.clientY - start.y];
      if (!start.moved && Math.hypot(dx, dy) < 4) return;
      start.moved = true;
      svg.classList.add("drag");
      this.view = { ...this.view, x: start.view.x + dx, y: start.view.y + dy };
      this.draw();
    });
    const end = (event) => {
      const had = pointers.delete(event.pointerId);
      svg.classList.remove("drag");
      if (!had || start.moved || event.type === "pointercancel") return;
      const hit = this.at(event.clientX, event.clientY);
      const onChevron = hit && this.m.entities[hit.id].kind === "group" && hit.dx > hit.w - 30 && (hit.open ? hit.dy < HEAD : hit.dy > hit.h - 28);
      if (onChevron) this.toggle(hit.id);
      else select(hit ? hit.id : null);
    };
    svg.addEventListener("pointerup", end);
    svg.addEventListener("pointercancel", end);
    svg.addEventListener("pointerleave", () => hover(null));
    svg.addEventListener("dblclick", (event) => { const hit = this.at(event.clientX, event.clientY); if (hit) this.toggle(hit.id); });
    new ResizeObserver(() => this.draw()).observe(this.host);
  }
}

// How far the inside of an open box lies from its left edge: it stands in the middle.
function inset(box) { return box.inner ? (box.w - box.inner.w) / 2 : PAD; }

function distance(two) { return two.length === 2 ? Math.hypot(two[0].clientX - two[1].clientX, two[0].clientY - two[1].clientY) : 0; }
function cut(text, most) {
  const words = plain(text);
  return words.length <= most ? words : most < 3 ? "" : words.slice(0, Math.ceil(most * 0.6) - 1) + "…" + words.slice(words.length - Math.floor(most * 0.4));
}

// Entities that feed an entity or read from it.
function neighbours(m, id, way = "both") {
  const mine = new Set(m.members(id)), e = m.entities[id], found = new Set();
  const tensorsIn = [], tensorsOut = [];
  if (e.kind === "input") tensorsOut.push(e.tensor);
  else if (e.kind === "output") tensorsIn.push(e.tensor);
  for (const n of mine) { tensorsIn.push(...m.nodes[n].i.filter((t) => t !== null)); tensorsOut.push(...m.nodes[n].u); }
  if (way !== "down") for (const t of tensorsIn) {
    if (m.maker[t] >= 0) { if (!mine.has(m.maker[t])) found.add(m.maker[t]); } else if (m.portOf.has("input" + t)) found.add(m.portOf.get("input" + t));
  }
  if (way !== "up") for (const t of tensorsOut) {
    for (const n of m.readers[t]) if (!mine.has(n)) found.add(n);
    if (e.kind !== "output" && m.portOf.has("output" + t)) found.add(m.portOf.get("output" + t));
  }
  return [...found];
}
