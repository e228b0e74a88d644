// A model's text as elements: the small part of Markdown that models write. Any text becomes only the elements below. Their
// only attributes are the language of a code block and the address of a link, which is http or https.
//
// Every pattern is bounded, because a model may write 100,000 asterisks.

import { copyButton, make } from "./dom.js";

const MAX_DEPTH = 8;

const FENCE = /^\s*(`{3,}|~{3,})([^`]*)$/s;
const HEADING = /^ {0,3}(#{1,6}) (.*)$/s;
const RULE = /^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/;
const ITEM = /^(\s*)(?:[-*+•]|(\d{1,9})[.)])\s(.*)$/s;
const QUOTE = /^\s*> ?(.*)$/s;
const ROW = /^\s*\|.*\|\s*$/s;
const UNDER_HEAD = /^[\s|:-]+$/;

const SPAN = new RegExp(
  [
    /\\(?<escaped>[\\`*_~[\]])/,
    /(?<!`)(?<ticks>`{1,3})(?!`)(?<code>[^]{1,1000}?)(?<!`)\k<ticks>(?!`)/,
    /\*\*(?=\S)(?<strong>[^]{1,1000}?)(?<=\S)\*\*(?!\*)/,
    /\*(?=[^\s*])(?<em>[^*]{1,1000}?)(?<=\S)\*(?!\*)/,
    /(?<![\p{L}\p{N}_])_(?=[^\s_])(?<under>[^_]{1,1000}?)(?<=\S)_(?![\p{L}\p{N}_])/,
    /~~(?=\S)(?<gone>[^~]{1,1000}?)(?<=\S)~~/,
    /\[(?<label>[^\]]{1,1000})\]\((?<target>https?:\/\/[^\s)]{1,1000})\)/,
    /(?<address>https?:\/\/[^\s<>"'`]{0,1000}[^\s<>"'`.,;:!?)\]}*_])/,
  ].map((pattern) => pattern.source).join("|"),
  "gu",
);

// Shows `text` in `container`. Unchanged blocks keep their elements, because an answer grows at its end.
export function show(container, text) {
  const blocks = split(text);
  const old = container.blocks ?? [];
  let n = 0;
  while (n < blocks.length && n < old.length && blocks[n].source === old[n].source && blocks[n].kind === old[n].kind) n += 1;
  while (container.childNodes.length > n) container.lastChild.remove();
  container.append(...blocks.slice(n).map((block) => render(block, 0)));
  container.blocks = blocks;
}

export function codeBlock(text, language = "") {
  const head = make("div", { class: "code-head" }, make("span", {}, language), copyButton(() => text));
  return make("div", { class: "code-block" }, head, make("pre", { tabindex: "0" }, make("code", {}, text)));
}

// ── blocks ───────────────────────────────────────────────────────────────────────────────────────

function split(text) {
  const blocks = [];
  let current = null;
  for (const line of text.split("\n")) {
    const kind = kindOf(line, current);
    const isMore = current?.kind === kind && !["heading", "rule", "blank"].includes(kind) && !current.isClosed;
    if (!isMore) {
      current = { kind, lines: [], fence: kind === "code" ? FENCE.exec(line)[1] : null, isClosed: false };
      blocks.push(current);
    } else if (current.fence !== null) {
      current.isClosed = isClosing(line, current.fence);
    }
    current.lines.push(line);
  }
  for (const block of blocks) block.source = block.lines.join("\n");
  return blocks.filter((block) => block.kind !== "blank");
}

function kindOf(line, current) {
  if (current?.kind === "code" && !current.isClosed) return "code";
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (ITEM.test(line)) return "list";
  if (QUOTE.test(line)) return "quote";
  if (ROW.test(line)) return "table";
  if (line.trim() === "") return "blank";
  return current?.kind === "list" ? "list" : "text";
}

function isClosing(line, fence) {
  const marks = line.trim();
  return marks.length >= fence.length && marks === fence[0].repeat(marks.length);
}

function render(block, depth) {
  switch (block.kind) {
    case "code": return fenced(block);
    case "heading": return heading(block.lines[0], depth);
    case "rule": return make("hr");
    case "list": return list(block.lines, depth);
    case "quote": return quote(block.lines, depth);
    case "table": return table(block, depth);
    default: return make("p", {}, ...inline(block.source.trim(), depth));
  }
}

function fenced(block) {
  const language = FENCE.exec(block.lines[0])[2].trim().split(/\s/)[0].slice(0, 30);
  return codeBlock(block.lines.slice(1, block.isClosed ? -1 : undefined).join("\n"), language);
}

function heading(line, depth) {
  const [, marks, text] = HEADING.exec(line);
  // The page itself has levels 1 and 2.
  return make(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text.trim(), depth));
}

function quote(lines, depth) {
  const inner = lines.map((line) => QUOTE.exec(line)[1]).join("\n");
  if (depth >= MAX_DEPTH) return make("blockquote", {}, inner);
  return make("blockquote", {}, ...split(inner).map((block) => render(block, depth + 1)));
}

function list(lines, depth) {
  const root = make("div", { class: "list" });
  const open = [{ indent: -1, node: root }];
  let item = root;
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found === null) {
      item.append("\n", ...inline(line.trim(), depth));
      continue;
    }
    const [, space, number, text] = found;
    while (open.length > 1 && space.length < open.at(-1).indent) open.pop();
    if (space.length > open.at(-1).indent && open.length <= MAX_DEPTH) {
      const node = number === undefined ? make("ul") : make("ol", { start: number });
      (open.length === 1 ? root : item).append(node);
      open.push({ indent: space.length, node });
    }
    item = make("li", {}, ...inline(text.trim(), depth));
    open.at(-1).node.append(item);
  }
  return root;
}

function table(block, depth) {
  const rows = block.lines.map((line) => line.trim().slice(1, -1).split("|").map((cell) => inline(cell.trim(), depth)));
  if (block.lines.length < 2 || !UNDER_HEAD.test(block.lines[1])) return make("p", {}, ...inline(block.source, depth));
  const row = (cells, tag) => make("tr", {}, ...cells.map((cell) => make(tag, {}, ...cell)));
  const body = rows.slice(2).map((cells) => row(cells, "td"));
  return make("div", { class: "table" }, make("table", {}, make("thead", {}, row(rows[0], "th")), make("tbody", {}, ...body)));
}

// ── spans ────────────────────────────────────────────────────────────────────────────────────────

function inline(text, depth) {
  if (depth >= MAX_DEPTH) return [text];
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(SPAN)) {
    nodes.push(text.slice(from, match.index), span(match[0], match.groups, depth + 1));
    from = match.index + match[0].length;
  }
  nodes.push(text.slice(from));
  return nodes;
}

function span(whole, groups, depth) {
  if (groups.escaped !== undefined) return groups.escaped;
  if (groups.code !== undefined) return make("code", {}, groups.code);
  if (groups.strong !== undefined) return make("strong", {}, ...inline(groups.strong, depth));
  if (groups.em !== undefined) return make("em", {}, ...inline(groups.em, depth));
  if (groups.under !== undefined) return make("em", {}, ...inline(groups.under, depth));
  if (groups.gone !== undefined) return make("s", {}, ...inline(groups.gone, depth));
  return link(groups.address ?? groups.target, groups.label ?? whole);
}

function link(target, label) {
  if (!URL.canParse(target)) return label;
  const { href, protocol } = new URL(target);
  if (protocol !== "http:" && protocol !== "https:") return label;
  return make("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, label);
}
