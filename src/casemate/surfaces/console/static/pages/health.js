// The service's health: current load, the last hour, its limits, and what this machine offers.
import { call } from "../api.js";
import { Failed, Table, duration, html, size, time, useAsked, useEffect, useRef, visible } from "../ui.js";

const EVERY = 5000; // milliseconds between updates of a visible page
const STATUSES = [["ok", "--good"], ["failed", "--bad"], ["timeout", "--wait"], ["out_of_memory", "--wait"], ["denied", "--link"]];
const DRAWN = [
  ["Executions a minute", STATUSES.map(([status, color]) => [status, color, (one) => one.by_status[status] ?? 0]), String],
  ["How long they took", [["median", "--link", (one) => one.seconds], ["longest", "--wait", (one) => one.slowest]], duration],
  ["What crossed the wall", [["allowed", "--good", (one) => one.allowed], ["denied", "--bad", (one) => one.denied], ["asked", "--link", (one) => one.asked]], String],
  ["Most memory of one", [["memory", "--link", (one) => one.peak_memory]], size],
];

/** Use the result of `load`, loaded again every `every` milliseconds while the page is visible. */
function useLooked(load, every) {
  const [value, error, again] = useAsked(load, []);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || again(), every);
    return () => clearInterval(timer);
  }, []);
  return [value, error];
}

export function Page() {
  const [stats, failed] = useLooked(() => call("stats"), EVERY);
  const [minutes, unread] = useLooked(() => call("audit.chart"), 60000);
  return html`<${Failed} error=${failed} />${stats && html`<${Now} ...${stats} />`}
    <section class="card"><h2>The last hour</h2><${Failed} error=${unread} />
      ${minutes && html`<div class="charts">${DRAWN.map(([title, series, shown]) => html`<${Chart} key=${title} title=${title} series=${series} shown=${shown} minutes=${minutes} />`)}</div><${AsTable} minutes=${minutes} />`}</section>
    <${Machine} /><${InForce} />`;
}

function Now({ running, waiting, concurrency, sessions, approvals, cells, zygotes, room, totals }) {
  const facts = [
    ["Run now", `${running} of ${concurrency}`], ["Wait for a turn", waiting], ["Sessions", sessions], ["Wait for approval", approvals],
    ["Cells with a program", cells.running], ["Ready cells", cells.ready], ["Warmed interpreters", zygotes],
    ["Memory of cells", cells.memory == null ? "not known" : size(cells.memory)], ["Memory left here", size(room.memory)],
    ["Ended since the start", totals.executions],
  ];
  return html`<section class="card"><h2>Now</h2><dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}

async function loadPlot() {
  if (!document.querySelector("link[href='vendor/uplot.css']")) document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "vendor/uplot.css" }));
  return (await import("../vendor/uplot.js")).default;
}

function Chart({ title, series, shown, minutes }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [minutes.map((one) => one.time), ...series.map(([, , of]) => minutes.map(of))];
  useEffect(() => {
    let isOver = false;
    const stop = new AbortController();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const draw = async () => {
      const uPlot = await loadPlot();
      if (isOver) return;
      const color = (name) => { // the current scheme's color: a canvas knows no CSS variables
        place.current.style.color = `var(${name})`;
        return getComputedStyle(place.current).color;
      };
      const axis = { stroke: color("--front"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
      plot.current?.destroy();
      plot.current = new uPlot({
        width: place.current.clientWidth, height: 150, legend: { show: false }, cursor: { show: false },
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high : 1] } },
        axes: [axis, { ...axis, size: 75, values: (_, ticks) => ticks.map(shown) }],
        series: [{}, ...series.map(([label, name]) => ({ label, stroke: color(name), width: 2, points: { show: false } }))],
      }, data, place.current);
    };
    draw();
    scheme.addEventListener("change", draw, { signal: stop.signal });
    const watch = new ResizeObserver(([{ contentRect }]) => plot.current?.setSize({ width: contentRect.width, height: 150 }));
    watch.observe(place.current);
    return () => {
      isOver = true;
      stop.abort();
      watch.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => { plot.current?.setData(data); }, [minutes]);
  return html`<figure><figcaption>${title} <span class="legend">${series.map(([label, color]) => html`<span><i class=${`key ${color.slice(2)}`}></i>${label.replaceAll("_", " ")}</span> `)}</span></figcaption>
    <div ref=${place} role="img" aria-label=${`${title}; as a table below`}></div></figure>`;
}

function AsTable({ minutes }) {
  const busy = minutes.filter((one) => Object.keys(one.by_status).length || one.allowed || one.denied || one.asked);
  const columns = [
    ["Minute", (one) => time(one.time)],
    ["Executions", (one) => visible(Object.entries(one.by_status).map(([status, count]) => `${count} ${status}`).join(", "))],
    ["Median", (one) => duration(one.seconds)], ["Longest", (one) => duration(one.slowest)], ["Memory", (one) => size(one.peak_memory)],
    ["Allowed", (one) => one.allowed], ["Denied", (one) => one.denied], ["Asked", (one) => one.asked],
  ];
  return html`<details><summary>As a table</summary><${Table} columns=${columns} rows=${busy} label="The last hour" empty="Nothing went on." /></details>`;
}

function Machine() {
  const [found, error] = useAsked(() => call("doctor"), []);
  if (!found) return html`<section class="card"><h2>This machine</h2><${Failed} error=${error} />${error ? null : html`<p class="empty">It is looked at…</p>`}</section>`;
  const walls = [
    ["Wall", (wall) => visible(wall.name)],
    ["Can be had", (wall) => (wall.report ? html`<span class="ok">yes</span>` : html`<span class="bad">no</span>`)],
    ["Proved, or why not", (wall) => (wall.report ? `${wall.report.proofs.length} proofs` : visible(wall.problem))],
    ["What helps", (wall) => visible(wall.remedy)],
  ];
  const languages = [
    ["Language", (one) => visible(one.language)], ["Version", (one) => visible(one.version)],
    ["Where", (one) => html`<code>${visible(one.path)}</code>`], ["Missing", (one) => visible([one.missing, one.remedy].filter(Boolean).join("; "))],
  ];
  return html`<section class="card"><h2>This machine</h2><p>casemate ${visible(found.version)} on ${visible(found.system)}</p>
    <${Table} columns=${walls} rows=${found.walls} label="Walls" /><${Table} columns=${languages} rows=${found.languages} label="Languages" />
    ${found.advice.length ? html`<h3>What would make it better</h3><ul>${found.advice.map((one) => html`<li>${visible(one)}</li>`)}</ul>` : null}</section>`;
}

const SIZES = new Set(["memory", "output", "full_output", "disk"]);
const SECONDS = new Set(["wall", "cpu_time"]);

function InForce() {
  const [limits, error] = useAsked(() => call("set_limits", { limits: {} }), []);
  const shown = (name, value) => (value == null ? "none" : SIZES.has(name) ? size(value) : SECONDS.has(name) ? duration(value) : value);
  return html`<section class="card"><h2>Limits of what you run</h2><${Failed} error=${error} />
    ${limits && html`<dl class="facts">${Object.entries(limits).map(([name, value]) => html`<div><dt>${visible(name.replaceAll("_", " "))}</dt><dd>${shown(name, value)}</dd></div>`)}</dl>`}</section>`;
}
