"use strict";
const at = (id) => document.getElementById(id);
const MEAN = [0.485, 0.456, 0.406], DEVIATION = [0.229, 0.224, 0.225];
let messages = [], stopping = null, network = null;

function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (at("key").value) headers.Authorization = "Bearer " + at("key").value;
  const method = body === undefined ? "GET" : "POST";
  return fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
}

async function object(path, body) {
  const reply = await ask(path, body);
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error && found.error.message || found.error || reply.status);
  return found;
}

function tell(error) { at("error").textContent = error ? String(error.message || error) : ""; }

async function list() {
  try {
    const found = await object("/v1/models");
    at("model").replaceChildren(...found.data.map((one) => new Option(one.id, one.id)));
    at("lead").textContent = found.data.length + " of them answer. Nothing leaves this server.";
    tell("");
    if (found.data.length) await choose();
  } catch (error) { at("lead").textContent = "The models are not known."; tell(error); }
}

async function choose() {
  network = null;
  const name = at("model").value;
  const reply = await ask("/v2/models/" + encodeURIComponent(name));
  if (reply.ok) network = await reply.json();
  at("chat").hidden = network !== null;
  at("tensors").hidden = network === null;
  const form = network && pictureForm(network);
  at("picture").hidden = !form;
  if (form) at("wants").textContent = "Scaled to " + form.width + " × " + form.height + " here, in this page.";
  at("io").replaceChildren(...(network ? rows(network) : []));
}

function rows(about) {
  const line = (kind, one) => row(kind, one.name, one.datatype, one.shape.map((n) => n < 0 ? "?" : n).join(" × "));
  return [...about.inputs.map((one) => line("input", one)), ...about.outputs.map((one) => line("output", one))];
}

function row(...texts) {
  const made = document.createElement("tr");
  for (const text of texts) made.insertCell().textContent = text;
  return made;
}

function pictureForm(about) {
  if (about.inputs.length !== 1 || about.inputs[0].datatype !== "FP32") return null;
  const shape = about.inputs[0].shape;
  if (shape.length !== 4) return null;
  const first = shape[1] === 3;
  if (!first && shape[3] !== 3) return null;
  const [height, width] = (first ? shape.slice(2) : shape.slice(1, 3)).map((n) => n < 0 ? 224 : n);
  return { first, height, width, name: about.inputs[0].name };
}

async function classify() {
  const file = at("file").files[0], form = network && pictureForm(network);
  if (!file || !form) return;
  try {
    const picture = await createImageBitmap(file), canvas = at("shown");
    canvas.width = form.width; canvas.height = form.height;
    const pen = canvas.getContext("2d");
    pen.drawImage(picture, 0, 0, form.width, form.height);
    const pixels = pen.getImageData(0, 0, form.width, form.height).data;
    const size = form.width * form.height, data = new Array(3 * size), scale = at("scale").value;
    for (let pixel = 0; pixel < size; pixel++) for (let colour = 0; colour < 3; colour++) {
      let value = pixels[4 * pixel + colour];
      if (scale !== "plain") value /= 255;
      if (scale === "imagenet") value = (value - MEAN[colour]) / DEVIATION[colour];
      data[form.first ? colour * size + pixel : 3 * pixel + colour] = value;
    }
    const shape = form.first ? [1, 3, form.height, form.width] : [1, form.height, form.width, 3];
    const begin = performance.now();
    const found = await object("/v2/models/" + encodeURIComponent(network.name) + "/infer",
      { inputs: [{ name: form.name, shape, datatype: "FP32", data }] });
    show(found.outputs[0], performance.now() - begin);
    tell("");
  } catch (error) { tell(error); }
}

function show(output, ms) {
  const largest = Math.max(...output.data);
  const powers = output.data.map((value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  const order = output.data.map((value, index) => index).sort((a, b) => output.data[b] - output.data[a]).slice(0, 5);
  const lines = order.map((index) => row("class " + index, output.data[index].toFixed(3), (100 * powers[index] / sum).toFixed(1) + " %"));
  at("classes").replaceChildren(row("", "output", "softmax"), ...lines, row(output.name, ms.toFixed(1) + " ms", ""));
}

function paragraph(role, text) {
  const made = document.createElement("p");
  made.className = role;
  made.textContent = text;
  at("talk").append(made);
  return made;
}

async function say(event) {
  event.preventDefault();
  if (stopping) return;
  const text = at("text").value, shown = paragraph("user", text);
  messages.push({ role: "user", content: text });
  at("text").value = "";
  stopping = new AbortController();
  at("stop").hidden = false;
  const answer = paragraph("assistant", ""), begin = performance.now();
  let tokens = 0;
  try {
    const reply = await ask("/v1/chat/completions", { model: at("model").value, messages, stream: true,
      stream_options: { include_usage: true }, temperature: Number(at("temperature").value) }, stopping.signal);
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const reader = reply.body.getReader(), decoder = new TextDecoder();
    let held = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      held += decoder.decode(value, { stream: true });
      const lines = held.split("\n\n");
      held = lines.pop();
      for (const line of lines) {
        if (line === "data: [DONE]") continue;
        const piece = JSON.parse(line.slice(6));
        if (piece.error) throw new Error(piece.error.message);
        if (piece.usage) tokens = piece.usage.completion_tokens;
        const choice = piece.choices[0];
        if (choice && choice.delta.content) answer.textContent += choice.delta.content;
      }
    }
    tell("");
  } catch (error) {
    if (error.name !== "AbortError") { tell(error); if (!answer.textContent) { answer.remove(); shown.remove(); messages.pop(); } }
  } finally { stopping = null; at("stop").hidden = true; }
  if (answer.textContent) messages.push({ role: "assistant", content: answer.textContent });
  const seconds = (performance.now() - begin) / 1000;
  at("speed").textContent = tokens ? tokens + " tokens, " + (tokens / seconds).toFixed(1) + " a second" : "";
}

at("say").addEventListener("submit", say);
at("stop").addEventListener("click", () => stopping && stopping.abort());
at("anew").addEventListener("click", () => { messages = []; at("talk").replaceChildren(); });
at("model").addEventListener("change", () => { messages = []; at("talk").replaceChildren(); choose(); });
at("key").addEventListener("change", list);
at("file").addEventListener("change", classify);
at("scale").addEventListener("change", classify);
list();
