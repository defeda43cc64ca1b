// What colours mean: for each way of colouring, the value of a node, its words, and its colour.
const CATEGORIES = ["#3b82c4", "#e0872d", "#3f9d6b", "#c0504a", "#8a68c0", "#8c7a5b", "#d178a8", "#6b7480", "#a3a533", "#3aa9b8"];
const REST = "#8b857b";
const RAMP = [[244, 208, 140], [232, 140, 80], [205, 70, 50], [130, 25, 50]];

function ramp(x) {
  const at = Math.min(0.9999, Math.max(0, x)) * (RAMP.length - 1), low = Math.floor(at), part = at - low;
  const mix = RAMP[low].map((c, n) => Math.round(c + (RAMP[low + 1][n] - c) * part));
  return `rgb(${mix.join(",")})`;
}

const targetOf = (m) => m.targets?.[state.target] ?? null;
const placeOf = (m, n) => { const t = targetOf(m); return t && t.at[n] >= 0 ? m.places[t.at[n]] : null; };

function deviceWord(m, n) {
  const p = placeOf(m, n);
  if (!p) return "not known";
  if (p.on) return `on ${targetOf(m).name}`;
  return p.supported ? "supported, stays on the CPU" : targetOf(m).kind === "cpu" ? "in ONNX Runtime" : "not supported: on the CPU";
}
const DEVICE_COLOURS = { 0: CATEGORIES[2], 1: CATEGORIES[1], 2: CATEGORIES[3] };
function deviceColour(m, word) { return word.startsWith("on ") ? DEVICE_COLOURS[0] : word.startsWith("supported") ? DEVICE_COLOURS[1] : word === "not known" ? REST : DEVICE_COLOURS[2]; }

const profileNow = () => D.profiles[state.profile] ?? null;
const errorsNow = () => D.errors[state.errors] ?? null;
function stepOf(m, n) {
  const p = profileNow();
  return m === M[0] && p?.of_node && p.of_node[n] !== null ? p.steps[p.of_node[n]] : null;
}

// kind: `category`, `sum` or `least` (how a group has it from its nodes).
const MODES = {
  device: { label: "device", kind: "category", has: (m) => !!targetOf(m), word: deviceWord, colour: deviceColour, is: () => targetOf(M[0])?.is ?? "modelled" },
  reason: { label: "reason", kind: "category", has: (m) => !!targetOf(m), word: (m, n) => { const p = placeOf(m, n); return p ? p.reason || "no objection" : "not known"; }, is: () => "modelled" },
  operator: { label: "operator", kind: "category", has: () => true, word: (m, n) => m.nodes[n].o },
  type: { label: "data type", kind: "category", has: () => true, word: (m, n) => m.tensors[m.nodes[n].u[0]]?.t || "unknown" },
  work: { label: "work (operations)", kind: "sum", has: () => true, value: (m, n) => m.nodes[n].g ?? 0, show: work, is: () => "counted" },
  memory: { label: "memory (bytes touched)", kind: "sum", has: () => true, value: (m, n) => (m.nodes[n].w ?? 0) + (m.nodes[n].b ?? 0), show: bytes, is: () => "counted" },
  time: { label: "time", kind: "sum", has: (m) => m === M[0] && !!profileNow()?.of_node?.some((x) => x !== null), value: (m, n) => { const st = stepOf(m, n); return st ? st.ms / st.members : null; }, show: millis, is: () => "measured" },
  error: { label: "error (SQNR)", kind: "least", has: (m) => m === M[0] && !!errorsNow()?.by_node?.some((x) => x !== null), value: (m, n) => errorsNow().by_node[n], show: (x) => short(x, 3) + "\u00a0dB", is: () => "measured" },
  difference: { label: "difference", kind: "category", has: () => !!D.diff, word: (m, n) => D.diff.status[M.indexOf(m)][n] },
};
const DIFFERENCE_COLOURS = { same: "#a9a298", changed: CATEGORIES[1], added: CATEGORIES[2], removed: CATEGORIES[3], fused: CATEGORIES[4] };

class Colouring {
  constructor(m, name) {
    this.m = m;
    this.name = MODES[name]?.has(m) ? name : "operator";
    this.mode = MODES[this.name];
    this.cache = new Map();
    const values = m.nodes.map((_, n) => (this.mode.kind === "category" ? this.mode.word(m, n) : this.mode.value(m, n)));
    this.values = values;
    if (this.mode.kind === "category") this.rank(values);
    else {
      const known = values.filter((x) => x !== null && x !== undefined);
      // Work and bytes differ by powers of ten: the scale is that of the largest, by its root.
      this.most = Math.max(...known, 1e-12);
      this.least = this.mode.kind === "least" ? Math.min(...known, 60) : 0;
    }
  }

  rank(values) {
    const counts = new Map();
    for (const word of values) counts.set(word, (counts.get(word) ?? 0) + 1);
    this.counts = [...counts].sort((a, b) => b[1] - a[1]);
    this.colours = new Map();
    let next = 0;
    for (const [word] of this.counts) {
      let colour = next < CATEGORIES.length ? CATEGORIES[next] : REST;
      if (this.mode.colour) colour = this.mode.colour(this.m, word);
      else if (this.name === "difference") colour = DIFFERENCE_COLOURS[word] ?? REST;
      else if (word === "no objection" || word === "not known") colour = DEVICE_COLOURS[word === "not known" ? 9 : 0] ?? REST;
      else next += 1;
      this.colours.set(word, colour);
    }
  }

  colourOf(value) {
    if (value === null || value === undefined) return "transparent";
    if (this.mode.kind === "category") return this.colours.get(value);
    if (this.mode.kind === "least") return ramp(1 - (value - Math.min(this.least, 10)) / (60 - Math.min(this.least, 10)));
    return ramp(Math.sqrt(value / this.most));
  }

  // The parts of a box: [colour, share] for categories, one colour else.
  parts(id) {
    const known = this.cache.get(id);
    if (known) return known;
    const values = this.m.members(id).map((n) => this.values[n]).filter((x) => x !== null && x !== undefined);
    let parts = [["transparent", 1]];
    if (this.mode.kind === "category" && values.length) {
      const counts = new Map();
      for (const word of values) counts.set(word, (counts.get(word) ?? 0) + 1);
      parts = [...counts].sort((a, b) => b[1] - a[1]).map(([word, n]) => [this.colours.get(word), n / values.length]);
    } else if (values.length) {
      const value = this.mode.kind === "sum" ? Math.max(...values) : Math.min(...values);
      parts = [[this.colourOf(value), 1]];
    }
    this.cache.set(id, parts);
    return parts;
  }

  words(id) {
    const values = this.m.members(id).map((n) => this.values[n]).filter((x) => x !== null && x !== undefined);
    if (!values.length) return "";
    if (this.mode.kind === "category") return values.length === 1 ? values[0] : "";
    if (this.mode.kind === "sum") return this.mode.show(values.reduce((a, b) => a + b, 0));
    return this.mode.show(Math.min(...values)) + (values.length > 1 ? " at worst" : "");
  }
}
