// What the list of jobs says of itself.
import { expect, test, vi } from "vitest";
import type { Page } from "../src/regions";
import { jobs } from "../src/views/jobs";

test("the list of jobs says how many it has, whether there are older ones, and that an array is one row", async () => {
  const row = (id: number, more: object = {}): object => ({ id, name: "", tenant: "red", user: "ann", state: "running", reason: null, gpu_count: 1, nodes: [], submitted_at: "2026-01-31T08:00:00Z", started_at: null, ended_at: null, ...more });
  const shown = async (items: object[], next_cursor: string | null): Promise<string | null | undefined> => {
    vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify({ items, next_cursor }))));
    const region = document.createElement("section");
    const view = jobs(region, {} as Page);
    await vi.waitFor(() => expect(region.querySelectorAll("tbody tr")).toHaveLength(items.length));
    view.close?.();
    return region.querySelector(".summary")?.textContent;
  };
  expect(await shown([row(1)], null)).toBe("1 job.");
  expect(await shown([row(2), row(1, { array: { count: 3, max_parallel: null, remaining: 2, by_state: {} } })], "x")).toBe("2 jobs, and older ones; an array counts once.");
  vi.unstubAllGlobals();
});
