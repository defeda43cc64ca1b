// The card of what is picked: a node, a group, an input or an output.
const row = (what, ...value) => [h("dt", {}, what), h("dd", {}, ...value)];
const jump = (id, words) => h("button", { class: "link name", type: "button", onclick: () => go(id) }, words || "(no name)");

function card() {
  const m = M[state.model];
  if (state.picked === null) return nothingPicked();
  const e = m.entities[state.picked];
  if (e.kind === "group" && e.group.kind !== "unit") return groupCard(m, e);
  if (e.kind === "input" || e.kind === "output") return portCard(m, e);
  const n = e.kind === "node" ? e.node : e.group.head;
  const node = m.nodes[n];
  return [
    h("h2", {}, node.d ? `${node.d}::${node.o}` : node.o), named(node.n),
    whereOf(m, n), changesOf(m, n), numbersOf(m, n), tensorsOf(m, node),
    attributesOf(node), kernelOf(m, n), e.kind === "group" ? insideOf(m, e) : null, historyOf(m, n),
  ];
}

function nothingPicked() {
  return [h("h2", {}, "Nothing is picked"), h("p", { class: "soft" }, "Click a box, or search. Double-click opens and folds a group; the wheel zooms. ", h("kbd", {}, "?"), " lists the keys."), aboutTable()];
}

function whereOf(m, n) {
  const p = placeOf(m, n), t = targetOf(m);
  if (!p) return null;
  const words = p.on ? `Runs on ${t.title}` : p.supported ? `Supported on ${t.name}, and stays on the CPU` : t.kind === "cpu" ? "Runs in ONNX Runtime" : `Not on ${t.name}: runs on the CPU`;
  return h("div", { class: p.reason ? "why" : "why good" }, h("div", {}, words, p.part ? h("span", { class: "soft" }, ` · ${p.part}`) : null, " ", is(t.is)), p.reason ? h("div", {}, h("b", {}, p.reason)) : null, p.hint ? h("div", { class: "hint" }, h("b", {}, "hint: "), p.hint) : null);
}

function changesOf(m, n) {
  if (!D.diff) return null;
  const side = state.model === 0 ? "a" : "b";
  const mine = D.diff.changes.filter((c) => c[side].includes(n));
  if (!mine.length) return h("p", { class: "soft" }, "The same in both models.");
  return [h("h3", {}, "What differs"), h("ul", { class: "plain" }, mine.map((c) => h("li", {}, h("b", {}, c.kind), " ", named(c.what))))];
}

function numbersOf(m, n) {
  const node = m.nodes[n], rows = [];
  if (node.g !== undefined) rows.push(row("work", work(node.g), node.x ? " at least" : "", " ", is("counted")));
  rows.push(row("bytes", `${bytes(node.w ?? 0)} weights, ${bytes(node.b ?? 0)} activations `, is("counted")));
  const st = stepOf(m, n);
  if (st) {
    rows.push(row("time", `${millis(st.ms)}, ${share(st.share, 1)} of all steps `, is("measured")));
    if (st.gops_per_s !== null) rows.push(row("rate", `${short(st.gops_per_s)} GOP/s `, is("measured")));
    if (st.members > 1) rows.push(row("", h("span", { class: "note" }, `for ${st.members} nodes that are one step: ${st.kind}`)));
  }
  D.errors.forEach((one) => { if (m === M[0] && one.by_node?.[n] !== null && one.by_node?.[n] !== undefined) rows.push(row("error", `${short(one.by_node[n])} dB SQNR `, is("measured"), h("div", { class: "note" }, one.how))); });
  return [h("h3", {}, "Numbers"), h("dl", {}, rows)];
}

function tensorsOf(m, node) {
  const list = (title, tensors, source) => tensors.length ? [h("h3", {}, title), h("ul", { class: "plain" }, tensors.map((t, at) => t === null ? h("li", { class: "soft" }, `${at}: left out`) : tensorRow(m, t, source)))] : null;
  return [list("Inputs", node.i, true), list("Outputs", node.u, false)];
}

function tensorRow(m, t, isInput) {
  const tensor = m.tensors[t], maker = m.maker[t];
  const ends = isInput ? (maker >= 0 ? [maker] : m.portOf.has("input" + t) ? [m.portOf.get("input" + t)] : []) : [...m.readers[t], ...(m.portOf.has("output" + t) ? [m.portOf.get("output" + t)] : [])];
  const words = `${tensor.t || "unknown"} ${shape(tensor.s)}${tensor.b === undefined ? "" : ` · ${bytes(tensor.b)}`}`;
  return h("li", {}, named(tensor.n), h("div", { class: "soft mono" }, words, tensor.k === "weight" ? " · weight" : ""), ends.length ? h("div", { class: "note" }, isInput ? "from " : "to ", ends.slice(0, 8).map((id, n) => [n ? ", " : "", jump(id, m.title(id))]), ends.length > 8 ? ` and ${ends.length - 8} more` : "") : null, weightOf(tensor.w));
}

function weightOf(weight) {
  if (!weight) return null;
  if (weight.values) return h("div", { class: "mono" }, weight.values.map((v) => (typeof v === "number" ? short(v, 6) : String(v))).join(", "));
  if (!weight.counts) return weight.not_finite ? h("div", { class: "note" }, `${count(weight.not_finite)} values are no finite numbers`) : null;
  return h("details", {}, h("summary", { class: "note" }, `${short(weight.low)} to ${short(weight.high)}, ${share(weight.zeros, 1)} zeros`), histogram(weight), h("p", { class: "note" }, "heights are roots of the counts", weight.sampled ? `; ends are those of ${count(weight.sampled)} values` : "", weight.not_finite ? `; ${count(weight.not_finite)} values are no finite numbers` : ""));
}

function attributesOf(node) {
  const rows = Object.entries(node.a ?? {});
  return rows.length ? [h("h3", {}, "Attributes"), h("dl", {}, rows.map(([key, value]) => row(named(key), h("span", { class: "mono" }, Array.isArray(value) ? `[${value.join(", ")}]` : String(value)))))] : null;
}

function kernelOf(m, n) {
  if (m !== M[0] || !D.kernel_of) return null;
  const at = D.kernel_of[n];
  if (at === null) return null;
  const [part, index] = at, step = D.parts[part].steps[index], about = D.kernels[step.kernel] ?? {};
  const rows = [row("function", h("code", {}, step.kernel)), row("step", `${index + 1} of ${D.parts[part].steps.length} in ${D.parts[part].name}`)];
  if (step.nodes?.length > 1) rows.push(row("with", step.nodes.map((name, k) => [k ? ", " : "", named(name)])));
  for (const [key, value] of about.facts ?? []) rows.push(row(key, h("code", {}, value)));
  return [h("h3", {}, "Kernel"), h("dl", {}, rows), about.assembly ? h("details", {}, h("summary", {}, `assembly, ${about.assembly.length} lines`), h("pre", { class: "assembly", tabindex: 0 }, about.assembly.join("\n"))) : null];
}

function insideOf(m, e) {
  return [h("h3", {}, "Folded in"), h("ul", { class: "plain" }, m.members(e.id).filter((n) => n !== e.group.head).map((n) => h("li", {}, jump(n, m.nodes[n].o), " ", named(m.nodes[n].n))))];
}

function historyOf(m, n) {
  if (m !== M[0] || !D.made) return null;
  return D.made.includes(n) ? h("p", { class: "note" }, "A pass made this node; the file does not have it under this name.") : null;
}

function portCard(m, e) {
  const t = m.tensors[e.tensor];
  return [h("h2", {}, named(t.n)), h("p", { class: "soft" }, `${e.kind} of the model`), h("dl", {}, row("type", t.t || "unknown"), row("shape", shape(t.s)), t.b === undefined ? null : row("bytes", bytes(t.b))), h("h3", {}, e.kind === "input" ? "Read by" : "Made by"), h("ul", { class: "plain" }, neighbours(m, e.id).map((id) => h("li", {}, jump(id, m.title(id)), " ", m.entities[id].kind === "node" ? named(m.nodes[m.entities[id].node].n) : null)))];
}

function groupCard(m, e) {
  const inside = m.members(e.id), sum = (key) => inside.reduce((total, n) => total + (m.nodes[n][key] ?? 0), 0);
  const ops = new Map(), whys = new Map();
  for (const n of inside) {
    ops.set(m.nodes[n].o, (ops.get(m.nodes[n].o) ?? 0) + 1);
    const p = placeOf(m, n);
    if (p?.reason) whys.set(p.reason, [...(whys.get(p.reason) ?? []), n]);
  }
  const all = m.nodes.reduce((total, node) => total + (node.g ?? 0), 0);
  const kind = { repeat: `${e.group.count} blocks that compute alike`, block: "one of them", section: "a stretch of the graph", ports: "of the model" }[e.group.kind];
  return [
    h("h2", {}, m.title(e.id)), h("p", { class: "soft" }, kind),
    h("button", { type: "button", onclick: () => atlas.toggle(e.id) }, atlas.opened.has(e.id) ? "Fold" : "Open"),
    h("dl", {}, row("nodes", count(inside.length)), row("work", `${work(sum("g"))}, ${share(sum("g"), all)} of the model `, is("counted")), row("weights", bytes(sum("w")), " ", is("counted")), state.colouring.words(e.id) ? row(state.colouring.mode.label, state.colouring.words(e.id)) : null),
    whys.size ? [h("h3", {}, "Why not on the device"), [...whys].map(([why, nodes]) => h("div", { class: "why" }, h("b", {}, why), h("div", { class: "hint" }, `${count(nodes.length)} nodes`)))] : null,
    h("h3", {}, "Operators"), h("ul", { class: "plain" }, [...ops].sort((a, b) => b[1] - a[1]).map(([op, n]) => h("li", {}, `${op} × ${n}`))),
    h("h3", {}, "Boxes in it"), h("ul", { class: "plain" }, e.children.slice(0, 100).map((id) => h("li", {}, jump(id, m.title(id)), " ", h("span", { class: "soft" }, m.subtitle(id))))),
  ];
}
