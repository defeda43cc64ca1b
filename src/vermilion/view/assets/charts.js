// Plots with axes and units: histogram, timeline, memory, roofline, bars.
function niceTicks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) ticks.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return ticks;
}

function frame({ w = 400, h: height = 220, left = 52, bottom = 34, top = 10, right = 18, x, y, label }) {
  const root = s("svg", { class: "plot", viewBox: `0 0 ${w} ${height}`, role: "img", "aria-label": label });
  const place = (axis, a, b) => (v) => {
    const [l, hh, at] = axis.log ? [Math.log10(axis.low), Math.log10(axis.high), Math.log10(Math.max(v, 1e-30))] : [axis.low, axis.high, v];
    return a + ((at - l) / (hh - l || 1)) * (b - a);
  };
  const px = place(x, left, w - right), py = place(y, height - bottom, top);
  const ticks = (axis) => axis.ticks ?? (axis.log ? powers(axis.low, axis.high) : niceTicks(axis.low, axis.high, axis.wanted ?? 5));
  for (const v of ticks(y)) root.append(s("line", { class: "grid", x1: left, x2: w - right, y1: py(v), y2: py(v) }), s("text", { x: left - 5, y: py(v) + 3.5, "text-anchor": "end" }, (y.show ?? short)(v)));
  for (const v of ticks(x)) root.append(s("line", { class: "grid", x1: px(v), x2: px(v), y1: top, y2: height - bottom }), s("text", { x: px(v), y: height - bottom + 13, "text-anchor": "middle" }, (x.show ?? short)(v)));
  root.append(s("line", { class: "axis", x1: left, x2: w - right, y1: height - bottom, y2: height - bottom }), s("line", { class: "axis", x1: left, x2: left, y1: top, y2: height - bottom }));
  root.append(s("text", { class: "title", x: (left + w - right) / 2, y: height - 4, "text-anchor": "middle" }, x.title));
  root.append(s("text", { class: "title", x: 11, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${(top + height - bottom) / 2})` }, y.title));
  return { root, px, py };
}

function powers(low, high) {
  const found = [];
  for (let n = Math.ceil(Math.log10(low) - 1e-9); n <= Math.log10(high) + 1e-9; n += 1) found.push(10 ** n);
  const stride = Math.ceil(found.length / 7);
  return found.filter((_, n) => n % stride === 0);
}

function tipped(element, words, picked) {
  element.append(s("title", {}, words));
  if (picked) { element.addEventListener("click", picked); element.style.cursor = "pointer"; }
  return element;
}

function histogram(weight) {
  const most = Math.max(...weight.counts) ** 0.5 || 1, w = 240, hh = 54;
  const root = s("svg", { class: "plot", viewBox: `0 0 ${w} ${hh + 14}`, role: "img", "aria-label": `histogram of values from ${short(weight.low)} to ${short(weight.high)}` });
  weight.counts.forEach((n, at) => {
    const tall = (n ** 0.5 / most) * hh;
    root.append(tipped(s("rect", { class: "s1", x: (at * w) / weight.counts.length, y: hh - tall, width: w / weight.counts.length - 1, height: tall }), `${count(n)} values`));
  });
  root.append(s("line", { class: "axis", x1: 0, x2: w, y1: hh, y2: hh }), s("text", { x: 0, y: hh + 12 }, short(weight.low)), s("text", { x: w, y: hh + 12, "text-anchor": "end" }, short(weight.high)));
  return root;
}

function timeline(events, byName) {
  const lanes = [...new Set(events.map((e) => e.lane))], row = 34;
  const end = Math.max(...events.map((e) => e.begin_us + e.us)), begin = Math.min(...events.map((e) => e.begin_us));
  const height = lanes.length * row + 52;
  const { root, px } = frame({ w: 420, h: height, left: 12, x: { low: 0, high: (end - begin) / 1e3, title: "milliseconds from the beginning of the run" }, y: { low: 0, high: 1, ticks: [], title: "" }, label: `timeline of ${events.length} steps on ${lanes.length} devices` });
  const kinds = [...new Set(events.map((e) => e.kind))];
  events.forEach((e) => {
    const x = px((e.begin_us - begin) / 1e3), y = 24 + lanes.indexOf(e.lane) * row;
    const node = byName.get(e.name);
    root.append(tipped(s("rect", { x, y, width: Math.max(0.6, px((e.begin_us - begin + e.us) / 1e3) - x), height: row - 16, fill: CATEGORIES[kinds.indexOf(e.kind) % CATEGORIES.length] }), `${plain(e.name || e.kind)} · ${plain(e.kind)} · ${millis(e.us / 1e3)}`, node === undefined ? null : () => go(node)));
  });
  lanes.forEach((lane, n) => root.append(s("text", { x: 14, y: 20 + n * row }, lane)));
  return h("div", {}, root, keyOf(kinds.slice(0, 10).map((kind, n) => [kind, CATEGORIES[n % CATEGORIES.length]])));
}

function keyOf(rows) {
  return h("div", { class: "key" }, rows.map(([word, colour]) => h("span", {}, swatch(colour), word)));
}
const swatch = (colour) => s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { width: 10, height: 10, rx: 2, fill: colour, stroke: colour === "transparent" ? "currentColor" : "none" }));

function memoryPlot(part, byName) {
  const steps = Math.max(1, part.steps.length, ...part.lives.map((l) => l[3] + 1));
  const high = part.arena_bytes / 1e6;
  const { root, px, py } = frame({ w: 420, h: 300, x: { low: 0, high: steps, title: "step of the program" }, y: { low: 0, high, title: "address in the arena, MB" }, label: `where ${part.lives.length} tensors lie in ${bytes(part.arena_bytes)}, by step` });
  part.lives.forEach(([low, end, first, last, name], n) => {
    const x = px(first), y = py(end / 1e6);
    const node = byName.get(name);
    root.append(tipped(s("rect", { x, y, width: Math.max(1, px(last + 1) - x - 0.4), height: Math.max(0.8, py(low / 1e6) - y - 0.3), fill: CATEGORIES[n % CATEGORIES.length], "fill-opacity": 0.75 }), `${plain(name)}\n${bytes(end - low)} at ${bytes(low)}, steps ${first} to ${last}`, node === undefined ? null : () => go(node)));
  });
  return root;
}

function roofline(points, roof) {
  const xs = points.map((p) => p.intensity), ys = points.map((p) => p.rate);
  const ridge = roof ? roof.gops_per_s / roof.gb_per_s : 1;
  const floor = (v) => 10 ** Math.floor(Math.log10(v)), ceil = (v) => 10 ** Math.ceil(Math.log10(v));
  const x = { low: floor(Math.min(...xs, ridge)), high: ceil(Math.max(...xs, ridge) * 1.01), log: true, title: "operations for each byte touched" };
  const y = { low: floor(Math.min(...ys)), high: ceil(Math.max(...ys, roof?.gops_per_s ?? 1) * 1.01), log: true, title: "10⁹ operations a second" };
  const { root, px, py } = frame({ w: 420, h: 300, x, y, label: `roofline of ${points.length} steps` });
  if (roof) {
    const start = Math.max(x.low, y.low / roof.gb_per_s);
    root.append(s("path", { d: `M${px(start)},${py(start * roof.gb_per_s)}L${px(ridge)},${py(roof.gops_per_s)}L${px(x.high)},${py(roof.gops_per_s)}`, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));
    root.append(s("text", { class: "value", x: px(x.high) - 4, y: py(roof.gops_per_s) - 5, "text-anchor": "end" }, `${short(roof.gops_per_s)} GOP/s, measured`));
    root.append(s("text", { class: "value", x: px(ridge) - 6, y: py(roof.gops_per_s) + 14, "text-anchor": "end" }, `${short(roof.gb_per_s)} GB/s, measured`));
  }
  const most = Math.max(...points.map((p) => p.ms));
  for (const p of points) root.append(tipped(s("circle", { cx: px(p.intensity), cy: py(p.rate), r: 2.5 + 6 * Math.sqrt(p.ms / most), fill: CATEGORIES[0], "fill-opacity": 0.55, stroke: CATEGORIES[0] }), `${plain(p.name)} · ${millis(p.ms)}\n${short(p.rate)} GOP/s, ${short(p.intensity)} operations a byte`, () => go(p.node)));
  return root;
}

function errorPlot(rows, byName) {
  const known = rows.filter((r) => r.sqnr_db !== null);
  const high = Math.max(40, ...known.map((r) => r.sqnr_db).filter((v) => v < 100));
  const low = Math.min(0, ...known.map((r) => r.sqnr_db));
  const { root, px, py } = frame({ w: 420, h: 200, x: { low: 0, high: known.length, title: "layer, in the order of computing" }, y: { low, high, title: "SQNR, dB" }, label: `SQNR of ${known.length} layers` });
  known.forEach((r, n) => {
    const top = py(Math.min(high, Math.max(low, r.sqnr_db))), zero = py(Math.max(0, low)), node = byName.get(r.name);
    root.append(tipped(s("rect", { class: r.sqnr_db < 20 ? "s-bad" : "s1", x: px(n), y: Math.min(top, zero), width: Math.max(0.6, px(1) - px(0) - 0.5), height: Math.max(1, Math.abs(zero - top)) }), `${plain(r.name)} (${plain(r.op)}): ${short(r.sqnr_db)} dB`, node === undefined ? null : () => go(node)));
  });
  return root;
}

function bar(part, colour = CATEGORIES[0]) {
  return h("div", { class: "barcell" }, s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { width: Math.max(0, Math.min(100, part * 100)), height: 10, fill: colour })));
}
