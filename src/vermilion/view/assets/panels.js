// What stands beside the map: one function for each tab, called when it is looked at.
const aboutTable = () => h("dl", {}, M.length ? M[state.model].facts.map(([what, value, kind]) => row(what, named(value), kind ? [" ", is(kind)] : null)) : D.about.map(([what, value]) => row(what, named(value))));

const byName = (m) => (m.byName ??= (() => {
  const found = new Map();
  m.tensors.forEach((t, n) => { if (t.n && m.maker[n] >= 0) found.set(t.n, m.maker[n]); });
  m.nodes.forEach((node, n) => { if (node.n) found.set(node.n, n); });
  return found;
})());
const names0 = () => (M.length ? byName(M[0]) : new Map());

function table(head, rows, numbers = []) {
  return h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((word, n) => (word ? h("th", { class: numbers.includes(n) ? "n" : null, scope: "col" }, word) : h("td", {}))))), h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, n) => h("td", { class: numbers.includes(n) ? "n" : null }, cell)))))));
}

// Rows come a hundred at a time: nobody reads thousands at once.
function paged(all, draw, step = 100) {
  const box = h("div", {}), more = h("button", { class: "more", type: "button" }, "");
  let shown = 0;
  const next = () => {
    box.append(...draw(all.slice(shown, shown + step)));
    shown = Math.min(all.length, shown + step);
    more.textContent = `${count(all.length - shown)} more`;
    more.hidden = shown >= all.length;
  };
  more.addEventListener("click", next);
  next();
  return [box, more];
}

function reasonsPanel() {
  const m = M[state.model], t = targetOf(m);
  if (!t) return h("p", { class: "soft" }, "No target was looked at.");
  const groups = new Map();
  m.nodes.forEach((node, n) => {
    const p = placeOf(m, n);
    if (p?.reason) groups.set(t.at[n], [...(groups.get(t.at[n]) ?? []), n]);
  });
  const merged = new Map();
  for (const [at, nodes] of groups) {
    const { reason, hint } = m.places[at], key = reason + "\u0000" + hint;
    merged.set(key, { reason, hint, nodes: [...(merged.get(key)?.nodes ?? []), ...nodes] });
  }
  const all = m.nodes.reduce((total, node) => total + (node.g ?? 0), 0);
  const found = [...merged.values()].sort((a, b) => b.nodes.length - a.nodes.length);
  return [
    h("h2", {}, `Why not on ${t.name}`), h("p", { class: "soft" }, `${t.title}. `, t.is === "modelled" ? "By the documented rules; nothing was compiled. " : "As it was compiled. ", is(t.is)),
    t.refusal ? h("div", { class: "why" }, h("b", {}, t.refusal[0]), h("div", { class: "hint" }, t.refusal[1])) : null,
    found.length ? found.map((one) => h("div", { class: "why" }, h("b", {}, one.reason), one.hint ? h("div", { class: "hint" }, h("b", {}, "hint: "), one.hint) : null, h("details", {}, h("summary", { class: "note" }, `${count(one.nodes.length)} nodes, ${share(one.nodes.reduce((sum, n) => sum + (m.nodes[n].g ?? 0), 0), all)} of the work`), paged(one.nodes, (part) => [h("ul", { class: "plain" }, part.map((n) => h("li", {}, jump(n, m.nodes[n].o), " ", named(m.nodes[n].n))))])))) : h("div", { class: "why good" }, t.refusal ? "" : "Nothing stays behind."),
    t.no_ms ? [h("h3", {}, "No latency"), h("p", {}, t.no_ms)] : null,
    t.cautions?.length ? [h("h3", {}, "Careful"), t.cautions.map((text) => h("p", {}, text))] : null,
    m.targets.length > 1 ? [h("h3", {}, "All targets"), whatIf(m)] : null,
  ];
}

function whatIf(m) {
  const rows = m.targets.map((t, n) => [h("button", { class: "link", type: "button", onclick: () => setTarget(n) }, t.name), t.summary ? `${count(t.summary.offloaded_operators)} / ${count(t.summary.operators)}` : "–", t.summary ? share(t.summary.offloaded_gops, t.summary.gops) : "–", t.ms === null ? "–" : [millis(t.ms), t.interval ? h("div", { class: "note" }, `${short(t.interval[0])} to ${short(t.interval[1])}`) : null]]);
  return [table(["target", "operators", "GOPs", "modelled"], rows, [1, 2, 3]), h("p", { class: "note" }, "Milliseconds are modelled, with their interval, of what is offloaded.")];
}

function nodesPanel() {
  const m = M[state.model], by = { order: (n) => n, work: (n) => -(m.nodes[n].g ?? 0), bytes: (n) => -MODES.memory.value(m, n), time: (n) => -(MODES.time.has(m) ? MODES.time.value(m, n) ?? 0 : 0), error: (n) => (MODES.error.has(m) ? MODES.error.value(m, n) ?? 999 : 999) };
  const choices = ["order", "work", "bytes", ...(MODES.time.has(m) ? ["time"] : []), ...(MODES.error.has(m) ? ["error"] : [])];
  const holder = h("div", {});
  const fill = () => {
    const wanted = state.words ? new Set(search(m, state.words)) : null;
    const list = m.nodes.map((_, n) => n).filter((n) => !wanted || wanted.has(n)).sort((a, b) => by[state.order](a) - by[state.order](b));
    const value = { work: (n) => work(m.nodes[n].g ?? 0), order: (n) => work(m.nodes[n].g ?? 0), bytes: (n) => bytes(MODES.memory.value(m, n)), time: (n) => millis(MODES.time.value(m, n)), error: (n) => (MODES.error.value(m, n) === null ? "–" : MODES.error.show(MODES.error.value(m, n))) }[state.order];
    holder.replaceChildren(...paged(list, (part) => [table(["operator", "name", state.order === "order" ? "work" : state.order], part.map((n) => [jump(n, m.nodes[n].o), named(m.nodes[n].n), value(n)]), [2])]).flat());
  };
  const pick = h("select", { "aria-label": "order of nodes", onchange: (event) => { state.order = event.target.value; fill(); } }, choices.map((word) => h("option", { value: word, selected: word === state.order }, word === "order" ? "order of computing" : word)));
  fill();
  return [h("h2", {}, "Nodes"), h("p", { class: "soft" }, state.words ? `that match “${state.words}”` : `all ${count(m.nodes.length)}`, ", by ", pick), holder];
}

function differencePanel() {
  const d = D.diff;
  const head = [h("h2", {}, "What differs"), h("p", { class: "soft" }, `A has ${count(d.nodes[0])} nodes, B ${count(d.nodes[1])}; ${count(d.matched)} match by what they compute${d.renamed ? `, ${count(d.renamed)} of them under another name` : ""}.`)];
  if (!d.changes.length) return [...head, h("div", { class: "why good" }, "Nothing but names: both models compute the same.")];
  const kinds = Object.keys(d.counts);
  return [...head, kinds.map((kind) => {
    const mine = d.changes.filter((c) => c.kind === kind);
    return [h("h3", {}, `${kind} (${mine.length})`), h("p", { class: "note" }, d.kinds[kind]), paged(mine, (part) => [h("ul", { class: "plain" }, part.map((c) => h("li", {}, named(c.what), " ", ends(c, "a", 0), ends(c, "b", 1))))], 50)];
  })];
}
function ends(c, side, model) {
  return c[side].slice(0, 4).map((n) => [" ", h("button", { class: "link note", type: "button", onclick: () => { setModel(model); go(n); } }, `${side.toUpperCase()}: `, M[model].nodes[n]?.n || M[model].nodes[n]?.o)]);
}

function timePanel() {
  const p = profileNow();
  if (!p) return h("p", { class: "soft" }, "No run was profiled.");
  const names = names0();
  const pick = D.profiles.length > 1 ? h("select", { "aria-label": "engine", onchange: (event) => { state.profile = Number(event.target.value); recolour(); show(); } }, D.profiles.map((one, n) => h("option", { value: n, selected: n === state.profile }, one.engine))) : p.engine;
  const most = Math.max(...(p.steps ?? []).map((st) => st.ms ?? 0), 1e-12);
  return [
    h("h2", {}, "Time"), h("p", { class: "soft" }, pick, " ", is("measured")),
    h("dl", {}, p.run_ms === null || p.run_ms === undefined ? null : row("whole run", `${millis(p.run_ms)}, the median of ${p.runs} runs`), p.machine ? row("machine", p.machine) : null, p.date ? row("date", p.date) : null, p.threads ? row("threads", p.threads) : null),
    p.timeline?.length ? [h("h3", {}, "One run"), timeline(p.timeline, names), h("p", { class: "note" }, "Steps are timed one by one: all workers work on one step, and the next waits.")] : null,
    p.steps?.length ? [h("h3", {}, "Steps, slowest first"), paged(p.steps, (part) => [table(["step", "", "ms", "share"], part.map((st) => [names.has(st.name) ? jump(names.get(st.name), st.name) : named(st.name || st.kind), bar((st.ms ?? 0) / most), short(st.ms), share(st.share, 1)]), [2, 3])], 40)] : null,
  ];
}

function rooflinePanel() {
  const p = profileNow(), m = M[0], points = [];
  p.steps.forEach((st, at) => {
    const members = p.members?.[at] ?? [];
    const rate = st.gops_per_s, touched = members.reduce((sum, n) => sum + (m.nodes[n].w ?? 0), 0) + outside(m, members);
    if (rate && st.ms && touched) points.push({ name: st.name, ms: st.ms, rate, intensity: (rate * st.ms * 1e6) / touched, node: members.at(-1) });
  });
  return [h("h2", {}, "Roofline"), h("p", { class: "soft" }, "What each step reaches, and what the machine allows. ", is("measured")), points.length ? roofline(points, p.roof) : h("p", {}, "No step has counted operations."), h("p", { class: "note" }, "Bytes are those of the weights and of the tensors that go in and out of a step, each once, as if nothing stayed in a cache: a point above the slope has its data in one. Rates are of the model's operations: Winograd's and Strassen's algorithms do fewer, and may lie above the peak. Large circles take long."), p.roof ? h("dl", {}, row("peak", `${short(p.roof.gops_per_s)} GOP/s, ${p.roof.instruction} `, is("measured")), row("memory", `${short(p.roof.gb_per_s)} GB/s `, is("measured"))) : h("p", { class: "note" }, "The saved profile has no peak and no bandwidth of its machine; `vermilion bench --profile --json` writes them.")];
}
// Bytes of the tensors that come into a set of nodes or leave it.
function outside(m, members) {
  const inside = new Set(members), seen = new Set();
  let total = 0;
  const add = (t) => { if (!seen.has(t)) { seen.add(t); total += m.tensors[t].b ?? 0; } };
  for (const n of members) {
    for (const t of m.nodes[n].i) if (t !== null && m.tensors[t].k !== "weight" && !inside.has(m.maker[t])) add(t);
    for (const t of m.nodes[n].u) if (m.tensors[t].k === "output" || m.readers[t].some((r) => !inside.has(r))) add(t);
  }
  return total;
}

function memoryPanel() {
  const parts = D.parts.filter((part) => part.lives.length);
  return [h("h2", {}, "Memory plan"), h("p", { class: "soft" }, "Which tensor lies where in the arena, and while which steps run. ", is("counted")), parts.map((part) => [h("h3", {}, `${part.name}: ${bytes(part.arena_bytes)}`), memoryPlot(part, names0()), h("p", { class: "note" }, `${count(part.lives.length)} tensors; without sharing they would take ${bytes(part.lives.reduce((sum, l) => sum + l[1] - l[0], 0))}.`)])];
}

function errorPanel() {
  const names = names0();
  return [h("h2", {}, "Error"), D.errors.map((one) => [
    h("p", { class: "soft" }, one.how, " ", is("measured"), h("span", { class: "note" }, ` ${one.from}`)),
    one.sides.length ? [h("h3", {}, "Side by side"), table(["", "runs on", "median ms", "min", "max"], one.sides.map((side, n) => [[`${"AB"[n]}: `, named(side.label)], named(side.runs_on), short(side.p50), short(side.min), short(side.max)]), [2, 3, 4]), one.sides.map((side) => (side.placement ? h("p", { class: "note" }, side.placement) : null))] : null,
    one.outputs.length ? [h("h3", {}, "Outputs"), table(["output", "SQNR dB", "cosine", "largest error"], one.outputs.map((o) => [named(o.name), o.sqnr_db >= 200 ? "equal" : short(o.sqnr_db), short(o.cosine, 6), short(o.max_abs_error)]), [1, 2, 3])] : null,
    one.first ? h("p", {}, "First layer below 10 dB: ", names.has(one.first) ? jump(names.get(one.first), one.first) : named(one.first)) : null,
    one.layers.length ? [h("h3", {}, "Layers"), errorPlot(one.layers, names), h("h3", {}, "Furthest from the reference"), table(["layer", "SQNR dB"], [...one.layers].filter((r) => r.sqnr_db !== null).sort((a, b) => a.sqnr_db - b.sqnr_db).slice(0, 20).map((r) => [names.has(r.name) ? jump(names.get(r.name), r.name) : named(r.name), short(r.sqnr_db)]), [1])] : null,
    one.ladder.length ? [h("h3", {}, "What was tried"), table(["", "SQNR dB", "drop", "at most", "8 bits"], one.ladder.map((t) => [t.met ? h("b", {}, named(t.what)) : named(t.what), short(t.sqnr_db), share(t.drop, 1), share(t.bound, 1), share(t.eight_bit_share, 1)]), [1, 2, 3, 4])] : null,
  ])];
}

function passesPanel() {
  return [h("h2", {}, "Passes"), h("p", { class: "soft" }, "What was rewritten before placing; the outputs are held against a run of the model as it came."), table(["pass", "changed"], D.passes.map((p) => [p.name, p.fired]), [1]),
    D.gone.length ? [h("h3", {}, `Nodes of the file that are gone (${count(D.gone.length)})`), paged(D.gone, (part) => [h("ul", { class: "plain" }, part.map(([op, name]) => h("li", {}, op, " ", named(name))))])] : null,
    D.passes.some((p) => p.refusals.length) ? [h("h3", {}, "What passes left alone"), D.passes.filter((p) => p.refusals.length).map((p) => h("details", {}, h("summary", {}, `${p.name} (${p.refusals.length})`), paged(p.refusals, (part) => [h("ul", { class: "plain" }, part.map(([where, reason, hint]) => h("li", {}, named(where), ": ", reason, hint ? h("span", { class: "soft" }, ` hint: ${hint}`) : "")))], 50)))] : null];
}

function aboutPanel() {
  return [h("h2", {}, "About"), aboutTable(), D.notes.length ? [h("h3", {}, "Notes"), D.notes.map((text) => h("p", {}, text))] : null, h("h3", {}, "Kinds of numbers"), h("dl", {}, row(is("measured"), "timed or computed by running it, on the machine that is named"), row(is("modelled"), "by rules or a cost model; nothing ran on such a device"), row(is("quoted"), "published by somebody else"), row(is("counted"), "from the graph's shapes")), h("p", { class: "note" }, `Made by vermilion ${D.version} on ${D.date}. The page fetches nothing.`)];
}

const PANELS = [
  ["card", "Card", card, () => M.length > 0],
  ["difference", "Differences", differencePanel, () => !!D.diff],
  ["reasons", "Reasons", reasonsPanel, () => M.some((m) => m.targets.length)],
  ["nodes", "Nodes", nodesPanel, () => M.length > 0],
  ["time", "Time", timePanel, () => D.profiles.length > 0],
  ["roofline", "Roofline", rooflinePanel, () => M.length > 0 && D.profiles.some((p) => p.members)],
  ["error", "Error", errorPanel, () => D.errors.length > 0],
  ["memory", "Memory", memoryPanel, () => D.parts.some((part) => part.lives.length)],
  ["passes", "Passes", passesPanel, () => D.passes.length > 0],
  ["about", "About", aboutPanel, () => true],
];
