// Elements from their parts. Strings become text nodes: nothing on this page parses HTML.

export const byId = (id) => document.getElementById(id);

// Attributes whose value is a function are listeners.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Writes only what changed: a live region is read out when it is written to.
export function write(id, text) {
  if (byId(id).textContent !== String(text)) byId(id).textContent = text;
}

export function button(label, click) {
  return make("button", { type: "button", click }, label);
}

// A button that copies what `text` gives, and says so.
export function copyButton(text) {
  return button("Copy", (event) => copy(event.currentTarget, text()));
}

export async function copy(control, text) {
  const label = control.dataset.label ??= control.textContent;
  try {
    await navigator.clipboard.writeText(text);
    control.textContent = "Copied";
  } catch {
    // A browser has no clipboard for pages that came over plain HTTP from another machine.
    control.textContent = "Not allowed";
  }
  setTimeout(() => { control.textContent = label; }, 1500);
}
