// The form that sends one request to the endpoint and shows its result: <form data-try="batch">, or "chat" or "embedding"
// for the OpenAI API.
import { type Child, h, refill } from "../../ui/dom";
import { unexpected, whyFailed } from "../../ui/fetch_errors";
import { failed, pretty } from "./result";
import { amount, latency } from "./rows";
import { promptOnce } from "./try_openai";

/** The server answers earlier, once the request has ended. */
const WAIT_SECONDS = 60;

export interface Task {
  id: number;
  state: string;
  output?: unknown;
  output_type?: string;
  error_code: string;
  error: string;
  batch_size: number | null;
  flush_reason: string;
  queued_at: string;
  ended_at: string | null;
}

/** The body of an error of REST. */
interface ProblemBody {
  code?: string;
  detail?: string;
  next_step?: string | null;
  errors?: { field: string; message: string }[];
}

let isStarted = false;

/** Handle the form of the page, once. */
export function startTrying(): void {
  if (isStarted) return;
  isStarted = true;
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.dataset.try === undefined) return;
    event.preventDefault();
    void tryOnce(form);
  });
}

export async function tryOnce(form: HTMLFormElement): Promise<void> {
  const button = form.querySelector("button");
  const result = form.closest("section")?.querySelector<HTMLElement>("[data-try-result]");
  if (button === null || result === null || result === undefined || button.getAttribute("aria-disabled") === "true") return;
  // Not `disabled`, which would drop the keyboard focus.
  button.setAttribute("aria-disabled", "true");
  refill(result, h("p", { class: "muted after" }, "Waiting for the result…"));
  const began = performance.now();
  const show = await answerOf(form, (...parts) => refill(result, ...parts)).catch((error: unknown) => failed(whyFailed(error)));
  button.removeAttribute("aria-disabled");
  refill(result, ...show, h("p", { class: "muted small" }, `Answered after ${latency((performance.now() - began) / 1000)}.`));
}

async function answerOf(form: HTMLFormElement, show: (...parts: Child[]) => void): Promise<Child[]> {
  const fields = new FormData(form);
  const [input, secret] = [String(fields.get("input")), String(fields.get("csrfmiddlewaretoken"))];
  const { try: kind = "", endpoint = "", tenant = "" } = form.dataset;
  return kind === "batch" ? taskOf(endpoint, tenant, input, secret) : promptOnce(kind, `${tenant}/${endpoint}`, input, secret, show);
}

async function taskOf(endpoint: string, tenant: string, input: string, secret: string): Promise<Child[]> {
  const problem = whyNotJson(input);
  if (problem !== "") return failed(`The input is not JSON: ${problem}`);
  // The text itself: JSON.parse would change large numbers.
  const body = `{"endpoint":${JSON.stringify(endpoint)},"tenant":${JSON.stringify(tenant)},"input":${input}}`;
  const headers = { "Content-Type": "application/json", Accept: "application/json", "X-CSRFToken": secret };
  const answer = await fetch(`/api/v1/tasks?wait=${WAIT_SECONDS}`, { method: "POST", body, headers, credentials: "same-origin", redirect: "manual" });
  if (!answer.ok) return refusalOf(answer);
  const [task] = ((await answer.json()) as { items: Task[] }).items;
  return task === undefined ? failed("The server sent no task.") : resultOf(task);
}

function whyNotJson(text: string): string {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return error instanceof Error ? error.message : "it cannot be parsed";
  }
}

/** The server's own words about a refused request. */
async function refusalOf(answer: Response): Promise<Child[]> {
  const problem = (await answer.json().catch(() => ({}))) as ProblemBody;
  if (problem.detail === undefined) throw unexpected(answer);
  const fields = (problem.errors ?? []).map(({ field, message }) => `${field}: ${message}`);
  const words = [`${answer.status} ${problem.code ?? ""}: ${problem.detail}`, ...fields];
  return failed(words.join("; "), problem.next_step ?? "", answer.headers.get("Retry-After"));
}

/** A task that has ended, or still waits. */
export function resultOf(task: Task): Child[] {
  const facts = factsOf(task);
  if (task.state === "completed") return [h("pre", { class: "after try-output", tabindex: 0, role: "region", "aria-label": "Result" }, outputOf(task)), facts];
  if (task.state === "queued" || task.state === "running") return [h("p", { class: "note amber after" }, `Task ${task.id} is still ${task.state} after ${WAIT_SECONDS} s. It continues; read it at GET /api/v1/tasks/${task.id}.`)];
  return [...failed(`Task ${task.id} is ${task.state}: ${[task.error_code, task.error].filter(Boolean).join(": ")}`), facts];
}

function outputOf(task: Task): Child {
  const type = task.output_type ?? "";
  if (type !== "" && type !== "application/json") return h("a", { href: `/api/v1/tasks/${task.id}/result` }, `Download the result (${type})`);
  return pretty(task.output);
}

function factsOf(task: Task): Child {
  const seconds = task.ended_at === null ? null : (Date.parse(task.ended_at) - Date.parse(task.queued_at)) / 1000;
  const batch = task.batch_size === null ? "" : `in a batch of ${amount(task.batch_size)}, flushed because of ${task.flush_reason}, `;
  return h("p", { class: "small after" }, `Task ${task.id}: ${batch}${seconds === null ? "" : `${latency(seconds)} from submit to result`}.`);
}
