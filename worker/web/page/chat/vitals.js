// What the worker is doing: asked of /health, which is open, and of /metrics, which wants the token, while the page is seen.

import { headers } from "./stream.js";

const PERIOD_MS = 2000;
const HURRIED_MS = 500;
// While the worker is not ready, somebody waits for it.

const SAMPLE = /^(worker_[a-z_]+)\{worker_id="[^"]*"\} (\S+)$/gm;

// Calls `show` with what was found out: {state, health, metrics, speed}, where `state` is /health's, "unreachable" or
// "unauthorized", and what is not known is null. Returns a function that asks at once.
export function watch(token, show) {
  let timer = 0;
  let before = null;
  let refused = null;
  const ask = async () => {
    clearTimeout(timer);
    const given = token();
    // A token that was refused is not tried again and again: each refusal is a line in the worker's log.
    const seen = await look(given, given === refused);
    refused = seen.state === "unauthorized" ? given : null;
    const now = seen.metrics && { atS: performance.now() / 1000, drawn: seen.metrics.worker_tokens_generated_total };
    seen.speed = now && before && now.drawn >= before.drawn ? (now.drawn - before.drawn) / (now.atS - before.atS) : null;
    before = now;
    show(seen);
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(ask, ["ready", "unauthorized"].includes(seen.state) ? PERIOD_MS : HURRIED_MS);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  ask();
  return ask;
}

async function look(token, isRefused) {
  const nothing = { health: null, metrics: null };
  try {
    const [told, counted] = await Promise.all([
      fetch("health", { cache: "no-store" }),
      isRefused ? null : fetch("metrics", { cache: "no-store", headers: headers(token) }),
    ]);
    const health = await told.json();
    if (isRefused || counted.status === 401) return { state: "unauthorized", health, metrics: null };
    return { state: health.state, health, metrics: counted.ok ? samples(await counted.text()) : null };
  } catch {
    return { state: "unreachable", ...nothing };
  }
}

// The series without labels of their own.
function samples(text) {
  return Object.fromEntries([...text.matchAll(SAMPLE)].map(([, name, value]) => [name, Number(value)]));
}
