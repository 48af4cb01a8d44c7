"use strict";
// Shows what the server tells of phases, alerts, charts and turns. All texts become text nodes.
const EVERY = 2000; // milliseconds between two requests
const COLOURS = 8;
const WINDOW = 30; // turns of a mean that is computed here
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [360, 150, 44, 16];
const SVG = "http://www.w3.org/2000/svg";
const POINTS = 100; // of a chart
// The values of the dashboards' variables; one metric, where a dashboard is about one.
const VARIABLES = [
  ['="$metric"', '="faithfulness"'],
  ["$metric", ".+"],
  ["$service", ".+"],
  ["$__rate_interval", "15s"],
];
let dashboards = [];
let board = "rag-overview";
const shown = new Map(); // what each part of the page was made from

function node(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const html = (tag, attributes = {}, ...children) => node(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => node(document.createElementNS(SVG, tag), attributes, children);

// Replaces the content of a part if it has changed, and keeps open what the reader has opened.
function put(id, source, make) {
  const text = JSON.stringify(source);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  const part = document.getElementById(id);
  const open = new Set([...part.querySelectorAll("details[open]")].map((each) => each.id));
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.replaceChildren(...make());
  for (const each of part.querySelectorAll("details")) each.open = open.has(each.id);
  if (focused) document.getElementById(focused)?.focus();
}

function amount(value, unit) {
  if (!Number.isFinite(value)) return "–";
  if (unit === "percentunit") return `${(100 * value).toFixed(value && Math.abs(value) < 0.1 ? 1 : 0)} %`;
  if (unit === "bytes") return value < 1e6 ? `${(value / 1e3).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`;
  const digits = Number.isInteger(value) && Math.abs(value) < 1e5 ? String(value) : value.toPrecision(3);
  return digits + ({ s: " s", reqps: " /s" }[unit] ?? "");
}

// The lines of a panel: the name of each, and its points of a time and a number. What has one name is
// one line: records of a window go on where those of a whole run end.
function linesOf(panel) {
  const lines = new Map();
  for (const { legend, result } of panel.series) {
    for (const { metric, values } of result) {
      const name = legend.replace(/\{\{(\w+)\}\}/g, (_, label) => metric[label] ?? "").trim() || "none";
      const key = panel.kind === "table" ? JSON.stringify(metric) : name;
      const line = lines.get(key) ?? { name, metric, points: [] };
      line.points.push(...values.map(([t, v]) => [t, Number(v)]).filter(([, v]) => Number.isFinite(v)));
      line.points.sort(([a], [b]) => a - b);
      lines.set(key, line);
    }
  }
  return [...lines.values()].filter(({ points }) => points.length);
}
const lastOf = (line) => line.points.at(-1)[1];

function legend(lines, unit) {
  const items = lines.slice(0, COLOURS).map((line, i) => {
    const swatch = svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" });
    swatch.append(svg("line", { x1: 0, y1: 6, x2: 12, y2: 6, class: `s${i % COLOURS}`, "stroke-width": 4 }));
    return html("li", {}, swatch, `${line.name}: ${amount(lastOf(line), unit)}`);
  });
  if (lines.length > COLOURS) items.push(html("li", {}, `and ${lines.length - COLOURS} more`));
  return html("ul", { class: "legend" }, ...items);
}

function frame(panel, state, label, low, high) {
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const [value, y] of [[high, 8], [(low + high) / 2, (HEIGHT - BOTTOM + 8) / 2], [low, HEIGHT - BOTTOM]]) {
    drawing.append(svg("line", { x1: LEFT, x2: WIDTH, y1: y, y2: y, class: "grid" }));
    drawing.append(svg("text", { x: LEFT - 4, y: y + 3, "text-anchor": "end" }, amount(value, panel.unit)));
  }
  const minutes = (state.to - state.from) / 60;
  drawing.append(svg("text", { x: LEFT, y: HEIGHT - 3 }, `${minutes.toFixed(1)} minutes ago`));
  drawing.append(svg("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
  return drawing;
}

const across = (state) => (t) => LEFT + ((WIDTH - LEFT) * (t - state.from)) / (state.to - state.from || 1);

function timeseries(panel, lines, state) {
  const values = lines.flatMap(({ points }) => points.map(([, value]) => value));
  const low = panel.top ? 0 : Math.min(0, ...values);
  const high = panel.top ?? (Math.max(...values, panel.line ?? 0) || 1);
  const x = across(state);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 8) * (value - low)) / (high - low);
  const told = lines.slice(0, COLOURS).map((line) => `${line.name} ${amount(lastOf(line), panel.unit)}`);
  const drawing = frame(panel, state, `${panel.title}: ${told.join(", ")}`, low, high);
  if (panel.line != null) {
    drawing.append(svg("line", { x1: LEFT, x2: WIDTH, y1: y(panel.line), y2: y(panel.line), class: "limit" }));
  }
  lines.forEach(({ points }, i) => {
    const at = points.map(([t, value]) => `${x(t).toFixed(1)},${y(value).toFixed(1)}`);
    if (at.length === 1) at.unshift(`${x(points[0][0]) - 2},${y(points[0][1])}`);
    drawing.append(svg("polyline", { points: at.join(" "), class: `s${i % COLOURS}` }));
  });
  return [drawing, legend(lines, panel.unit)];
}

function bars(panel, lines) {
  const items = lines.map((line) => {
    const value = lastOf(line);
    const top = panel.top ?? (Math.max(...lines.map(lastOf)) || 1);
    const bar = html("meter", { min: 0, max: top, value, "aria-label": line.name });
    return html("li", {}, `${line.name}: ${amount(value, panel.unit)}`, bar);
  });
  return [html("ul", { class: "legend" }, ...items)];
}

function heatmap(panel, lines, state) {
  const bounds = lines.map((line) => [Number(line.metric.le), new Map(line.points)]);
  bounds.sort(([a], [b]) => a - b);
  const cells = [];
  bounds.forEach(([bound, counts], i) => {
    const below = i ? bounds[i - 1] : [0, new Map()];
    for (const [t, count] of counts) {
      cells.push([t, below[0], Math.min(bound, 1), count - (below[1].get(t) ?? 0)]);
    }
  });
  const most = Math.max(...cells.map((cell) => cell[3])) || 1;
  const x = across(state);
  const step = bounds[0][1].size > 1 ? (state.to - state.from) / bounds[0][1].size : 1;
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * value;
  const drawing = frame({ unit: "percentunit" }, state, `${panel.title}: counts by score and time`, 0, 1);
  for (const [t, low, high, count] of cells.filter((cell) => cell[3] > 0)) {
    const size = { width: Math.max(1, x(t + step) - x(t)), height: Math.max(1, y(low) - y(high)) };
    const opacity = (0.15 + (0.85 * count) / most).toFixed(2);
    drawing.append(svg("rect", { x: x(t), y: y(high), ...size, "fill-opacity": opacity, class: "cell" }));
  }
  return [drawing];
}

function table(panel, lines, state) {
  const names = ["alertname", "alertstate", "severity", "service_name", "gen_ai_evaluation_name"];
  const recent = ({ points }) => state.to - points.at(-1)[0] < 10 && points.at(-1)[1] > 0;
  const rows = lines.filter(recent).map(({ metric }) => names.map((name) => metric[name] ?? ""));
  if (!rows.length) return [html("p", { class: "empty" }, "none now")];
  const cells = (tag, texts) => html("tr", {}, ...texts.map((text) => html(tag, {}, text)));
  const head = html("thead", {}, cells("th", ["alert", "state", "severity", "service", "metric"]));
  const body = html("tbody", {}, ...rows.map((row) => cells("td", row)));
  const label = { class: "scroll", tabindex: 0, role: "region", "aria-label": panel.title };
  return [html("div", label, html("table", {}, head, body))];
}

const KINDS = { timeseries, stat: bars, bargauge: bars, heatmap, table };

function panelOf(panel, state) {
  const lines = linesOf(panel);
  const content = lines.length
    ? KINDS[panel.kind](panel, lines, state)
    : [html("p", { class: "empty" }, "no data yet")];
  const wide = panel.kind === "table" || panel.kind === "heatmap";
  return html(
    "article",
    { class: wide ? "panel wide-panel" : "panel", "data-empty": String(!lines.length) },
    html("h3", {}, panel.title),
    ...(panel.told ? [html("p", { class: "note" }, panel.told)] : []),
    ...content,
  );
}

// Means over the last turns, for a look without Prometheus.
function ownPanels(turns) {
  const scored = turns.filter(([, , scores]) => Object.keys(scores).length);
  const chart = (title, valuesOf) => {
    const lines = new Map();
    scored.forEach(([time], end) => {
      const recent = scored.slice(Math.max(0, end + 1 - WINDOW), end + 1).map(valuesOf);
      for (const name of Object.keys(recent.at(-1))) {
        const values = recent.map((each) => each[name]).filter((value) => value !== undefined);
        const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
        lines.set(name, [...(lines.get(name) ?? []), [time, mean]]);
      }
    });
    const series = [...lines].map(([legend, values]) => ({ legend, result: [{ metric: {}, values }] }));
    const told = `Of the last ${WINDOW} turns at each point, computed in this process.`;
    return { title, told, kind: "timeseries", unit: "percentunit", top: 1, series };
  };
  return [
    chart("Good answers", ([, label]) => ({ "label pass": label === "pass" ? 1 : 0 })),
    chart("Mean score", ([, , scores]) => scores),
  ];
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

const sameLabels = (one, other) => {
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  return [...names].every((name) => one[name] === other[name]);
};

function alertOf(alert, state) {
  const { alertname, severity, gen_ai_evaluation_name: metric } = alert.labels;
  const routed = state.routed.find(({ labels }) => sameLabels(labels, alert.labels));
  const sent = routed?.status.state === "suppressed" ? "inhibited by another" : routed?.receivers.map(({ name }) => name);
  const id = `alert-${Object.values(alert.labels).join("-")}`;
  return html(
    "article",
    { class: "panel" },
    html("h3", {}, html("span", { class: `badge ${alert.state}` }, alert.state), ` ${alertname}${metric ? `: ${metric}` : ""}`),
    html("p", {}, alert.annotations.summary ?? ""),
    html("p", { class: "note" }, `${severity} · ${alert.state} since ${clock(alert.changed)}${sent ? ` · Alertmanager: ${sent}` : ""}`),
    html("details", { id }, html("summary", {}, "What it tells"), html("p", {}, alert.annotations.description ?? "")),
  );
}

// The answer, with the parts marked that no context supports.
function marked(answer, offsets) {
  const letters = [...answer]; // offsets count characters
  const parts = [];
  let end = 0;
  for (let i = 0; i < offsets.length; i += 2) {
    parts.push(letters.slice(end, offsets[i]).join(""));
    parts.push(html("mark", {}, letters.slice(offsets[i], offsets[i + 1]).join("")));
    end = offsets[i + 1];
  }
  return [...parts, letters.slice(end).join("")];
}

function turnOf(turn, state) {
  const id = `turn-${turn.trace}`;
  const href = state.traces ? state.traces.replace("{trace_id}", turn.trace) : `#${id}`;
  const scores = Object.entries(turn.scores).map(([name, score]) => {
    const bar = html("meter", { min: 0, max: 1, value: score, "aria-label": name });
    return html("li", {}, `${name}: ${score.toFixed(2)}`, bar);
  });
  const contexts = turn.contexts.map((text) => html("li", {}, text));
  return html(
    "article",
    { class: "panel" },
    html("h3", {}, html("span", { class: `badge ${turn.label}` }, turn.label), ` ${turn.question}`),
    html("p", {}, ...marked(turn.answer, turn.offsets)),
    html("p", {}, turn.why),
    html("p", { class: "note" }, `${clock(turn.time)} · trace `, html("a", { href, id: `to-${turn.trace}` }, turn.trace)),
    html(
      "details",
      { id },
      html("summary", {}, "Scores and contexts"),
      html("ul", { class: "legend" }, ...scores),
      html("ol", {}, ...contexts),
    ),
  );
}

function tabs() {
  return dashboards.map(({ uid, title }) => {
    const pressed = { type: "button", id: `board-${uid}`, "aria-pressed": String(uid === board) };
    const button = html("button", pressed, title);
    button.addEventListener("click", () => {
      board = uid;
      refresh();
    });
    return button;
  });
}

async function asked(path) {
  return (await fetch(path)).json();
}

async function filled(panel, state) {
  const step = Math.max(1, Math.round((state.to - state.from) / POINTS));
  const series = panel.queries.map(async ({ expr, legend }) => {
    const query = VARIABLES.reduce((text, [variable, value]) => text.replaceAll(variable, value), expr);
    const reply = await asked(`/series?${new URLSearchParams({ query, start: state.from, end: state.to, step })}`);
    return { legend, result: reply?.data?.result ?? [] };
  });
  return { ...panel, series: await Promise.all(series) };
}

function show(state, panels) {
  put("phase", state.phase, () => [state.phase]);
  put("addresses", state.addresses, () =>
    Object.entries(state.addresses).map(([name, address]) => {
      const isPage = !name.startsWith("OTLP");
      return html("li", {}, `${name}: `, isPage ? html("a", { href: address }, address) : address);
    }),
  );
  const rank = ({ state, labels }) => (state === "firing" ? 0 : 2) + (labels.severity === "page" ? 0 : 1);
  const alerts = [...(state.alerts ?? [])].sort((a, b) => rank(a) - rank(b) || b.changed - a.changed);
  const none = state.alerts ? "None fires." : "Alerts need Prometheus and the collector.";
  const [firing, resolved] = ["firing", "resolved"].map((kind) => alerts.filter((alert) => alert.state === kind));
  const shownAlerts = (some) => some.map((alert) => alertOf(alert, state));
  put("alerts", [firing, state.routed, none], () => (firing.length ? shownAlerts(firing) : [html("p", {}, none)]));
  put("resolved", resolved, () => shownAlerts(resolved));
  put("count", resolved.length, () => [`Resolved: ${resolved.length}`]);
  put("boards", [state.alerts !== null, board], () => (state.alerts ? tabs() : []));
  put("panels", state.to, () => panels.map((panel) => panelOf(panel, state)));
  put("turns", state.turns.length, () => [`The latest turn of each question, the worst of ${state.turns.length} turns.`]);
  put("worst", state.worst, () => state.worst.map((turn) => turnOf(turn, state)));
}

let timer = 0;
async function refresh() {
  clearTimeout(timer);
  try {
    if (!dashboards.length) dashboards = await asked("/dashboards.json");
    const state = await asked("/state");
    const { panels } = dashboards.find(({ uid }) => uid === board);
    show(state, state.alerts ? await Promise.all(panels.map((panel) => filled(panel, state))) : ownPanels(state.turns));
  } catch {
    put("phase", "ended", () => ["The command has ended."]);
  }
  timer = setTimeout(refresh, EVERY);
}

// A link to a turn opens its details.
addEventListener("hashchange", () => {
  const details = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (details?.tagName === "DETAILS") details.open = true;
});
refresh();
