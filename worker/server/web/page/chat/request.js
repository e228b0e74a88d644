// The request to the worker: the form's settings as fields, and the same request as code.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];

const OURS = ["top_k", "min_p", "repetition_penalty"];
// Fields that OpenAI's package has no arguments for.

// The request for `turns`, without the fields of streaming. An empty box leaves the default to the worker.
// Raises: SyntaxError for a schema that is not JSON.
export function requestOf(form, turns, model) {
  const data = new FormData(form);
  const system = data.get("system").trim();
  const messages = turns.map(messageOf);
  if (system !== "") messages.unshift({ role: "system", content: system });
  const request = { model, messages };
  for (const name of NUMBERS) {
    const value = data.get(name);
    if (value !== "") request[name] = Number(value);
  }
  const stop = data.get("stop").split("\n").filter((line) => line !== "");
  if (stop.length > 0) request.stop = stop;
  const tools = jsonOf(form, "tools");
  if (tools !== null) request.tools = [tools].flat().map((each) => each.function ? each : { type: "function", function: each });
  const schema = jsonOf(form, "schema");
  if (schema !== null) request.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  if (data.get("probabilities") !== null) Object.assign(request, { logprobs: true, top_logprobs: 5 });
  return request;
}

// A turn as a message, with the reasoning and the calls that it has.
function messageOf({ role, content, reasoning, calls }, at) {
  const message = { role, content };
  if (reasoning) message.reasoning_content = reasoning;
  if (!calls?.length) return message;
  const tool_calls = calls.map((called, n) => ({ id: `call${at}x${n}`, type: "function", function: called }));
  return { ...message, content: content || null, tool_calls };
}

// The value of a field that has JSON, or null if it is empty. Raises: SyntaxError.
export function jsonOf(form, name) {
  const text = form.elements[name].value.trim();
  return text === "" ? null : JSON.parse(text);
}

// ── the same as code ─────────────────────────────────────────────────────────────────────────────

// The code never contains the token itself, because people paste code in public places.
export function curl(request, base, hasToken) {
  const lines = [
    `curl ${quoted(new URL("v1/chat/completions", base).href)}`,
    ...(hasToken ? ['  -H "Authorization: Bearer $LLORCH_API_TOKEN"'] : []),
    "  -H 'Content-Type: application/json'",
    `  -d ${quoted(JSON.stringify(request, null, 2))}`,
  ];
  return `${lines.join(" \\\n")}\n`;
}

export function python(request, base, hasToken) {
  const own = Object.fromEntries(OURS.filter((name) => name in request).map((name) => [name, request[name]]));
  const fields = Object.fromEntries(Object.entries(request).filter(([name]) => !OURS.includes(name)));
  if (Object.keys(own).length > 0) fields.extra_body = own;
  const given = Object.entries(fields).map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  return [
    ...(hasToken ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    "client = OpenAI(",
    `    base_url=${literal(new URL("v1", base).href)},`,
    `    api_key=${hasToken ? 'os.environ["LLORCH_API_TOKEN"]' : '"none"'},`,
    ")",
    "answer = client.chat.completions.create(",
    ...given,
    ")",
    "print(answer.choices[0].message.content)",
    "",
  ].join("\n");
}

// The text as a quoted word of a POSIX shell.
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// A JSON value in Python's syntax. Strings are the same, because JSON also escapes halves of surrogate pairs.
function literal(value, indent = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((each) => literal(each, indent + 4))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, indent + 4)}`);
  const [open, close] = isList ? "[]" : "{}";
  const line = open + parts.join(", ") + close;
  if (line.length < 80 && !line.includes("\n")) return line;
  const margin = " ".repeat(indent + 4);
  return `${open}\n${parts.map((part) => `${margin}${part},\n`).join("")}${" ".repeat(indent)}${close}`;
}
