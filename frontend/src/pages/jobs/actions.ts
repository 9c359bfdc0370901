// What may be done to several jobs at once: which of them it fits, how loudly it is asked, and what is said afterwards.
import { h, plural } from "../../ui/dom";
import { ask, tellFailure } from "../../ui/fetch_errors";
import { FOR_ADMINS_ALWAYS, KINDS, VERB_EXCEPT, VERB_STATES } from "../../ui/constants";
import type { JobRow } from "../../live/topics";
import { awaits, later, toast } from "../../actions/undo";
import { reasonOf } from "../../ui/pieces";

export type Verb = "cancel" | "hold" | "release" | "requeue" | "retry";

export const VERBS: readonly Verb[] = ["hold", "release", "requeue", "retry", "cancel"];
const DONE: Record<Verb, string> = { cancel: "cancelled or being stopped", hold: "held", release: "released", requeue: "being requeued", retry: "queued to run again" };
/** Of those that need no question. */
const WAITING = KINDS.waiting.join(",");

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
export function caution(verb: Verb, rows: readonly JobRow[]): "none" | "undo" | "ask" {
  if (verb === "hold" || verb === "release" || verb === "retry") return "none";
  return rows.every(isWaiting) ? "undo" : "ask";
}

interface Answer {
  done: number[];
  refused: { id: number; sentence: string }[];
}

/** What would be lost, in words, and what must be typed before: "" for nothing. */
interface Loss {
  sentence: string;
  typed: string;
}

const nameOf = (id: number): string => `job ${id}`;

export async function act(verb: Verb, rows: readonly JobRow[], done: () => void): Promise<void> {
  const ids = rows.map((row) => row.id);
  const how = caution(verb, rows);
  if (how === "none") return send(verb, ids).then(done);
  if (how === "undo") {
    // Those of an earlier press are on their way already.
    const fresh = ids.filter((id) => !awaits(nameOf(id)));
    const cancel = (isLeaving: boolean): void => void send(verb, fresh, { if_state: WAITING }, isLeaving).then(done);
    return fresh.length > 0 ? later(`${plural(fresh.length, "waiting job")} will be cancelled`, fresh.map(nameOf), cancel) : undefined;
  }
  try {
    const loss = await ask<Loss>(`/jobs/loss/?ids=${ids.join()}`);
    const typed = await isSure(verb, ids, loss);
    if (typed !== null) return send(verb, ids, { typed }).then(done);
  } catch (error) {
    tellFailure(error);
  }
}

/** `how`: `if_state`, jobs that are in another state by now are left alone; `typed`, what was. */
async function send(verb: Verb, ids: readonly number[], how: Record<string, string> = {}, isLeaving = false): Promise<void> {
  const form = document.querySelector<HTMLFormElement>("form[data-act-on-several]");
  if (form === null) return;
  const fields = [...new FormData(form)].map(([name, value]) => [name, String(value)]);
  const body = new URLSearchParams([...fields, ...Object.entries({ verb, ids: ids.join(), ...how })]);
  try {
    tell(verb, await ask<Answer>(form.action, body, isLeaving));
  } catch (error) {
    tellFailure(error);
  }
}

function tell(verb: Verb, { done, refused }: Answer): void {
  const opposite: Verb | null = verb === "hold" ? "release" : verb === "release" ? "hold" : null;
  const words = done.length > 0 ? `${plural(done.length, "job is", "jobs are")} ${DONE[verb]}.` : "";
  const why = refused.length > 0 ? `${plural(refused.length, "was", "were")} refused: job ${refused[0]?.id}: ${refused[0]?.sentence}` : "";
  toast([words, why].filter(Boolean).join(" "), opposite !== null && done.length > 0 ? { word: "Undo", run: () => void send(opposite, done) } : undefined);
}

/** A question whose loss is said: what was typed, or null where it is answered with no. */
function isSure(verb: Verb, ids: readonly number[], loss: Loss): Promise<string | null> {
  const what = `${verb === "cancel" ? "Cancel" : "Requeue"} ${plural(ids.length, "job")}`;
  const typed = h("input", { type: "text", inputmode: "numeric", autocomplete: "off", "aria-label": `Type ${loss.typed} to confirm` });
  const yes = h("button", { type: "submit", class: "danger", value: "yes", disabled: loss.typed !== "" }, what);
  typed.addEventListener("input", () => (yes.disabled = typed.value.trim() !== loss.typed));
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "sure" }, `${what}?`),
    h("p", {}, loss.sentence),
    loss.typed !== "" && h("label", { class: "field" }, `Type ${loss.typed} to confirm`, typed),
    h("div", { class: "actions" }, h("button", { type: "submit", value: "no" }, "Keep them"), yes),
  );
  const dialog = h("dialog", { class: "help sure", "aria-labelledby": "sure" }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? typed.value : null);
    });
  });
}
