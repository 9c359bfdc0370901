// Asking the server for something, and why that failed, in words for a person.
import { toast } from "../actions/undo";

/** What the server said why nothing was done; `way`: the word of the button that loads the page anew, where that helps. */
class Refused extends Error {
  constructor(
    sentence: string,
    readonly way = "",
  ) {
    super(sentence);
  }
}

/** What the server answers to a form, or without `body` to a question. */
export async function ask<T>(address: string, body?: URLSearchParams, keepalive = false): Promise<T> {
  const answer = await fetch(address, { method: body === undefined ? "GET" : "POST", body: body ?? null, keepalive, redirect: "manual", credentials: "same-origin", headers: { Accept: "application/json" } });
  // Such an address leads nowhere but to the login.
  if (answer.type === "opaqueredirect") throw new Refused("You are logged out, so nothing was done.", "Log in");
  // Not what they may not do, which is said in words: the token in the page is of another login.
  if (answer.status === 403) throw new Refused("Nothing was done: you logged in again after this page was loaded.", "Reload the page");
  if (answer.ok) return (await answer.json()) as T;
  const { sentence = "" } = (await answer.json().catch(() => ({}))) as { sentence?: string };
  if (sentence !== "") throw new Refused(sentence);
  throw answer.status === 404 ? new Error("it no longer exists") : unexpected(answer);
}

/** What the server answered where it should not have, with the id by which its log knows the request. */
export function unexpected(answer: Response): Error {
  const id = answer.headers.get("X-Request-Id");
  return new Error(`the server answered ${answer.status}${id === null ? "" : `, request ${id}`}`);
}

/** Says what became of what was asked for. */
export function showFailure(error: unknown): void {
  if (!(error instanceof Refused)) return void toast(`The result is not known: ${whyFailed(error)}. Check the page, then try again.`);
  toast(error.message, error.way === "" ? undefined : { word: error.way, run: () => location.reload() });
}

/** `otherwise`: for what is no Error at all. */
export function whyFailed(error: unknown, otherwise = "no answer"): string {
  // What fetch itself says of a server that is away differs from browser to browser.
  if (error instanceof TypeError) return "the server gave no answer";
  return error instanceof Error ? error.message : otherwise;
}
