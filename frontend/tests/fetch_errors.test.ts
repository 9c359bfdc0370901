// Requests of the page, and why they failed.
import { afterEach, expect, test, vi } from "vitest";
import { request, whyFailed } from "../src/ui/fetch_errors";

afterEach(() => void vi.restoreAllMocks());

test("a request that gets no answer fails after a minute, and says so", async () => {
  const controller = new AbortController();
  const limit = vi.spyOn(AbortSignal, "timeout").mockReturnValue(controller.signal);
  vi.spyOn(globalThis, "fetch").mockImplementation(
    (_, init) => new Promise((_resolve, reject) => init?.signal?.addEventListener("abort", () => reject(init.signal?.reason as DOMException))),
  );
  const answer = request("/jobs/7/actions/");
  expect(limit).toHaveBeenCalledWith(60_000);
  controller.abort(new DOMException("signal timed out", "TimeoutError"));
  expect(whyFailed(await answer.catch((error: unknown) => error))).toBe("the server gave no answer");
});
