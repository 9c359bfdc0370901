// Requests to the server, and readable errors.
import { toast } from "../actions/undo";

/** A refusal of the server; `way`: the label of a button that reloads the page, if that helps. */
class Refused extends Error {
  constructor(
    sentence: string,
    readonly way = "",
  ) {
    super(sentence);
  }
}

/** A lost network may never answer. This is longer than any of these requests takes. */
const ANSWER_MS = 60_000;

/** Send a request. It fails if there is no complete answer in a minute. A redirect, which leads to the login, is not
 *  followed. */
export function request(address: string, init: RequestInit = {}): Promise<Response> {
  return fetch(address, { redirect: "manual", signal: AbortSignal.timeout(ANSWER_MS), ...init });
}

/** Return the answer to a form, or without `body` to a GET. */
export async function ask<T>(address: string, body?: URLSearchParams, keepalive = false): Promise<T> {
  const answer = await request(address, { method: body === undefined ? "GET" : "POST", body: body ?? null, keepalive, headers: { Accept: "application/json" } });
  // A redirect leads to the login.
  if (answer.type === "opaqueredirect") throw new Refused("You are logged out, so nothing was done.", "Log in");
  // The CSRF token in the page is of another login; a missing permission has a sentence.
  if (answer.status === 403) throw new Refused("Nothing was done: you logged in again after this page was loaded.", "Reload the page");
  if (answer.ok) return (await answer.json()) as T;
  const { sentence = "" } = (await answer.json().catch(() => ({}))) as { sentence?: string };
  if (sentence !== "") throw new Refused(sentence);
  throw answer.status === 404 ? new Error("it no longer exists") : unexpected(answer);
}

/** An unexpected answer, with the request id of the server's log. */
export function unexpected(answer: Response): Error {
  if (answer.type === "opaqueredirect") return new Error("you are logged out");
  const id = answer.headers.get("X-Request-Id");
  return new Error(`the server answered ${answer.status}${id === null ? "" : `, request ${id}`}`);
}

/** Show the failure of a request. */
export function showFailure(error: unknown): void {
  if (!(error instanceof Refused)) return void toast(`The result is not known: ${whyFailed(error)}. Check the page, then try again.`);
  toast(error.message, error.way === "" ? undefined : { word: error.way, run: () => location.reload() });
}

/** `otherwise`: the text for values that are no Error. */
export function whyFailed(error: unknown, otherwise = "no answer"): string {
  // The message of fetch for a missing server differs by browser.
  if (error instanceof TypeError || (error instanceof DOMException && error.name === "TimeoutError")) return "the server gave no answer";
  return error instanceof Error ? error.message : otherwise;
}
