// Actions on several jobs: which jobs they fit, how to confirm, and the result message.
import { h, plural } from "../../ui/dom";
import { ask, showFailure } from "../../ui/fetch_errors";
import { FOR_ADMINS_ALWAYS, KINDS, VERB_EXCEPT, VERB_STATES } from "../../ui/constants";
import type { JobRow } from "../../live/topics";
import { isPending, schedule, toast } from "../../actions/undo";
import { reasonOf } from "../../ui/pieces";

export type Verb = "cancel" | "hold" | "release" | "requeue" | "retry";

export const VERBS: readonly Verb[] = ["hold", "release", "requeue", "retry", "cancel"];
const DONE: Record<Verb, string> = { cancel: "cancelled or being stopped", hold: "held", release: "released", requeue: "being requeued", retry: "queued to run again" };
/** States that need no confirmation. */
const WAITING = KINDS.waiting.join(",");

/** Return the jobs to which the verb applies. */
export function fitting(verb: Verb, rows: readonly JobRow[], isAdmin = false): JobRow[] {
  return rows.filter((row) => {
    const states = VERB_STATES[verb];
    const isExcepted = reasonOf(row).code === VERB_EXCEPT[verb] && !(isAdmin && FOR_ADMINS_ALWAYS.includes(verb));
    return !isExcepted && (row.array ? states?.array : states?.job)?.includes(row.state) === true;
  });
}

const isWaiting = (row: JobRow): boolean => (KINDS.waiting as readonly string[]).includes(row.state);

/** Return how to confirm: none if another verb undoes it, undo if nothing runs yet, else ask. */
export function caution(verb: Verb, rows: readonly JobRow[]): "none" | "undo" | "ask" {
  if (verb === "hold" || verb === "release" || verb === "retry") return "none";
  return rows.every(isWaiting) ? "undo" : "ask";
}

interface Answer {
  done: number[];
  refused: { id: number; sentence: string }[];
}

/** The loss as a sentence, and the text to type, or "". */
interface Loss {
  sentence: string;
  typed: string;
}

const nameOf = (id: number): string => `job ${id}`;

export async function perform(verb: Verb, rows: readonly JobRow[], onDone: () => void): Promise<void> {
  const ids = rows.map((row) => row.id);
  const level = caution(verb, rows);
  if (level === "none") return send(verb, ids).then(onDone);
  if (level === "undo") {
    // Skip jobs of an earlier press.
    const newIds = ids.filter((id) => !isPending(nameOf(id)));
    const cancel = (isLeaving: boolean): void => void send(verb, newIds, { if_state: WAITING }, isLeaving).then(onDone);
    return newIds.length > 0 ? schedule(`${plural(newIds.length, "waiting job")} will be cancelled`, newIds.map(nameOf), cancel) : undefined;
  }
  try {
    const loss = await ask<Loss>(`/jobs/loss/?ids=${ids.join()}`);
    const typed = await confirmed(verb, ids, loss);
    if (typed !== null) return send(verb, ids, { typed }).then(onDone);
  } catch (error) {
    showFailure(error);
  }
}

/** `options`: `if_state`, the required states; `typed`, the confirmation. */
async function send(verb: Verb, ids: readonly number[], options: Record<string, string> = {}, isLeaving = false): Promise<void> {
  const form = document.querySelector<HTMLFormElement>("form[data-act-on-several]");
  if (form === null) return;
  const fields = [...new FormData(form)].map(([name, value]) => [name, String(value)]);
  const body = new URLSearchParams([...fields, ...Object.entries({ verb, ids: ids.join(), ...options })]);
  try {
    showResult(verb, await ask<Answer>(form.action, body, isLeaving));
  } catch (error) {
    showFailure(error);
  }
}

function showResult(verb: Verb, { done, refused }: Answer): void {
  const opposite: Verb | null = verb === "hold" ? "release" : verb === "release" ? "hold" : null;
  const sentence = done.length > 0 ? `${plural(done.length, "job is", "jobs are")} ${DONE[verb]}.` : "";
  const refusals = refused.length > 0 ? `${plural(refused.length, "was", "were")} refused: job ${refused[0]?.id}: ${refused[0]?.sentence}` : "";
  toast([sentence, refusals].filter(Boolean).join(" "), opposite !== null && done.length > 0 ? { word: "Undo", run: () => void send(opposite, done) } : undefined);
}

/** Ask for confirmation. Return the typed text, or null if declined. */
function confirmed(verb: Verb, ids: readonly number[], loss: Loss): Promise<string | null> {
  const title = `${verb === "cancel" ? "Cancel" : "Requeue"} ${plural(ids.length, "job")}`;
  const typed = h("input", { type: "text", inputmode: "numeric", autocomplete: "off", "aria-label": `Type ${loss.typed} to confirm` });
  const yes = h("button", { type: "submit", class: "danger", value: "yes", disabled: loss.typed !== "" }, title);
  // Not of type submit: Enter in the field presses the first such button, which must be the one that acts.
  const no = h("button", { type: "button" }, "Keep them");
  typed.addEventListener("input", () => (yes.disabled = typed.value.trim() !== loss.typed));
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "sure" }, `${title}?`),
    h("p", {}, loss.sentence),
    loss.typed !== "" && h("label", { class: "field" }, `Type ${loss.typed} to confirm`, typed),
    h("div", { class: "actions" }, no, yes),
  );
  const dialog = h("dialog", { class: "help sure", "aria-labelledby": "sure" }, form);
  no.addEventListener("click", () => dialog.close("no"));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? typed.value : null);
    });
  });
}
