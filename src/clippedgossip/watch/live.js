"use strict";
// Asks for the state once a second and draws it. Every text is set as text, never as markup.

const COLORS = ["#1f7fc4", "#d55e00", "#009e73", "#b85fa0", "#a67c00", "#7a6ae0", "#2a8ca8", "#d6336c", "#5b8c00", "#9a5b13", "#7a7a7a"];
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);
let chosen = "", seen = null;

function element(name, content = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = content;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function shape(name, attributes = {}, content = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = content;
  return made;
}

function list(id, texts) {
  $(id).replaceChildren(...texts.map((text) => element("li", text)));
}

function sample(attributes) {
  const drawn = shape("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" });
  drawn.append(shape("path", { d: "M0 6h32", ...attributes }));
  return drawn;
}

function legend(id, entries) {
  $(id).replaceChildren(...entries.map(([attributes, text]) => {
    const item = element("li");
    item.append(sample(attributes), text);
    return item;
  }));
}

function drawNetwork(network) {
  const drawing = $("network"), edge = 46, reach = 640 - 2 * edge;
  $("network-part").hidden = network.nodes.length === 0;
  const top = Math.max(0, ...network.nodes.map((node) => node.y)), pad = Math.max(0, 60 - top * reach / 2);
  drawing.setAttribute("viewBox", `0 0 640 ${top * reach + 2 * (edge + pad)}`);
  const place = new Map(network.nodes.map((node) => [node.name, [edge + node.x * reach, edge + pad + (top - node.y) * reach]]));
  const size = network.nodes.length > 40 ? 7 : 13;
  const parts = [];
  for (const link of network.links) {
    const [x, y] = place.get(link.to), [u, v] = place.get(link.from);
    const [p, q] = network.halves ? [(x + u) / 2, (y + v) / 2] : [u, v];
    const line = shape("path", { d: `M${x} ${y}L${p} ${q}`, class: `link ${link.health}` });
    line.append(shape("title", {}, `${link.to} from ${link.from}: ${network.words[link.health]}`));
    parts.push(line);
  }
  for (const node of network.nodes) {
    const [x, y] = place.get(node.name);
    const group = shape("g", network.halves ? { tabindex: 0, role: "button", "aria-label": `${node.name}: ${node.note}` } : {});
    if (node.name === chosen) group.setAttribute("class", "chosen");
    group.append(shape("title", {}, `${node.name}: ${node.note}`));
    const kind = { class: `node ${node.state}${node.byzantine ? " byzantine" : ""}` };
    group.append(node.byzantine ? shape("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...kind })
      : shape("circle", { cx: x, cy: y, r: size, ...kind }));
    if (network.nodes.length <= 40) {
      const name = node.name.length > 16 ? `${node.name.slice(0, 15)}…` : node.name;
      const words = node.state === "running" ? name : `${name} (${node.state})`, half = 7 * words.length; // on a phone
      const [anchor, at] = x < half ? ["start", 2] : x > 640 - half ? ["end", 638] : ["middle", x];
      group.append(shape("text", { x: at, y: y + size + 18, "text-anchor": anchor }, words));
    }
    const choose = () => { chosen = node.name; update(); };
    if (network.halves) {
      group.addEventListener("click", choose);
      group.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    }
    parts.push(group);
  }
  const focused = drawing.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  drawing.replaceChildren(...parts);
  if (focused) [...drawing.querySelectorAll("g")].find((g) => g.getAttribute("aria-label") === focused)?.focus();
  const kinds = Object.keys(network.words).filter((health) => network.links.some((link) => link.health === health));
  legend("legend", kinds.map((health) => [{ class: `link ${health}` }, network.words[health]]));
  if (network.halves) $("legend").append(element("li", "The half of a line at a peer shows what that peer received from the other in its last round."));
  if (network.nodes.some((node) => node.byzantine)) $("legend").append(element("li", "Squares are Byzantine; their neighbours do not know it."));
}

function ticks(low, high, log) {
  if (log) {
    const found = [], decades = Math.log10(high / low), step = Math.max(1, Math.ceil(decades / 4));
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += step)
      found.push(...(decades < 2 ? [1, 2, 5] : [1]).map((m) => m * 10 ** e));
    const within = found.filter((tick) => tick >= low && tick <= high);
    return within.length ? within : [low, high];
  }
  const rough = (high - low) / 4 || 1, base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= rough);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) found.push(t);
  return found;
}

function label(value, percent) {
  if (percent) return `${+(100 * value).toPrecision(3)} %`;
  return Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(0) : String(+value.toPrecision(3));
}

function drawChart(chart) {
  const box = element("div", "", { class: "chart" });
  box.append(element("h3", chart.title));
  const lines = chart.lines.map((line) => ({ ...line, points: line.points.filter(([, y]) => !chart.log || y > 0) }));
  const points = lines.flatMap((line) => line.points);
  if (!points.length) {
    box.append(element("p", "Nothing measured yet.", { class: "empty" }));
    return box;
  }
  const wide = 360, high = 200, left = 46, right = 10, top = 8, bottom = 22;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const [x, y] of points) {
    x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
  }
  if (chart.log) { y0 /= 1.2; y1 *= 1.2; } else { y0 = Math.min(y0, 0); y1 = y1 > y0 ? y1 + 0.05 * (y1 - y0) : y0 + 1; }
  if (chart.percent && y1 > 0.9 && y1 < 1.1) y1 = 1;
  const scale = chart.log ? Math.log : (v) => v;
  const px = (x) => left + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (wide - left - right);
  const py = (y) => top + (1 - (scale(y) - scale(y0)) / (scale(y1) - scale(y0))) * (high - top - bottom);
  const drawing = shape("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": chart.title });
  for (const tick of ticks(y0, y1, chart.log)) {
    drawing.append(shape("path", { class: "grid", d: `M${left} ${py(tick)}H${wide - right}` }));
    drawing.append(shape("text", { x: left - 5, y: py(tick) + 4, "text-anchor": "end" }, label(tick, chart.percent)));
  }
  for (const [x, anchor] of x1 > x0 ? [[x0, "start"], [x1, "end"]] : [[x0, "middle"]])
    drawing.append(shape("text", { x: px(x), y: high - 6, "text-anchor": anchor }, `round ${x}`));
  lines.forEach((line, i) => {
    const d = line.points.map(([x, y], j) => `${j ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    const path = shape("path", look(i, line.points.length > 1 ? d : `${d}h1`));
    path.append(shape("title", {}, line.name));
    drawing.append(path);
  });
  box.append(drawing);
  return box;
}

function look(i, d) {
  const dash = ["", "7 3", "2 3", "9 3 2 3"][i % 4]; // lines differ by more than colour
  return { ...(d ? { d } : {}), stroke: COLORS[i % COLORS.length], "stroke-width": 2, ...(dash ? { "stroke-dasharray": dash } : {}) };
}

function drawTable(content) {
  const box = element("div");
  box.append(element("h2", content.title));
  if (content.note) box.append(element("p", content.note, { class: "note" }));
  if (!content.rows.length) {
    box.append(element("p", "Nothing yet.", { class: "empty" }));
    return box;
  }
  const table = element("table"), head = element("thead"), row = element("tr"), body = element("tbody");
  row.append(...content.columns.map((column) => element("th", column, { scope: "col" })));
  head.append(row);
  for (const cells of content.rows) {
    const line = element("tr");
    cells.forEach((cell, i) => {
      const [text, tone] = Array.isArray(cell) ? cell : [cell, ""];
      const made = element("td", "", { "data-column": content.columns[i], class: tone });
      made.append(element("span", text, text.length < 24 ? { class: "short" } : {}));
      line.append(made);
    });
    body.append(line);
  }
  table.append(head, body);
  const scroll = element("div", "", { class: "scroll" });
  scroll.append(table);
  box.append(scroll);
  return box;
}

function draw(state) {
  chosen = state.chosen;
  document.title = state.title;
  $("title").textContent = state.title;
  list("facts", state.facts);
  list("alarms", state.alarms);
  drawNetwork(state.network);
  $("tables").replaceChildren(...state.tables.map(drawTable));
  $("charts").replaceChildren(...state.charts.map(drawChart));
  const most = state.charts.reduce((most, chart) => (chart.lines.length > most.length ? chart.lines : most), []);
  legend("lines", most.length > 1 ? most.map((line, i) => [look(i), line.name]) : []);
  $("chooser").hidden = state.nodes.length < 2;
  $("words").hidden = !state.nodes.length;
  const select = $("node");
  if (select.dataset.names !== JSON.stringify(state.nodes)) {
    select.dataset.names = JSON.stringify(state.nodes);
    select.replaceChildren(...state.nodes.map((name) => element("option", name)));
  }
  if (document.activeElement !== select) select.value = state.chosen;
  $("detail").replaceChildren(...state.detail.map(drawTable));
}

async function update() {
  const pulse = $("pulse"), now = new Date().toLocaleTimeString();
  try {
    const answer = await fetch(`state?node=${encodeURIComponent(chosen)}`, { signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(await answer.text());
    draw(await answer.json());
    seen = now;
    pulse.textContent = `live, updated ${now}`;
    pulse.className = "";
  } catch (error) {
    pulse.textContent = seen ? `No answer: what was watched has ended, or cannot be reached. This is from ${seen}.` : `No answer. ${error.message}`;
    pulse.className = "lost";
  }
}

async function forever() {
  for (;;) {
    if (!document.hidden) await update();
    await new Promise((go) => setTimeout(go, 1000));
  }
}

$("node").addEventListener("change", (event) => { chosen = event.target.value; event.target.blur(); update(); });
forever();
