// Sends one prompt to an endpoint of the OpenAI API: a chat whose answer is shown as it arrives, or an embedding.
import { type Child, h } from "../../ui/dom";
import { unexpected } from "../../ui/fetch_errors";
import { failed, pretty } from "./result";
import { latency } from "./rows";

interface Chunk {
  choices?: { delta?: { content?: string | null }; message?: { content?: string | null } }[];
  data?: { embedding?: unknown }[];
  error?: { message?: string; code?: string | null };
}

/** `show` draws what has arrived so far; `secret` is the CSRF token. */
export async function promptOnce(kind: string, model: string, prompt: string, secret: string, show: (...parts: Child[]) => void): Promise<Child[]> {
  const isChat = kind === "chat";
  const began = performance.now();
  const body = isChat ? { model, messages: [{ role: "user", content: prompt }], stream: true } : { model, input: prompt };
  const headers = { "Content-Type": "application/json", "X-CSRFToken": secret };
  const answer = await fetch(isChat ? "/v1/chat/completions" : "/v1/embeddings", { method: "POST", body: JSON.stringify(body), headers, credentials: "same-origin", redirect: "manual" });
  if (!answer.ok) return refusalOf(answer);
  const job = answer.headers.get("X-Replica-Job") ?? "";
  const by = job === "" ? "" : ` by job ${job}`;
  if (!(answer.headers.get("Content-Type") ?? "").includes("text/event-stream")) return [output(contentOf((await answer.json()) as Chunk)), facts(`Answered${by}.`)];
  let [text, first] = ["", ""];
  try {
    for await (const chunk of events(answer)) {
      if (chunk.error !== undefined) return [output(text), ...failed(chunk.error.message ?? "The replica reported an error.")];
      const more = contentOf(chunk);
      if (first === "" && more !== "") first = `, first text after ${latency((performance.now() - began) / 1000)}`;
      text += more;
      show(output(text));
    }
  } catch (error) {
    return [output(text), ...failed(`The answer broke off: ${error instanceof Error ? error.message : "the connection ended"}`)];
  }
  return [output(text), facts(`Answered${by}${first}.`)];
}

const output = (text: string): HTMLElement => h("pre", { class: "after try-output", tabindex: 0, role: "region", "aria-label": "Result" }, text);
const facts = (sentence: string): HTMLElement => h("p", { class: "small after" }, sentence);

function contentOf({ choices, data }: Chunk): string {
  if (data !== undefined) return pretty(data[0]?.embedding);
  return choices?.[0]?.delta?.content ?? choices?.[0]?.message?.content ?? "";
}

/** Yield the events of a stream, up to its mark of the end. Throws if it ends without one. */
async function* events(answer: Response): AsyncGenerator<Chunk> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = (await reader?.read()) ?? { value: undefined, done: true };
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data) as Chunk;
    }
    if (done) throw new Error("it ended before its end was marked");
  }
}

/** The server's own words, in the form of the OpenAI API. */
async function refusalOf(answer: Response): Promise<Child[]> {
  const { error } = (await answer.json().catch(() => ({}))) as Chunk;
  if (error?.message === undefined) throw unexpected(answer);
  return failed(`${answer.status} ${error.code ?? ""}: ${error.message}`, "", answer.headers.get("Retry-After"));
}
