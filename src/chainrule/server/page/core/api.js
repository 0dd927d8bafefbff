/** Requests to the server that this page is from; there are no others. */

const KEY = "chainrule-api-key";

/** An answer that is an error; status 0: there was no answer. */
export class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Keep the API key until the tab is closed. */
export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function send(path, body, signal) {
  const request = body === undefined ? { headers: headers(), signal } : {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(body),
    signal,
  };
  const answer = await fetch(path, request).catch((error) => {
    throw error.name === "AbortError" ? error : new ApiFailure(0, error.message);
  });
  if (answer.ok) return answer;
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // the status is all there is
  }
  throw new ApiFailure(answer.status, message);
}

/** The JSON of a GET. */
export async function get(path, signal) {
  return (await send(path, undefined, signal)).json();
}

/** The JSON of a POST. */
export async function post(path, body, signal) {
  return (await send(path, body, signal)).json();
}

/** The parts of a streamed answer (server-sent events), each parsed. */
export async function* stream(path, body, signal) {
  const answer = await send(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (held + value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new ApiFailure(500, part.error.message);
      yield part;
    }
  }
}
