// The worker's answers: the events of a stream, and refusals as errors with a text for people.

export class Refused extends Error {
  constructor(message, { status = 0, retryAfterS = 0 } = {}) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

export function headers(token) {
  return token ? { authorization: `Bearer ${token}` } : {};
}

// The chunks of a streamed chat completion. Raises: Refused, also during the stream; AbortError after `signal`.
export async function* chat(body, token, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(token) },
    body: JSON.stringify(body),
    cache: "no-store",
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(pieces(response.body))) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(chunk.error.message);
    yield chunk;
  }
  throw new Refused("The connection closed before the answer was complete.");
}

// The data of server-sent events with one line of data each. `chunks` are bytes, split anywhere.
export async function* events(chunks) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunks) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice("data:".length).trim();
    }
  }
}

// Some browsers cannot iterate over a stream.
async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // The worker must stop generating if the reader stops early.
    reader.cancel().catch(() => {});
  }
}

async function refusal(response) {
  const retryAfterS = Number(response.headers.get("retry-after")) || 0;
  const text = await response.text();
  return new Refused(messageIn(text) || `The worker returned status ${response.status}.`, { status: response.status, retryAfterS });
}

function messageIn(text) {
  try {
    const body = JSON.parse(text);
    return body.error?.message ?? body.message;
  } catch {
    return text.slice(0, 500);
  }
}
