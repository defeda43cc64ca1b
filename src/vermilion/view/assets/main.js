// State, keys, and what is asked for: everything that the page does begins here.
const state = { model: 0, target: D.target ?? 0, colour: "", picked: null, tab: "", words: "", order: "order", profile: 0, errors: 0, colouring: null };
const $ = (id) => document.getElementById(id);
let atlas = null;

function go(id) {
  state.tab = "card";
  select(id, true);
}

function select(id, reveal = false) {
  state.picked = id;
  if (id !== null && state.tab !== "card") state.tab = "card";
  if (id !== null && reveal) atlas.reveal(id);
  atlas.pick(id);
  if (id !== null) {
    const m = M[state.model], near = [neighbours(m, id, "up").length, neighbours(m, id, "down").length];
    const e = m.entities[id], name = e.kind === "node" ? m.nodes[e.node].n : "";
    const place = e.kind === "node" && targetOf(m) ? MODES.device.word(m, e.node) : "";
    $("told").textContent = plain(`${m.title(id)} ${name}, ${m.subtitle(id)}${place ? ", " + place : ""}; reads from ${near[0]}, read by ${near[1]}`);
  }
  way();
  show();
  remember();
}

function way() {
  const m = M[state.model];
  $("way").replaceChildren(...(state.picked === null || !m ? [] : [...m.ancestors(state.picked), state.picked].map((id) => h("button", { type: "button", onclick: () => { select(id); atlas.centre(id); } }, m.title(id)))));
}

function show() {
  const tabs = PANELS.filter(([, , , has]) => has());
  if (!tabs.some(([name]) => name === state.tab)) state.tab = tabs[0][0];
  $("tabs").replaceChildren(...tabs.map(([name, label]) => h("button", { type: "button", role: "tab", id: "tab-" + name, "aria-selected": String(name === state.tab), "aria-controls": "panel", tabindex: name === state.tab ? 0 : -1, onclick: () => { state.tab = name; show(); $("tab-" + name).focus(); remember(); } }, label)));
  const panel = $("panel");
  panel.setAttribute("aria-labelledby", "tab-" + state.tab);
  panel.replaceChildren(h("div", {}, tabs.find(([name]) => name === state.tab)[2]()));
  panel.scrollTop = 0;
}

function recolour() {
  const m = M[state.model];
  if (!m) return;
  state.colouring = new Colouring(m, state.colour);
  $("colour").value = state.colouring.name;
  legend();
  strip();
  atlas.draw();
}

function legend() {
  const c = state.colouring, kind = c.mode.is?.();
  const title = h("b", {}, c.mode.label, kind ? [" ", is(kind)] : null);
  const paint = (stops) => s("svg", { class: "ramp", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, stops.map((x) => s("rect", { x: x * 100, y: 0, width: 5.2, height: 10, fill: ramp(x) })));
  let body;
  if (c.mode.kind === "category") body = h("ul", { tabindex: 0, "aria-label": "legend" }, c.counts.slice(0, 14).map(([word, n]) => h("li", { title: plain(word) }, swatch(c.colours.get(word)), h("span", {}, word), h("b", {}, count(n)))), c.counts.length > 14 ? h("li", { class: "soft" }, `and ${c.counts.length - 14} more`) : null);
  else if (!Number.isFinite(c.most)) body = h("p", { class: "soft" }, "no node has a value");
  else body = [paint(Array.from({ length: 20 }, (_, n) => n / 20)), h("div", { class: "ends" }, c.mode.kind === "least" ? [h("span", {}, "60 dB and more"), h("span", {}, c.mode.show(Math.min(c.least, 10)))] : [h("span", {}, c.mode.show(0)), h("span", {}, c.mode.show(c.most))])];
  $("legend").replaceChildren(title, h("div", {}, body));
}

function fact(what, figure, rest, kind, part) {
  const meter = part === undefined ? null : h("div", { class: "meter" }, h("i", {}));
  if (meter) meter.firstChild.style.width = `${Math.min(100, part)}%`;
  return h("div", { class: "fact" }, h("div", { class: "what" }, what, " ", kind ? is(kind) : null), h("div", { class: "figure" }, figure, " ", rest ? h("small", {}, rest) : null), meter);
}

function strip() {
  const m = M[state.model], t = m ? targetOf(m) : null, facts = [];
  if (t?.summary) {
    const u = t.summary, how = t.is;
    facts.push(fact("supported", `${count(u.supported_operators)} of ${count(u.operators)}`, `${share(u.supported_gops, u.gops)} of GOPs`, how, percent(u.supported_operators, u.operators)));
    facts.push(fact("offloaded", `${count(u.offloaded_operators)} of ${count(u.operators)}`, `${share(u.offloaded_gops, u.gops)} of GOPs, ${u.subgraphs_offloaded} ${u.subgraphs_offloaded === 1 ? "part" : "parts"}`, how, percent(u.offloaded_operators, u.operators)));
    const ran = ranOn(t);
    facts.push(fact("ran", ran ? ran[0] : "not run", ran?.[1], ran ? "measured" : null));
    if (t.ms !== null) facts.push(fact(`on ${t.name}`, millis(t.ms), t.interval ? `${short(t.interval[0])} to ${short(t.interval[1])}` : "", "modelled"));
  } else if (t?.refusal) facts.push(fact(t.name, "not placed", t.refusal[0]));
  if (D.cpu_ms !== null && D.cpu_ms !== undefined) facts.push(fact("this CPU, ONNX Runtime", millis(D.cpu_ms), "", "measured"));
  for (const p of D.profiles) if (p.run_ms) facts.push(fact(p.engine, millis(p.run_ms), "", "measured"));
  for (const one of D.errors) for (const side of one.sides) if (side.p50) facts.push(fact(side.label, millis(side.p50), side.modelled ? "on this CPU, in the device's numbers" : "", "measured"));
  if (D.diff) facts.push(fact("differences", count(D.diff.changes.length), Object.entries(D.diff.counts).map(([k, n]) => `${n} ${k}`).join(", ")));
  if (m && !D.diff) facts.push(fact("work", work(m.nodes.reduce((sum, node) => sum + (node.g ?? 0), 0)), `${count(m.nodes.length)} nodes`, "counted"));
  $("strip").replaceChildren(...facts);
  $("strip").hidden = !facts.length;
}

// Where a profiled run of this engine's own was seen to run: a profile is of a processor.
function ranOn(t) {
  const p = t.kind === "cpu" ? D.profiles.find((one) => one.engine.startsWith("vermilion") && one.steps?.length) : null;
  if (!p) return null;
  const native = p.steps.filter((st) => st.device.includes("generated")).length;
  return [`${count(native)} of ${count(p.steps.length)}`, "steps in generated code"];
}

function setTarget(n) {
  state.target = n;
  $("target").value = String(n);
  recolour();
  show();
  remember();
}

function setModel(n) {
  if (n === state.model) return;
  state.model = n;
  state.picked = null;
  atlas.hits = null;
  for (const [at, button] of [...$("models").children].entries()) button.setAttribute("aria-pressed", String(at === n));
  recolour();
  atlas.pick(null);
  atlas.fit();
  way();
  show();
}

// Nodes that match: all words, in any of operator, name, types, tensors or reason.
function search(m, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  m.texts ??= m.nodes.map((node) => [node.o, node.n, node.d ?? "", ...node.u.flatMap((t) => [m.tensors[t].n, m.tensors[t].t, shape(m.tensors[t].s)]), ...node.i.map((t) => (t === null ? "" : m.tensors[t].n))].join("\n").toLowerCase());
  const found = m.nodes.map((_, n) => n).filter((n) => wanted.every((word) => m.texts[n].includes(word) || (placeOf(m, n)?.reason ?? "").toLowerCase().includes(word)));
  const own = (n) => wanted.every((word) => `${m.nodes[n].o}\n${m.nodes[n].n}`.toLowerCase().includes(word));
  return [...found.filter(own), ...found.filter((n) => !own(n))];
}

function find(words) {
  const m = M[state.model];
  state.words = words.trim();
  const nodes = state.words ? search(m, state.words) : [];
  atlas.hits = state.words ? new Set(nodes.flatMap((n) => [n, ...m.ancestors(n)])) : null;
  const list = $("found");
  list.replaceChildren(...nodes.slice(0, 40).map((n, at) => h("li", { role: "option", id: "hit-" + at, "aria-selected": "false", onpointerdown: (event) => { event.preventDefault(); take(at); } }, h("b", {}, m.nodes[n].o), " ", h("small", { class: "name" }, m.nodes[n].n || "(no name)"))));
  if (nodes.length > 40) list.append(h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, `${count(nodes.length - 40)} more`));
  if (state.words && !nodes.length) list.append(h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "nothing matches"));
  list.hidden = !state.words;
  $("search").setAttribute("aria-expanded", String(!list.hidden));
  state.results = nodes;
  state.result = -1;
  atlas.draw();
  if (state.tab === "nodes") show();
}

function take(at) {
  if (!state.results?.length) return;
  state.result = (at + state.results.length) % state.results.length;
  [...$("found").children].forEach((item, n) => item.setAttribute("aria-selected", String(n === state.result)));
  $("search").setAttribute("aria-activedescendant", "hit-" + state.result);
  $("found").children[state.result]?.scrollIntoView({ block: "nearest" });
  go(state.results[state.result]);
}

let tip = null;
function hover(hit, event) {
  if (!hit || M[state.model].entities[hit.id].kind === "group" && hit.open) { tip?.remove(); tip = null; return; }
  const m = M[state.model], e = m.entities[hit.id];
  const name = e.kind === "node" ? m.nodes[e.node].n : e.kind === "group" && e.group.kind === "unit" ? m.nodes[e.group.head].n : "";
  tip ??= document.body.appendChild(h("div", { class: "tip" }));
  const words = state.colouring.words(hit.id);
  tip.replaceChildren(h("b", {}, m.title(hit.id)), name ? h("div", {}, named(name)) : "", h("div", {}, m.subtitle(hit.id)), words ? h("div", {}, `${state.colouring.mode.label}: ${words}`) : "");
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 280)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - 110)}px`;
}

// The place of the page stands behind `#`, so that it can be sent to somebody.
function remember() {
  const words = new URLSearchParams();
  if (state.picked !== null) words.set("n", state.picked);
  words.set("colour", state.colouring?.name ?? "");
  words.set("tab", state.tab);
  const t = M.length ? targetOf(M[state.model]) : null;
  if (t) words.set("target", t.name);
  if (state.model) words.set("model", state.model);
  try { history.replaceState(null, "", "#" + words); } catch { /* a page from a file may not */ }
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1)), m = M[0];
  const at = m ? m.targets.findIndex((t) => t.name === words.get("target")) : -1;
  if (at >= 0) state.target = at;
  if (MODES[words.get("colour")]) state.colour = words.get("colour");
  if (words.get("model") === "1" && M.length > 1) state.model = 1;
  state.tab = words.get("tab") ?? "";
  const n = Number(words.get("n") ?? NaN);
  return M.length && Number.isInteger(n) && n >= 0 && n < M[state.model].entities.length ? n : null;
}

const step = (way) => { // Along the edges: to what is read, to who reads, to a neighbour of the same level.
  const m = M[state.model];
  if (state.picked === null) { select(m.roots[0]); atlas.centre(m.roots[0]); return; }
  const seen = atlas.seen(state.picked);
  if (way === "up" || way === "down") {
    const others = neighbours(m, seen, way).map((id) => atlas.seen(id)).filter((id) => id !== seen);
    if (others.length) { select(others[0]); atlas.centre(others[0]); }
    return;
  }
  const parent = m.entities[seen].parent, list = parent < 0 ? m.roots : m.entities[parent].children;
  const next = list[list.indexOf(seen) + (way === "left" ? -1 : 1)];
  if (next !== undefined) { select(next); atlas.centre(next); }
};

const KEYS = {
  ArrowUp: () => step("up"), ArrowDown: () => step("down"), ArrowLeft: () => step("left"), ArrowRight: () => step("right"),
  Enter: () => state.picked !== null && atlas.toggle(atlas.seen(state.picked)), " ": () => state.picked !== null && atlas.toggle(atlas.seen(state.picked)),
  "+": () => atlas.zoom(1.25), "=": () => atlas.zoom(1.25), "-": () => atlas.zoom(0.8), 0: () => atlas.all(), f: () => atlas.foldAll(), u: () => atlas.unfold(),
  p: () => { const parent = state.picked === null ? -1 : M[state.model].entities[state.picked].parent; if (parent >= 0) { select(parent); atlas.centre(parent); } },
  Escape: () => { if (state.words) { $("search").value = ""; find(""); } else select(null); },
};
const ANYWHERE = {
  "/": () => $("search").focus(), "?": () => $("help").showModal(),
  c: () => cycle("colour", 1), C: () => cycle("colour", -1), t: () => cycle("target", 1), T: () => cycle("target", -1), d: () => theme(),
  n: () => take((state.result ?? -1) + 1), N: () => take((state.result ?? 0) - 1), m: () => $("map").focus(), b: () => M.length > 1 && setModel(1 - state.model),
};
function cycle(id, by) {
  const list = $(id), usable = [...list.options].filter((o) => !o.disabled);
  const at = usable.findIndex((o) => o.selected);
  list.value = usable[(at + by + usable.length) % usable.length].value;
  list.dispatchEvent(new Event("change"));
}

function theme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function fillPrint() {
  const sections = PANELS.filter(([name, , , has]) => has() && !["card", "nodes"].includes(name));
  $("print").replaceChildren(...sections.map(([, , draw]) => h("section", {}, draw())));
  $("print").querySelectorAll("details").forEach((d) => { d.open = true; });
  atlas?.all();
}

function start() {
  const picked = recall();
  $("title").textContent = plain(D.title);
  $("sub").textContent = plain(D.sub);
  document.title = plain(D.title) + " · vermilion view";
  if (!M.length) {
    $("work").classList.add("bare");
    for (const id of ["find", "targets", "colours"]) $(id).hidden = true;
  } else {
    atlas = new Atlas($("map"));
    const m = M[0], groups = new Map();
    m.targets.forEach((t, n) => groups.set(t.kind, [...(groups.get(t.kind) ?? []), h("option", { value: n }, t.name)]));
    $("target").replaceChildren(...[...groups].map(([kind, options]) => h("optgroup", { label: kind.toUpperCase() }, options)));
    $("targets").hidden = !m.targets.length;
    $("target").value = String(state.target);
    $("colour").replaceChildren(...Object.entries(MODES).map(([name, mode]) => h("option", { value: name, disabled: !M.some((one) => mode.has(one)) }, mode.label)));
    $("models").replaceChildren(...(M.length > 1 ? M.map((one, n) => h("button", { type: "button", "aria-pressed": String(n === state.model), title: plain(one.label), onclick: () => setModel(n) }, `${"AB"[n]}`)) : []));
    if (!state.colour) state.colour = D.diff ? "difference" : MODES.time.has(m) ? "time" : MODES.device.has(m) ? "device" : "operator";
    if (D.diff && !state.tab) state.tab = "difference";
    recolour();
    atlas.fit();
  }
  wire();
  strip();
  show();
  if (picked !== null) select(picked, true);
  document.documentElement.dataset.ready = "yes";
}

function wire() {
  $("target").addEventListener("change", (event) => setTarget(Number(event.target.value)));
  $("colour").addEventListener("change", (event) => { state.colour = event.target.value; recolour(); show(); remember(); });
  $("search").addEventListener("input", (event) => find(event.target.value));
  $("search").addEventListener("focus", () => { if (state.words) $("found").hidden = false; });
  $("search").addEventListener("blur", () => { $("found").hidden = true; });
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || (event.key === "Enter" && !event.shiftKey)) { event.preventDefault(); take((state.result ?? -1) + 1); }
    else if (event.key === "ArrowUp" || event.key === "Enter") { event.preventDefault(); take((state.result ?? 0) - 1); }
    else if (event.key === "Escape") { event.target.value = ""; find(""); $("map").focus(); }
  });
  const tools = { "zoom-in": () => atlas.zoom(1.3), "zoom-out": () => atlas.zoom(0.77), whole: () => atlas.all(), fold: () => atlas.foldAll(), unfold: () => atlas.unfold(), theme, keys: () => $("help").showModal() };
  for (const [id, does] of Object.entries(tools)) $(id).addEventListener("click", does);
  $("map").addEventListener("keydown", (event) => { const does = KEYS[event.key]; if (does && !event.ctrlKey && !event.metaKey && !event.altKey && event.target === $("map")) { event.preventDefault(); does(); } });
  $("tabs").addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key], list = [...$("tabs").children];
    if (way) { const at = list.findIndex((tab) => tab.getAttribute("aria-selected") === "true"); list[(at + way + list.length) % list.length].click(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || $("help").open) return;
    const does = ANYWHERE[event.key];
    if (does && M.length) { event.preventDefault(); does(); }
  });
  addEventListener("beforeprint", fillPrint);
  addEventListener("afterprint", () => $("print").replaceChildren());
}
start();
