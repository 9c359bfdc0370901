// The freshness rules, with a pretend clock.
import { expect, test } from "vitest";
import { freshness } from "../src/live/freshness";
import { clock } from "../src/ui/time";

const heard = (aliveAt: number | null, isConnected = true) => ({ isConnected, isLoggedOut: false, blindSeconds: null as number | null, aliveAt, cycleAgeSeconds: 0.4, polledAt: null as number | null });

test("live for 5 s, then delayed with the age", () => {
  expect(freshness(heard(10_000), 10_000, false).text).toBe("live");
  expect(freshness(heard(10_000), 15_000, false).level).toBe("live");
  expect(freshness(heard(10_000), 17_000, false)).toMatchObject({ level: "delayed", text: "delayed 7 s" });
});

test("a server without events is not live", () => {
});

test("a database outage is shown with its duration", () => {
  const blind = { ...heard(10_000), blindSeconds: 6.2 };
  expect(freshness(blind, 12_000, false)).toMatchObject({ level: "delayed", text: "delayed 8 s" });
  expect(freshness(blind, 12_000, false).title).toContain("database");
});

test("offline shows the last known time", () => {
  const at = Date.now();
  const visible = freshness(heard(at, false), at + 1000, true);
  expect(visible).toMatchObject({ level: "offline", text: `offline, last known ${clock(at)}` });
});

test("a logout is shown", () => {
  expect(freshness({ ...heard(0, false), isLoggedOut: true }, 1000, true)).toMatchObject({ level: "offline", text: "logged out", isLink: true });
});

test("connecting becomes offline only after a failure", () => {
  expect(freshness(heard(null, false), 0, false).level).toBe("delayed");
  expect(freshness(heard(null, false), 0, true)).toMatchObject({ level: "offline", text: "offline, as loaded" });
});

test("polled rows are shown with their age until they expire", () => {
  const polled = { ...heard(null, false), polledAt: 10_000 };
  expect(freshness(polled, 13_000, true)).toMatchObject({ level: "delayed", text: "polling, 3 s old" });
  expect(freshness(polled, 40_000, true)).toMatchObject({ level: "offline" });
});
