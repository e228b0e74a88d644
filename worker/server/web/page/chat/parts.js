// The parts of an answer beside its text: the reasoning, folded, and the calls of tools, each as its name and arguments.

import { codeBlock } from "./markdown.js";
import { make } from "./dom.js";

// Adds a chunk's delta to the turn. Returns true if there was anything to add.
export function take(turn, delta) {
  const text = delta.content ?? "";
  const thought = delta.reasoning_content ?? delta.reasoning ?? "";
  const calls = delta.tool_calls ?? [];
  turn.content += text;
  turn.reasoning += thought;
  for (const { index, function: part } of calls) {
    const call = (turn.calls[index] ??= { name: "", arguments: "" });
    call.name += part.name ?? "";
    call.arguments += part.arguments ?? "";
  }
  return text !== "" || thought !== "" || calls.length > 0;
}

export class Aside {
  constructor() {
    this.thought = make("div", { class: "thought" });
    this.thoughts = make("details", { class: "thoughts" }, make("summary", {}, "Reasoning"), this.thought);
    this.thoughts.hidden = true;
    this.calls = make("div", { class: "calls" });
  }

  draw(turn) {
    const reasoning = turn.reasoning ?? "";
    this.thoughts.hidden = reasoning === "";
    if (this.thought.textContent !== reasoning) this.thought.textContent = reasoning;
    const calls = turn.calls ?? [];
    calls.forEach((call, index) => this.#drawCall(call, this.calls.children[index]));
  }

  #drawCall(call, old) {
    if (old?.dataset.arguments === call.arguments) return;
    const fresh = make("section", { class: "call", "aria-label": `Call of ${call.name}` }, make("h3", {}, call.name));
    fresh.append(codeBlock(readable(call.arguments), "arguments"));
    fresh.dataset.arguments = call.arguments;
    if (old) old.replaceWith(fresh);
    else this.calls.append(fresh);
  }
}

// The arguments with line breaks, once they are complete.
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
