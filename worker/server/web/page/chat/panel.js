// Shows the worker's figures: its name, its state, meters, and a trace of the last two minutes.

import { byId, write } from "./dom.js";

const N_TRACED = 60;
const WORDS = { starting: "loading", unauthorized: "token required" };

const traced = [];

// `seen` is the result of vitals.js.
export function paint({ state, health, metrics, speed }) {
  byId("state").dataset.state = state;
  write("state", WORDS[state] ?? state);
  if (health?.model) write("model", nameOf(health));
  if (health) paintHealth(health);
  if (metrics) paintMetrics(metrics, health);
  trace(speed);
}

function nameOf({ model, quant_kind, context_length }) {
  return `${model} · ${quant_kind} · context ${number(context_length)}`;
}

function paintHealth({ slots_busy, slots_total, queue_depth }) {
  write("slots", slots_total ? `${slots_busy} of ${slots_total} busy` : "–");
  meter("slots-bar", slots_busy, slots_total);
  byId("slots-bar").style.setProperty("--n", slots_total);
  write("queue", queue_depth === 0 ? "empty" : `${number(queue_depth)} waiting`);
}

function paintMetrics(metrics, { prefix_cache: prefix }) {
  const { worker_kv_cells_used: used, worker_kv_cells_total: total } = metrics;
  write("cells", total ? `${number(used)} of ${number(total)}` : "–");
  meter("cells-bar", used, total);
  write("prefix", prefix.off_because ?? `${number(prefix.tokens)} tokens, ${mib(prefix.bytes)} MiB`);
  meter("prefix-bar", prefix.bytes, prefix.limit_bytes);
}

function trace(speed) {
  write("speed", speed === null ? "–" : speed < 10 ? speed.toFixed(1) : Math.round(speed));
  traced.push(speed ?? 0);
  if (traced.length > N_TRACED) traced.shift();
  const max = Math.max(1, ...traced);
  const points = traced.map((value, n) => `${2 * (N_TRACED - traced.length + n)},${(23 - (22 * value) / max).toFixed(1)}`);
  byId("trace").firstElementChild.setAttribute("points", points.join(" "));
}

function meter(id, value, max) {
  const bar = byId(id);
  bar.hidden = !max;
  if (!max) return;
  bar.style.setProperty("--p", value / max);
  bar.setAttribute("aria-valuenow", value);
  bar.setAttribute("aria-valuemin", 0);
  bar.setAttribute("aria-valuemax", max);
}

function number(n) {
  return n.toLocaleString("en");
}

function mib(bytes) {
  return number(Math.round(bytes / 2 ** 20));
}
