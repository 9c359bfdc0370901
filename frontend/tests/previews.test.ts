// Previews of forms that could not be loaded.
import { expect, test, vi } from "vitest";
import { startPreviews } from "../src/ui/previews";

startPreviews();

function tell(name: string, elt: Element | null, status: number): void {
  const target = document.getElementById("panel");
  elt?.dispatchEvent(new CustomEvent(name, { bubbles: true, detail: { elt, target, xhr: { status } } }));
}

test("an outdated preview says so, and is loaded again until it succeeds", () => {
  vi.useFakeTimers();
  document.body.innerHTML = '<form hx-post="/preview/" hx-trigger="change, input delay:400ms"></form><aside id="panel"><p>old</p></aside>';
  const [form, panel] = [document.querySelector("form"), document.getElementById("panel")];
  const asked = vi.fn();
  form?.addEventListener("input", asked);
  for (const [name, status] of [["htmx:sendError", 0], ["htmx:responseError", 503]] as const) {
    tell(name, form, status);
    expect(panel?.querySelectorAll("[role=alert]")).toHaveLength(1);
    vi.advanceTimersByTime(3000);
  }
  expect(asked).toHaveBeenCalledTimes(2);
  expect(panel?.textContent).toContain("Out of date: the server gave no answer.");
  tell("htmx:sendError", form, 0);
  if (panel) panel.innerHTML = "<p>new</p>";
  vi.advanceTimersByTime(60_000);
  expect(asked).toHaveBeenCalledTimes(2);
  tell("htmx:responseError", form, 403);
  vi.advanceTimersByTime(60_000);
  expect([asked.mock.calls.length, panel?.textContent]).toEqual([2, "Out of date: the server answered 403.new"]);
  vi.useRealTimers();
});

test("other requests that fail leave their target alone", () => {
  document.body.innerHTML = '<a hx-get="/jobs/7/?tab=log"></a><aside id="panel"></aside>';
  tell("htmx:sendError", document.querySelector("a"), 0);
  expect(document.getElementById("panel")?.innerHTML).toBe("");
});
