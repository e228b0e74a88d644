// The worker's state, from /health, which is open, and /metrics, which needs the token, while the page is visible.

import { headers } from "./stream.js";

const PERIOD_MS = 2000;
const HURRIED_MS = 500;
// The shorter period applies while the worker is not ready, because the user waits for it.

const SAMPLE = /^(worker_[a-z_]+)\{worker_id="[^"]*"\} (\S+)$/gm;

// Calls `show` with {state, health, metrics, speed}: `state` is /health's, "unreachable" or "unauthorized", and unknown
// values are null. Returns a function that asks at once.
export function watch(token, show) {
  let timer = 0;
  let before = null;
  let refused = null;
  const ask = async () => {
    clearTimeout(timer);
    const given = token();
    // A refused token is not tried again, because each refusal is a line in the worker's log.
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
    const [answer, counted] = await Promise.all([
      fetch("health", { cache: "no-store" }),
      isRefused ? null : fetch("metrics", { cache: "no-store", headers: headers(token) }),
    ]);
    const health = await answer.json();
    if (isRefused || counted.status === 401) return { state: "unauthorized", health, metrics: null };
    return { state: health.state, health, metrics: counted.ok ? samples(await counted.text()) : null };
  } catch {
    return { state: "unreachable", ...nothing };
  }
}

// The series that have no labels other than worker_id.
function samples(text) {
  return Object.fromEntries([...text.matchAll(SAMPLE)].map(([, name, value]) => [name, Number(value)]));
}
