// Forms in place: "requested…" at once, then the server's status until confirmed. A
// question that is open is not closed, nor another opened, by what is drawn anew around it.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Actions } from "../src/actions/buttons";
import { startAsking } from "../src/actions/forms";

const BUTTONS = `<form data-asks data-key="hold" method="post" action="/jobs/7/hold/"><button>Hold</button></form>`;
const EXTEND = `<details class="confirm" data-key="extend"><summary>Extend…</summary><form data-asks method="post" action="/jobs/7/extend/"><input name="max_runtime_minutes" value="60"><button>Set the limit</button></form></details>`;
const CANCEL = `<details class="confirm" data-key="sure-cancel"><summary>Cancel…</summary><form data-asks method="post" action="/jobs/7/cancel/"><button>Cancel the job</button></form></details>`;
const AWAITED = '<p class="confirmation" data-awaited>not confirmed yet: node n1 silent for 40 s</p>';

let answers: (answer: object) => void;
let drawn = "";
let fails: Error | null = null;
const posts: [string, string][] = [];
const looks = vi.fn<(address: string) => void>();

startAsking();

beforeEach(() => {
  vi.useFakeTimers();
  fails = null;
  posts.length = 0;
  looks.mockClear();
  document.body.innerHTML = `<div id="actions">${BUTTONS}${EXTEND}${CANCEL}</div>`;
  drawn = BUTTONS + EXTEND + CANCEL;
  vi.stubGlobal("fetch", (address: string, how?: { body?: URLSearchParams }) => {
    if (how?.body === undefined) {
      looks(address);
      return Promise.resolve({ ok: true, status: 200, text: () => Promise.resolve(drawn) });
    }
    posts.push([address, how.body.toString()]);
    if (fails !== null) return Promise.reject(fails);
    return new Promise((resolve) => (answers = (answer) => resolve({ ok: true, status: 200, json: () => Promise.resolve(answer) })));
  });
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const button = (words: string): HTMLButtonElement => [...document.querySelectorAll("button")].find((element) => element.textContent === words) as HTMLButtonElement;
const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(0);
const box = (): HTMLElement => document.querySelector("#actions") as HTMLElement;
const open = (): string[] => [...document.querySelectorAll<HTMLDetailsElement>("details[open]")].map((element) => element.dataset.key ?? "");

test("a button shows requested at once, ignores a second press, and recovers after the answer", async () => {
  const heard = vi.fn();
  document.addEventListener("asked", heard);
  const hold = button("Hold");
  hold.click();
  hold.click();
  expect([hold.textContent, hold.getAttribute("aria-disabled"), posts.length]).toEqual(["requested…", "true", 1]);
  answers({ is_done: true, sentence: "Job 7 is held." });
  await settle();
  expect([hold.textContent, hold.getAttribute("aria-disabled"), heard.mock.calls.length]).toEqual(["Hold", null, 1]);
  expect(document.querySelector(".toast")?.textContent).toContain("Job 7 is held.");
});

test("a newer message replaces the last one, with moments in local time", async () => {
  const toastText = (): string[] => [...document.querySelectorAll(".toast > span")].map((element) => element.textContent);
  button("Hold").click();
  answers({ is_done: true, sentence: "Job 7 is held." });
  await settle();
  button("Hold").click();
  answers({ is_done: true, sentence: "Job 7 may run until 2031-01-31 08:00 UTC." });
  await settle();
  const here = new Date("2031-01-31T08:00:00Z").toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
  expect(toastText()).toEqual([`Job 7 may run until ${here}.`]);
});

test("focus moves to the replacement of a removed button", async () => {
  const actions = new Actions(box());
  button("Hold").focus();
  drawn = '<form data-asks data-key="release" method="post" action="/jobs/7/release/"><button>Release</button></form>';
  actions.show("/jobs/7/actions/", "held");
  await settle();
  expect(document.activeElement).toBe(button("Release"));
  actions.close();
});

test("a dialog closes on success and keeps its values on refusal", async () => {
  const [question, minutes] = [document.querySelector("details") as HTMLDetailsElement, document.querySelector("input") as HTMLInputElement];
  question.open = true;
  minutes.value = "90";
  button("Set the limit").click();
  expect(posts).toEqual([["/jobs/7/extend/", "max_runtime_minutes=90"]]);
  answers({ is_done: false, sentence: "Job 9 is promised a start." });
  await settle();
  expect([question.open, minutes.value]).toEqual([true, "90"]);
  button("Set the limit").click();
  answers({ is_done: true, sentence: "Done." });
  await settle();
  expect([question.open, minutes.value]).toEqual([false, "60"]);
});

test("a missing answer is reported and the request can be repeated", async () => {
  fails = new TypeError("fetch failed");
  button("Hold").click();
  await settle();
  expect([document.body.textContent?.includes("The result is not known: the server gave no answer"), button("Hold").getAttribute("aria-disabled")]).toEqual([true, null]);
});

test("a logout or another login is explained; a refusal shows the server's sentence", async () => {
  const toastText = async (answer: object): Promise<string> => {
    document.querySelector(".toasts")?.remove();
    vi.stubGlobal("fetch", () => Promise.resolve(answer));
    button("Hold").click();
    await settle();
    return document.querySelector(".toast")?.textContent ?? "";
  };
  expect(await toastText({ ok: false, status: 0, type: "opaqueredirect" })).toBe("You are logged out, so nothing was done.Log in✕");
  expect(await toastText({ ok: false, status: 403 })).toBe("Nothing was done: you logged in again after this page was loaded.Reload the page✕");
  expect(await toastText(new Response('{"sentence": "Choose one to 500 jobs."}', { status: 400 }))).toBe("Choose one to 500 jobs.✕");
  expect(await toastText(new Response("<h1>oh</h1>", { status: 500 }))).toContain("The result is not known: the server answered 500.");
  expect(await toastText(new Response("", { status: 500, headers: { "X-Request-Id": "0123abcd" } }))).toContain("the server answered 500, request 0123abcd.");
});

test("a redraw keeps the open dialog and typed values", async () => {
  const actions = new Actions(box());
  const [extend, cancel] = [...document.querySelectorAll("details")] as HTMLDetailsElement[];
  (cancel as HTMLDetailsElement).open = true;
  drawn = EXTEND + CANCEL;
  actions.show("/jobs/7/actions/", "running");
  await settle();
  expect([open(), button("Hold"), (extend as HTMLDetailsElement).isConnected]).toEqual([["sure-cancel"], undefined, true]);
  (cancel as HTMLDetailsElement).open = false;
  (extend as HTMLDetailsElement).open = true;
  (document.querySelector("input") as HTMLInputElement).value = "90";
  drawn = CANCEL + EXTEND.replace("60", "120");
  actions.show("/jobs/7/actions/", "running still");
  await settle();
  expect([open(), document.querySelector("input")?.value]).toEqual([["extend"], "90"]);
  actions.close();
});

test("an unconfirmed request is polled every second until confirmed", async () => {
  drawn = BUTTONS + EXTEND + CANCEL + AWAITED;
  const actions = new Actions(box());
  actions.show("/jobs/7/actions/", "stopping");
  await settle();
  expect(box().textContent).toContain("node n1 silent for 40 s");
  await vi.advanceTimersByTimeAsync(2100);
  expect(looks.mock.calls.length).toBe(3);
  drawn = BUTTONS + EXTEND.replace("60", "120") + CANCEL;
  await vi.advanceTimersByTimeAsync(5000);
  expect(looks.mock.calls.length).toBe(4);
  expect(document.querySelector("input")?.value).toBe("120");
  actions.close();
});

test("a form that loads a page is not sent twice, unless the page does not come", async () => {
  document.body.innerHTML = '<form method="post" action="/rotate/"><button>Replace the secret</button></form>';
  const sent: boolean[] = [];
  const collect = (event: Event): void => {
    sent.push(!event.defaultPrevented);
    event.preventDefault();
  };
  addEventListener("submit", collect);
  const replace = button("Replace the secret");
  replace.click();
  replace.click();
  await vi.advanceTimersByTimeAsync(10_000);
  replace.click();
  removeEventListener("submit", collect);
  expect(sent).toEqual([true, false, true]);
});
