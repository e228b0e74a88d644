// An answer as tokens, coloured by probability, and the alternatives of each token.

import { make } from "./dom.js";

const N_SHOWN = 5;

// Appends the tokens of a chunk's `logprobs.content` to `container`, which holds the bytes of an incomplete character.
export function append(container, entries) {
  container.decoder ??= new TextDecoder();
  for (const entry of entries) {
    // A character may have several tokens; the last one shows it.
    const text = entry.bytes ? container.decoder.decode(Uint8Array.from(entry.bytes), { stream: true }) : entry.token;
    const token = make("span", { class: "token", tabindex: container.firstChild ? "-1" : "0" }, text);
    if (text === "") token.classList.add("part");
    token.style.setProperty("--p", Math.exp(entry.logprob));
    token.entry = entry;
    container.append(token);
  }
}

// Shows a token's alternatives in `tooltip` while it is pointed at or has the focus; arrow keys walk along the answer.
export function explain(log, tooltip) {
  const hide = () => { tooltip.hidden = true; };
  const reveal = (event) => {
    const token = event.target.closest?.(".token");
    if (token) display(token, tooltip);
    else hide();
  };
  log.addEventListener("pointerover", reveal);
  log.addEventListener("pointerleave", hide);
  log.addEventListener("focusin", reveal);
  log.addEventListener("focusout", hide);
  log.addEventListener("keydown", (event) => walk(event, hide));
  log.parentElement.addEventListener("scroll", hide, { passive: true });
}

function walk(event, hide) {
  const token = event.target.closest(".token");
  if (token === null) return;
  const steps = { ArrowRight: token.nextSibling, ArrowLeft: token.previousSibling };
  const edges = { Home: token.parentNode.firstChild, End: token.parentNode.lastChild };
  const next = { ...steps, ...edges }[event.key];
  if (event.key === "Escape") hide();
  if (!next) return;
  event.preventDefault();
  token.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function display(token, tooltip) {
  const { entry } = token;
  const rows = entry.top_logprobs.slice(0, N_SHOWN).map((top) => row(top, top.token === entry.token && top.logprob === entry.logprob));
  if (!rows.some((line) => line.className === "drawn")) rows.push(row(entry, true));
  tooltip.replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  tooltip.hidden = false;
  document.querySelector(".token[aria-describedby]")?.removeAttribute("aria-describedby");
  token.setAttribute("aria-describedby", tooltip.id);
  place(tooltip, token.getBoundingClientRect());
}

function row(entry, isDrawn) {
  const p = Math.exp(entry.logprob);
  const bar = make("span", { class: "share" });
  bar.style.setProperty("--p", p);
  const cells = [make("td", {}, visible(entry.token)), make("td", {}, percent(p)), make("td", {}, bar)];
  return make("tr", { class: isDrawn ? "drawn" : "other" }, ...cells);
}

function percent(p) {
  return p >= 0.0005 ? `${(100 * p).toFixed(1)} %` : "< 0.1 %";
}

// Makes white space visible.
function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "(empty)";
}

function place(tooltip, at) {
  const box = tooltip.getBoundingClientRect();
  const isBelow = at.bottom + box.height + 8 < innerHeight;
  tooltip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.width - 8))}px`;
  tooltip.style.top = `${isBelow ? at.bottom + 6 : Math.max(8, at.top - box.height - 6)}px`;
}
