// Keeps the page live, and gives it keys. The server renders everything; nothing here makes HTML.
"use strict";

const prefix = document.body.dataset.prefix;
const interval = Number(document.body.dataset.interval) * 1000;
const byId = (id) => document.getElementById(id);

// ---- Live: the server says that a round has ended, and the page fetches itself again.

const liveness = byId("liveness");
let paused = sessionStorage.getItem("paused") === "yes";
let lastRound = null; // when the backend could last be read, as the server says
let lastHeard = 0;
let failing = false;
let refreshing = false;
let refreshedAt = 0;
let waiting = null;

function clockTime(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

function showLiveness() {
  const silent = Date.now() - lastHeard > 3 * interval + 3000;
  let state = "live", text = "live";
  if (paused) {
    state = "paused"; text = "paused";
  } else if (!lastHeard) {
    state = "connecting"; text = "connecting";
  } else if (silent || failing) {
    state = "stale";
    text = "stale since " + (lastRound ? clockTime(lastRound) : "the start");
  }
  if (liveness.dataset.state !== state || liveness.textContent !== text) {
    liveness.dataset.state = state;
    liveness.textContent = text;
  }
}

function isBusy() {
  // What somebody is writing or has opened must not be taken away under their hands.
  const active = document.activeElement;
  const typing = active && active.closest("#live") && active.matches("input:not([type=checkbox]), textarea, select");
  return typing || document.hidden || refreshing;
}

function refreshSoon() {
  if (paused || waiting) return;
  const wait = Math.max(0, 1000 - (Date.now() - refreshedAt));
  waiting = setTimeout(() => {
    waiting = null;
    if (!paused && !isBusy()) {
      refreshing = true;
      htmx.trigger("#live", "refresh");
    }
  }, wait);
}

function listen() {
  const events = new EventSource(prefix + "/events");
  events.addEventListener("round", (event) => {
    const round = JSON.parse(event.data);
    lastHeard = Date.now();
    failing = round.error !== null;
    if (round.at !== null) lastRound = round.at * 1000;
    showLiveness();
    refreshSoon();
  });
}

function setPaused(value) {
  paused = value;
  sessionStorage.setItem("paused", paused ? "yes" : "no");
  showLiveness();
  if (!paused) refreshSoon();
}

liveness.addEventListener("click", () => setPaused(!paused));
setInterval(showLiveness, 1000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshSoon(); });

// ---- What a refresh must not lose: ticks, opened details, the row of the keyboard.

let kept = null;

document.addEventListener("htmx:beforeSwap", () => {
  const live = byId("live");
  kept = {
    ticked: [...live.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value),
    open: [...live.querySelectorAll("details[open][id]")].map((one) => one.id),
    row: currentRow(),
  };
});

document.addEventListener("htmx:afterSwap", () => {
  if (!kept) return;
  for (const box of byId("live").querySelectorAll("input[type=checkbox]")) {
    if (kept.ticked.includes(box.value)) box.checked = true;
  }
  for (const id of kept.open) byId(id)?.setAttribute("open", "");
  if (kept.row >= 0) markRow(kept.row, false);
  draw();
  countTicks();
});

document.addEventListener("htmx:afterRequest", (event) => {
  refreshing = false;
  refreshedAt = Date.now();
  const xhr = event.detail.xhr;
  if (xhr && xhr.responseURL.includes("/login")) location.reload(); // the token has changed
});

// ---- Ticks, and buttons that say how many they act on.

function countTicks() {
  const ticked = document.querySelectorAll("input[data-letter]:checked").length;
  for (const button of document.querySelectorAll("button[data-ticked]")) {
    button.disabled = ticked === 0;
    button.textContent = button.dataset.ticked.replace("#", ticked);
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("input[data-all]")) {
    for (const box of document.querySelectorAll("input[data-letter]")) box.checked = event.target.checked;
  }
  countTicks();
});

document.addEventListener("submit", (event) => {
  const question = event.submitter && event.submitter.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// ---- Keys.

const rows = () => [...document.querySelectorAll("[data-row]")];
const currentRow = () => rows().findIndex((row) => row.classList.contains("current"));
let before = "";

function markRow(index, scroll = true) {
  const all = rows();
  if (!all.length) return;
  const at = Math.max(0, Math.min(index, all.length - 1));
  all.forEach((row, number) => row.classList.toggle("current", number === at));
  if (scroll) all[at].scrollIntoView({ block: "nearest" });
}

function openRow() {
  const row = rows()[currentRow()];
  row?.querySelector("a")?.click();
}

const actions = {
  "/": () => document.querySelector("[type=search]")?.focus(),
  "?": () => byId("help").showModal(),
  r: () => setPaused(!paused),
  j: () => markRow(currentRow() + 1),
  k: () => markRow(currentRow() - 1),
  Enter: openRow,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (event.target.matches("input, textarea, select, button, a, summary") && !(event.target.matches("input[type=checkbox], a, button") && event.key !== "Enter")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const both = before + " " + event.key;
  before = event.key;
  setTimeout(() => { before = ""; }, 1000);
  const link = document.querySelector(`nav a[data-key="${CSS.escape(both)}"]`)
    || [...document.querySelectorAll("nav a")].find((one) => one.dataset.key === both);
  if (link) {
    location.href = link.href;
  } else if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

byId("show-help").addEventListener("click", () => byId("help").showModal());

// ---- The chart of a queue.

function draw() {
  for (const place of document.querySelectorAll("[data-chart]")) {
    if (place.firstChild) continue;
    const [at, pending, inFlight, delayed] = JSON.parse(place.dataset.chart);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const short = at[at.length - 1] - at[0] < 600;
    const days = at[at.length - 1] - at[0] > 90000;
    const utc = (second) => new Date(second * 1000).toISOString();
    const times = (plot, seconds) => seconds.map((one) => days ? utc(one).slice(5, 16).replace("T", " ") : utc(one).slice(11, short ? 19 : 16));
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const step = uPlot.paths.stepped({ align: 1 });
    const series = (label, stroke, fill) => ({ label, stroke, fill, width: 1.5, paths: step, points: { show: false } });
    new uPlot({
      width: place.clientWidth, height: 190, cursor: { y: false },
      scales: { y: { range: (plot, low, high) => [0, Math.max(high, 1)] } },
      legend: { live: false },
      axes: [{ ...axis, values: times, space: 90 }, { ...axis, size: 60 }],
      series: [
        {},
        series("pending", colour("--accent"), colour("--accent-fill")),
        series("in flight", colour("--good")),
        series("delayed", colour("--notice")),
      ],
    }, [at, pending, inFlight, delayed], place);
  }
}

showLiveness();
countTicks();
draw();
if (byId("live")) listen();
