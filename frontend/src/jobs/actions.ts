// What may be done to several jobs at once: which of them it fits, how loudly it is asked, and what is said afterwards.
import { h, plural } from "../dom";
import { FOR_ADMINS_ALWAYS, KINDS, VERB_EXCEPT, VERB_STATES } from "../rules";
import type { JobRow } from "../topics";
import { later, toast } from "../undo";
import { reasonOf } from "../views/pieces";

export type Verb = "cancel" | "hold" | "release" | "requeue" | "retry";

export const VERBS: readonly Verb[] = ["hold", "release", "requeue", "retry", "cancel"];
const DONE: Record<Verb, string> = { cancel: "cancelled or being stopped", hold: "held", release: "released", requeue: "being requeued", retry: "to run again" };
/** Of those that need no question. */
const WAITING = KINDS.waiting.join(",");
/** More than this: the number must be typed. */
const MANY = 20;

/** The jobs of those that the verb can be done to, as they are. */
export function fitting(verb: Verb, rows: readonly JobRow[], isAdmin = false): JobRow[] {
  return rows.filter((row) => {
    const states = VERB_STATES[verb];
    const isExcepted = reasonOf(row).code === VERB_EXCEPT[verb] && !(isAdmin && FOR_ADMINS_ALWAYS.includes(verb));
    return !isExcepted && (row.array ? states?.array : states?.job)?.includes(row.state) === true;
  });
}

const isWaiting = (row: JobRow): boolean => (KINDS.waiting as readonly string[]).includes(row.state);

/** How it is asked: at once where it can be undone by its opposite, later with Undo where nothing runs yet, else a question. */
export function caution(verb: Verb, rows: readonly JobRow[]): "none" | "undo" | "ask" | "type" {
  if (verb === "hold" || verb === "release" || verb === "retry") return "none";
  if (!rows.every(isWaiting)) return rows.length > MANY ? "type" : "ask";
  return "undo";
}

interface Answer {
  done: number[];
  refused: { id: number; sentence: string }[];
}

export async function act(verb: Verb, rows: readonly JobRow[], done: () => void): Promise<void> {
  const ids = rows.map((row) => row.id);
  const how = caution(verb, rows);
  const go = (isLeaving = false): void => void send(verb, ids, isLeaving, how === "undo" ? WAITING : null).then(done);
  if (how === "none") return go();
  if (how === "undo") return later(`${plural(ids.length, "waiting job")} will be cancelled`, go);
  if (await isSure(verb, rows, how === "type")) go();
}

/** `states`: jobs that are in another state by now are left alone. */
async function send(verb: Verb, ids: readonly number[], isLeaving: boolean, states: string | null = null): Promise<void> {
  const form = document.querySelector<HTMLFormElement>("form[data-act-on-several]");
  if (form === null) return;
  const body = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, String(value)]));
  body.set("verb", verb);
  body.set("ids", ids.join());
  if (states !== null) body.set("if_state", states);
  try {
    const response = await fetch(form.action, { method: "POST", body, credentials: "same-origin", keepalive: isLeaving });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    tell(verb, (await response.json()) as Answer);
  } catch (error) {
    toast(`Nothing is known of what was asked: ${error instanceof Error ? error.message : "no answer"}. Look at the jobs, and try again.`);
  }
}

function tell(verb: Verb, { done, refused }: Answer): void {
  const opposite: Verb | null = verb === "hold" ? "release" : verb === "release" ? "hold" : null;
  const words = done.length > 0 ? `${plural(done.length, "job is", "jobs are")} ${DONE[verb]}.` : "";
  const why = refused.length > 0 ? `${plural(refused.length, "was", "were")} refused: job ${refused[0]?.id}: ${refused[0]?.sentence}` : "";
  toast([words, why].filter(Boolean).join(" "), opposite !== null && done.length > 0 ? { word: "Undo", run: () => void send(opposite, done, false) } : undefined);
}

/** A question whose loss is said; for many jobs their number must be typed. */
function isSure(verb: Verb, rows: readonly JobRow[], isTyped: boolean): Promise<boolean> {
  const live = rows.filter((row) => !isWaiting(row));
  const gpus = live.reduce((sum, row) => sum + row.gpu_count, 0);
  const loss = `${plural(live.length, "of them runs", "of them run")} on ${plural(gpus, "GPU")}: the processes are stopped, and what they have not saved is lost.`;
  const typed = h("input", { type: "text", inputmode: "numeric", autocomplete: "off", "aria-label": `Type ${rows.length} to confirm` });
  const yes = h("button", { type: "submit", class: "danger", value: "yes" }, verb === "cancel" ? `Cancel ${plural(rows.length, "job")}` : `Requeue ${plural(rows.length, "job")}`);
  if (isTyped) {
    yes.disabled = true;
    typed.addEventListener("input", () => (yes.disabled = typed.value.trim() !== String(rows.length)));
  }
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "sure" }, `${verb === "cancel" ? "Cancel" : "Requeue"} ${plural(rows.length, "job")}?`),
    h("p", {}, loss),
    isTyped && h("label", { class: "field" }, `Type ${rows.length} to confirm`, typed),
    h("div", { class: "actions" }, h("button", { type: "submit", value: "no" }, "Keep them"), yes),
  );
  const dialog = h("dialog", { class: "help sure", "aria-labelledby": "sure" }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}
