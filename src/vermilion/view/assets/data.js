"use strict";
// What the page holds, indexed: entities (nodes, groups, inputs, outputs) in a tree, and edges.
const D = JSON.parse(document.getElementById("data").textContent);

// Names come from files that anybody may have written: what turns the direction of writing or
// cannot be seen is shown as its code.
const unseen = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const plain = (text) => String(text ?? "").replace(unseen, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

function make(space, tag, attributes, children) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(plain(child)));
  }
  return element;
}
const h = (tag, attributes, ...children) => make(null, tag, attributes, children);
const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);
const named = (text) => h("span", { class: "name" }, text || "(no name)");
const is = (kind) => h("span", { class: "is is-" + kind }, kind);

const count = (n) => Number(n).toLocaleString("en-US");
function short(x, digits = 3) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x !== 0 && (Math.abs(x) >= 1e6 || Math.abs(x) < 1e-3)) return x.toExponential(2);
  return String(Number(x.toPrecision(Math.max(digits, Math.ceil(Math.log10(Math.abs(x) + 1))))));
}
function scaled(x, units) {
  let at = 0;
  while (at < units.length - 1 && Math.abs(x) >= 1000) { x /= 1000; at += 1; }
  return short(x) + "\u00a0" + units[at];
}
const bytes = (x) => (x === null || x === undefined ? "–" : scaled(x, ["B", "KB", "MB", "GB", "TB"]));
const work = (x) => scaled(x, ["OPs", "KOPs", "MOPs", "GOPs", "TOPs"]);
const millis = (x) => (x === null || x === undefined ? "–" : short(x, x < 10 ? 3 : 4) + "\u00a0ms");
const shape = (sizes) => (sizes === null || sizes === undefined ? "any shape" : sizes.length ? sizes.map((d) => d ?? "?").join("×") : "scalar");
const percent = (part, whole) => (whole ? (100 * part) / whole : 0);
const share = (part, whole) => (whole ? short(percent(part, whole)) + "%" : "–");

class Model {
  constructor(row) {
    Object.assign(this, row);
    const { nodes, tensors } = row.graph;
    this.nodes = nodes;
    this.tensors = tensors;
    this.readers = tensors.map(() => []);
    this.maker = tensors.map(() => -1);
    nodes.forEach((node, n) => {
      node.i.forEach((t) => { if (t !== null && this.readers[t].at(-1) !== n) this.readers[t].push(n); });
      node.u.forEach((t) => { this.maker[t] = n; });
    });
    this.addEntities(row);
    this.addEdges(row);
  }

  // Entity numbers: nodes first, then groups, then inputs and outputs of the model.
  addEntities({ folds, graph }) {
    this.groups = folds.groups;
    const base = this.nodes.length;
    const parent = (group) => (group === null || group === undefined ? -1 : base + group);
    this.entities = this.nodes.map((node, n) => ({ id: n, kind: "node", node: n, parent: parent(folds.of_node[n]), children: [] }));
    folds.groups.forEach((g, n) => this.entities.push({ id: base + n, kind: "group", group: g, parent: parent(g.parent), children: [] }));
    this.portOf = new Map();
    for (const kind of ["input", "output"]) this.addPorts(kind, graph[kind + "s"]);
    this.roots = [];
    const order = (e) => (e.kind === "node" ? e.node : e.kind === "group" ? this.firstNode(e) : e.kind === "input" ? -1 : Infinity);
    for (const e of this.entities) (e.parent < 0 ? this.roots : this.entities[e.parent].children).push(e.id);
    const sort = (ids) => ids.sort((a, b) => order(this.entities[a]) - order(this.entities[b]) || a - b);
    for (const e of [...this.entities].reverse()) if (e.kind === "group") e.first = Math.min(...e.children.map((c) => this.entities[c].first ?? this.entities[c].node ?? Infinity));
    for (const e of this.entities) sort(e.children);
    sort(this.roots);
    for (const e of this.entities) e.depth = e.parent < 0 ? 0 : -1;
    for (const e of this.entities) this.depthOf(e);
  }

  addPorts(kind, list) {
    const many = list.length > 8;
    let holder = -1;
    if (many) {
      holder = this.entities.length;
      this.entities.push({ id: holder, kind: "group", group: { kind: "ports", title: `${list.length} ${kind}s`, count: list.length, head: null }, parent: -1, children: [] });
    }
    for (const tensor of list) {
      this.portOf.set(kind + tensor, this.entities.length);
      this.entities.push({ id: this.entities.length, kind, tensor, parent: holder, children: [] });
    }
  }

  firstNode(e) { return e.first ?? 0; }

  depthOf(e) {
    const way = [];
    let at = e;
    while (at.depth < 0) { way.push(at); at = this.entities[at.parent]; }
    let depth = at.depth;
    for (const one of way.reverse()) one.depth = depth += 1;
  }

  // Each edge lies on the level where its ends part; there it joins two boxes of that level.
  addEdges({ graph }) {
    this.edges = new Map();
    this.crossing = new Map();
    const add = (from, to, tensor) => {
      let u = this.entities[from], v = this.entities[to];
      const mark = (e, way) => {
        const known = this.crossing.get(e.id) ?? { in: 0, out: 0 };
        known[way] += 1;
        this.crossing.set(e.id, known);
      };
      mark(u, "out"); mark(v, "in");
      while (u.depth > v.depth) u = this.entities[u.parent];
      while (v.depth > u.depth) v = this.entities[v.parent];
      while (u.parent !== v.parent) { u = this.entities[u.parent]; v = this.entities[v.parent]; }
      if (u.id === v.id) return;
      const level = this.edges.get(u.parent) ?? new Map();
      const key = u.id + ">" + v.id;
      const edge = level.get(key) ?? { u: u.id, v: v.id, tensors: [] };
      if (!edge.tensors.includes(tensor)) edge.tensors.push(tensor);
      level.set(key, edge);
      this.edges.set(u.parent, level);
    };
    this.nodes.forEach((node, n) => node.i.forEach((t) => { if (t !== null && this.maker[t] >= 0) add(this.maker[t], n, t); }));
    for (const t of graph.inputs) for (const n of this.readers[t]) add(this.portOf.get("input" + t), n, t);
    for (const t of graph.outputs) {
      if (this.maker[t] >= 0) add(this.maker[t], this.portOf.get("output" + t), t);
      else if (this.portOf.has("input" + t)) add(this.portOf.get("input" + t), this.portOf.get("output" + t), t);
    }
  }

  // The nodes inside an entity, itself for a node.
  members(id) {
    const e = this.entities[id];
    if (e.members) return e.members;
    const found = [], stack = [id];
    while (stack.length) {
      const at = this.entities[stack.pop()];
      if (at.kind === "node") found.push(at.node);
      stack.push(...at.children);
    }
    return (e.members = found.sort((a, b) => a - b));
  }

  ancestors(id) {
    const way = [];
    for (let at = this.entities[id].parent; at >= 0; at = this.entities[at].parent) way.push(at);
    return way.reverse();
  }

  title(id) {
    const e = this.entities[id];
    if (e.kind === "node") return this.nodes[e.node].o;
    if (e.kind !== "group") return this.tensors[e.tensor].n || e.kind;
    return e.group.kind === "unit" ? this.nodes[e.group.head].o : e.group.title;
  }

  subtitle(id) {
    const e = this.entities[id];
    if (e.kind === "input" || e.kind === "output") {
      const t = this.tensors[e.tensor];
      return `${e.kind} · ${shape(t.s)} ${t.t}`;
    }
    if (e.kind === "group" && e.group.kind !== "unit") {
      if (e.group.kind === "ports") return "";
      const n = this.members(id).length;
      return `${e.group.kind === "repeat" ? `${e.group.count} blocks · ` : ""}${count(n)} node${n === 1 ? "" : "s"}`;
    }
    const node = this.nodes[e.kind === "node" ? e.node : e.group.head];
    const out = this.tensors[e.kind === "node" ? node.u[0] : this.lastOutput(id, node)];
    return out ? `${shape(out.s)} ${out.t}` : "";
  }

  lastOutput(id, node) { return node.u[0]; }
}

const M = D.models.map((row) => new Model(row));
