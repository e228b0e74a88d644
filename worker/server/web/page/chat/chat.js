// The page: a conversation, its settings, and the worker's state.
//
// Owns the turns and their elements. A turn of the model is {role, content, reasoning, calls, entries, usage, firstS, lastS,
// finish, failure}: `calls` are {name, arguments}, `entries` has its tokens and their probabilities, and times are in
// seconds since the question. The page stores data in this tab's session storage only, and sends it to this worker only.

import { byId, button, copy, copyButton, make, write } from "./dom.js";
import { codeBlock, show } from "./markdown.js";
import { append, explain } from "./probabilities.js";
import { take, Aside } from "./parts.js";
import { curl, jsonOf, python, requestOf } from "./request.js";
import { chat, headers } from "./stream.js";
import { paint } from "./panel.js";
import { watch } from "./vitals.js";

// One host may serve several workers, each below a path of its own.
const STORAGE_KEY = `llorch-worker ${location.pathname}`;
const WIDE = matchMedia("(min-width: 62rem)");
const NEAR_END_PX = 80;

const [log, scroller, prompt, settings, panel] = ["log", "scroller", "prompt", "settings", "panel"].map(byId);

const page = { turns: [], token: "", model: "default", contextLength: 0, state: "", answering: null };
const views = new WeakMap();

// ── a conversation ───────────────────────────────────────────────────────────────────────────────

async function send() {
  const text = prompt.value.trim();
  if (text === "" || page.answering !== null || !isSettled()) return;
  prompt.value = "";
  fit();
  add({ role: "user", content: text });
  await answer();
}

// Requests an answer to the turns. If the answer never begins, the question returns to the box.
async function answer() {
  const request = requestOf(settings, page.turns, page.model);
  const turn = { role: "assistant", content: "", reasoning: "", calls: [], entries: [], isJson: "response_format" in request };
  add(turn);
  notice();
  begin(turn);
  try {
    await receive(turn, request);
  } catch (error) {
    fail(turn, error);
  } finally {
    end(turn);
  }
}

async function receive(turn, request) {
  const stream_options = { include_usage: true, continuous_usage_stats: true };
  const beganS = performance.now() / 1000;
  for await (const chunk of chat({ ...request, stream: true, stream_options }, page.token, page.answering.signal)) {
    const choice = chunk.choices[0];
    if (choice !== undefined && take(turn, choice.delta)) {
      turn.lastS = performance.now() / 1000 - beganS;
      turn.firstS ??= turn.lastS;
    }
    turn.entries.push(...(choice?.logprobs?.content ?? []));
    turn.finish = choice?.finish_reason ?? turn.finish;
    turn.usage = chunk.usage ?? turn.usage;
    drawSoon(turn);
  }
}

function fail(turn, error) {
  const isStopped = error.name === "AbortError";
  if (isStopped) turn.finish = "stopped";
  else turn.failure = error instanceof TypeError ? "The worker cannot be reached." : error.message;
  if (!isStopped) ask();
  if (!isEmpty(turn) || !page.turns.includes(turn)) return;
  const question = page.turns.at(-2);
  cut(question);
  if (prompt.value === "") prompt.value = question.content;
  fit();
  if (!isStopped) notice(turn.failure, error.retryAfterS);
}

function isEmpty(turn) {
  return !turn.content && !turn.reasoning && !turn.calls?.length;
}

function begin(turn) {
  page.answering = new AbortController();
  views.get(turn).body.setAttribute("aria-busy", "true");
  byId("send").hidden = true;
  byId("stop").hidden = false;
}

function end(turn) {
  page.answering = null;
  byId("send").hidden = false;
  byId("stop").hidden = true;
  if (page.turns.includes(turn)) {
    draw(turn);
    views.get(turn).body.removeAttribute("aria-busy");
  }
  keep();
}

function again() {
  if (!isSettled()) return;
  cut(page.turns.at(-1));
  answer();
}

function edit(turn) {
  prompt.value = turn.content;
  cut(turn);
  fit();
  prompt.focus();
}

function stop() {
  page.answering?.abort();
}

// ── elements ─────────────────────────────────────────────────────────────────────────────────

function add(turn) {
  const body = make("div", { class: "body" });
  const foot = make("footer");
  const label = turn.role === "user" ? "You" : "The model";
  const aside = new Aside();
  const article = make("article", { class: `turn ${turn.role}`, "aria-label": label }, aside.thoughts, body, aside.calls, foot);
  views.set(turn, { article, aside, body, foot, frame: 0 });
  const before = page.turns.at(-1);
  page.turns.push(turn);
  log.append(article);
  byId("empty").hidden = true;
  if (before) drawFoot(before);
  draw(turn);
  scroller.scrollTop = scroller.scrollHeight;
}

// Removes a turn and all turns after it.
function cut(turn) {
  stop();
  for (const gone of page.turns.splice(page.turns.indexOf(turn))) views.get(gone).article.remove();
  byId("empty").hidden = page.turns.length > 0;
  if (page.turns.length > 0) drawFoot(page.turns.at(-1));
  keep();
}

// Draws with the next frame, because many chunks may come between two frames.
function drawSoon(turn) {
  const view = views.get(turn);
  view.frame ||= requestAnimationFrame(() => {
    view.frame = 0;
    draw(turn);
  });
}

function draw(turn) {
  const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
  drawBody(turn, views.get(turn));
  views.get(turn).aside.draw(turn);
  drawFoot(turn);
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

function drawBody(turn, view) {
  const style = styleOf(turn);
  if (view.style !== style) {
    view.body = replaced(view.body, make("div", { class: `body ${style}` }));
    view.style = style;
    view.nShown = 0;
  }
  if (style === "said") view.body.textContent = turn.content;
  else if (style === "json") view.body.replaceChildren(codeBlock(turn.content, "json"));
  else if (style === "written") show(view.body, turn.content);
  else {
    append(view.body, turn.entries.slice(view.nShown));
    view.nShown = turn.entries.length;
  }
}

function styleOf(turn) {
  if (turn.role === "user") return "said";
  if (turn.entries.length > 0 && settings.elements.probabilities.checked) return "tokens";
  return turn.isJson ? "json" : "written";
}

function replaced(old, fresh) {
  if (old.hasAttribute("aria-busy")) fresh.setAttribute("aria-busy", "true");
  old.replaceWith(fresh);
  return fresh;
}

function drawFoot(turn) {
  const { foot } = views.get(turn);
  const isLast = turn === page.turns.at(-1);
  const actions = [];
  if (turn.role === "user") actions.push(button("Edit", () => edit(turn)));
  else if (!(isLast && page.answering)) actions.push(copyButton(() => turn.content));
  if (turn.role === "assistant" && isLast && !page.answering) actions.push(button("Regenerate", again));
  foot.replaceChildren(make("span", { class: "usage" }, usage(turn)), make("span", { class: "actions" }, ...actions));
  if (turn.failure) foot.prepend(make("p", { class: "failure", role: "alert" }, `The answer was cut off. ${turn.failure}`));
}

function usage(turn) {
  if (!turn.usage || isEmpty(turn)) return "";
  const { completion_tokens: n, prompt_tokens: read, prompt_tokens_details: details, total_tokens: total } = turn.usage;
  const parts = [counted(n, "token")];
  if (n > 1 && turn.lastS > turn.firstS) parts.push(`${((n - 1) / (turn.lastS - turn.firstS)).toFixed(1)} tokens/s`);
  parts.push(`first token ${turn.firstS < 1 ? `${Math.round(1000 * turn.firstS)} ms` : `${turn.firstS.toFixed(1)} s`}`);
  parts.push(`${details?.cached_tokens ?? 0} of ${counted(read, "prompt token")} cached`);
  if (page.contextLength > 0) parts.push(`context ${Math.ceil((100 * total) / page.contextLength)} % full`);
  if (turn.finish === "length") parts.push("stopped at max tokens");
  if (turn.finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function counted(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

// ── messages ─────────────────────────────────────────────────────────────────────────────────

let countdown = 0;

// Shows a message above the box, or removes it. With `waitS` it counts down and then enables another try.
function notice(message = "", waitS = 0) {
  clearInterval(countdown);
  write("notice-text", message);
  byId("notice").hidden = message === "";
  const retry = byId("retry");
  retry.hidden = waitS === 0;
  let leftS = Math.ceil(waitS);
  const tick = () => {
    retry.disabled = leftS > 0;
    retry.textContent = leftS > 0 ? `Try again in ${leftS} s` : "Try again";
    if (leftS === 0) clearInterval(countdown);
    leftS -= 1;
  };
  if (waitS === 0) return;
  countdown = setInterval(tick, 1000);
  tick();
}

const BANNERS = {
  starting: "The model is loading. Messages are answered as soon as it is ready.",
  restarting: "The model engine stopped unexpectedly and is restarting. Requests without output are retried automatically.",
  draining: "The worker is shutting down and accepts no new messages.",
  failed: "The worker has failed and is about to exit. See its log for the cause.",
  unreachable: "The worker cannot be reached. Retrying…",
};

function showState(seen) {
  const text = BANNERS[seen.state] ?? "";
  write("banner", text);
  byId("banner").hidden = text === "";
  const isRefused = seen.state === "unauthorized";
  byId("token-form").hidden = !isRefused;
  write("token-wrong", isRefused && page.token !== "" ? "Wrong token." : "");
  if (seen.state !== page.state) changeState(seen.state);
  if (seen.health?.context_length) page.contextLength = seen.health.context_length;
  paint(seen);
}

function changeState(state) {
  page.state = state;
  if (state === "unauthorized") byId("token").focus();
  if (state === "ready") fetchName();
}

// Reads the model's name, which requests must have with --strict-model.
async function fetchName() {
  try {
    const response = await fetch("v1/models", { headers: headers(page.token) });
    if (response.ok) page.model = (await response.json()).data[0].id;
  } catch {
    // The next check of the state reports that the worker cannot be reached.
  }
}

// ── settings, code, storage ─────────────────────────────────────────────────────────────────

// True if the settings are valid; else the first invalid one is shown.
function isSettled() {
  const wrong = JSON_FIELDS.filter(isWrong).map((name) => settings.elements[name])[0]
    ?? [...settings.elements].find((each) => !each.validity.valid);
  if (wrong === undefined) return true;
  openPanel(true);
  wrong.focus();
  wrong.reportValidity();
  return false;
}

const JSON_FIELDS = ["schema", "tools"];

// True if a field's text is not JSON, which is shown below it.
function isWrong(name) {
  let wrong = "";
  try {
    jsonOf(settings, name);
  } catch (error) {
    wrong = `Invalid JSON: ${error.message}`;
  }
  byId(`${name}-wrong`).textContent = wrong;
  settings.elements[name].setAttribute("aria-invalid", wrong !== "");
  return wrong !== "";
}

function openPanel(isOpen) {
  panel.hidden = !isOpen;
  byId("show-panel").setAttribute("aria-expanded", isOpen);
}

// The request of the last answer, or the request that Send would send now.
function requestOnScreen() {
  const pending = prompt.value.trim();
  const nAsked = page.turns.findLastIndex((turn) => turn.role === "user") + 1;
  const turns = pending ? [...page.turns, { role: "user", content: pending }] : page.turns.slice(0, nAsked);
  if (turns.length === 0) turns.push({ role: "user", content: "Hello" });
  return requestOf(settings, turns, page.model);
}

function showCode(language = "curl") {
  const write = { curl, python }[language];
  byId("code-text").textContent = write(requestOnScreen(), document.baseURI, page.token !== "");
  byId("code-text").setAttribute("aria-labelledby", `as-${language}`);
  for (const tab of byId("code").querySelectorAll("[role=tab]")) {
    const isChosen = tab.id === `as-${language}`;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
  }
}

function keep() {
  const turns = page.turns.map(({ entries, ...turn }) => (entries ? { ...turn, entries: [] } : turn));
  const values = [...settings.elements].map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]);
  try {
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify({ token: page.token, turns, settings: Object.fromEntries(values) }));
  } catch {
    // If the browser does not store it, the conversation lasts as long as the page.
  }
}

function recall() {
  const kept = JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "null");
  if (kept === null) return;
  page.token = kept.token;
  for (const [name, value] of Object.entries(kept.settings)) {
    const field = settings.elements[name];
    if (field?.type === "checkbox") field.checked = value;
    else if (field) field.value = value;
  }
  kept.turns.forEach(add);
}

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

// ── events ───────────────────────────────────────────────────────────────────────────

function onSubmit(form, act) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
}

function onClick(id, act) {
  byId(id).addEventListener("click", act);
}

onSubmit(byId("composer"), send);
onSubmit(settings, () => {});
onSubmit(byId("token-form"), () => {
  page.token = byId("token").value.trim();
  byId("token").value = "";
  keep();
  ask();
});
onClick("stop", stop);
onClick("clear", () => {
  if (page.turns.length > 0) cut(page.turns[0]);
  notice();
  prompt.focus();
});
onClick("show-panel", () => openPanel(panel.hidden));
onClick("show-code", () => {
  if (JSON_FIELDS.some(isWrong)) return void isSettled();
  showCode();
  byId("code").showModal();
});
onClick("close-code", () => byId("code").close());
onClick("copy-code", (event) => copy(event.currentTarget, byId("code-text").textContent));
for (const language of ["curl", "python"]) onClick(`as-${language}`, () => showCode(language));
byId("code").querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const other = event.target.id === "as-curl" ? "python" : "curl";
  showCode(other);
  byId(`as-${other}`).focus();
});

prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  // On a phone Enter is the only key for a new line.
  const isSent = event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
  if (!isSent) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("code").open) return;
  if (page.answering) stop();
  else if (!WIDE.matches) openPanel(false);
});
settings.addEventListener("input", (event) => {
  if (JSON_FIELDS.includes(event.target.name)) isWrong(event.target.name);
  if (event.target.name === "probabilities") page.turns.forEach(draw);
  keep();
});
WIDE.addEventListener("change", () => openPanel(WIDE.matches));

openPanel(WIDE.matches);
explain(log, byId("odds"));
recall();
const ask = watch(() => page.token, showState);
