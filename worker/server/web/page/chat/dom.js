// Creates elements from their parts. Strings become text nodes: nothing on this page parses HTML.

export const byId = (id) => document.getElementById(id);

// An attribute whose value is a function becomes a listener.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Writes only changed text, because screen readers read a live region whenever it is written to.
export function write(id, text) {
  if (byId(id).textContent !== String(text)) byId(id).textContent = text;
}

export function button(label, click) {
  return make("button", { type: "button", click }, label);
}

// A button that copies the result of `text` and confirms it.
export function copyButton(text) {
  return button("Copy", (event) => copy(event.currentTarget, text()));
}

export async function copy(control, text) {
  const label = control.dataset.label ??= control.textContent;
  try {
    await navigator.clipboard.writeText(text);
    control.textContent = "Copied";
  } catch {
    // Browsers offer no clipboard to pages that were loaded over plain HTTP from another machine.
    control.textContent = "Copying not allowed";
  }
  setTimeout(() => { control.textContent = label; }, 1500);
}
