// The store: snapshot + deltas = state, and gaps are detected.
import { expect, test } from "vitest";
import { NOTHING, type TopicMessage, type TopicState, apply, unsettled } from "../src/live/store";
import type { Rows } from "../src/live/topics";

function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
}

const plain = (state: TopicState): Rows => Object.fromEntries([...state.rows].sort());

test("snapshot and deltas are the state, over random histories", () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const random = generator(seed);
    const pick = (maximum: number): number => Math.floor(random() * maximum);
    const truth = new Map<string, object>();
    for (let at = 0; at < pick(20); at += 1) truth.set(`k${pick(30)}`, { value: pick(1000) });
    let seq = pick(100);
    let state = apply(NOTHING, { topic: "t", seq, snapshot: Object.fromEntries(truth) });
    for (let step = 0; step < 50; step += 1) {
      const set: Rows = {};
      const removed: string[] = [];
      for (let at = 0; at < pick(4); at += 1) set[`k${pick(30)}`] = { value: pick(1000) };
      for (const key of truth.keys()) if (!(key in set) && random() < 0.1) removed.push(key);
      for (const key of removed) truth.delete(key);
      for (const [key, row] of Object.entries(set)) truth.set(key, row);
      seq += 1;
      const isLost = random() < 0.05;
      if (!isLost) state = apply(state, { topic: "t", seq, set, gone: removed });
      if (state.status === "gap") state = apply(state, { topic: "t", seq, snapshot: Object.fromEntries(truth) });
    }
    if (state.seq !== seq) state = apply(state, { topic: "t", seq: seq + 1, snapshot: Object.fromEntries(truth) });
    expect(plain(state)).toEqual(Object.fromEntries([...truth].sort()));
  }
});

test("a gap keeps rows until a snapshot", () => {
  let state = apply(NOTHING, { topic: "t", seq: 1, snapshot: { a: { v: 1 } } });
  state = apply(state, { topic: "t", seq: 3, set: { a: { v: 3 } } });
  expect(state.status).toBe("gap");
  expect(plain(state)).toEqual({ a: { v: 1 } });
  state = apply(state, { topic: "t", seq: 4, set: { b: { v: 4 } } });
  expect(state.status).toBe("gap");
  state = apply(state, { topic: "t", seq: 5, snapshot: { b: { v: 5 } } });
  expect(state.status).toBe("ready");
  expect(plain(state)).toEqual({ b: { v: 5 } });
});

test("deltas before the snapshot are ignored", () => {
  const state = apply(NOTHING, { topic: "t", seq: 1, set: { a: {} } });
  expect(state).toBe(NOTHING);
});

test("no input is changed", () => {
  const first = apply(NOTHING, { topic: "t", seq: 1, snapshot: { a: { v: 1 } } });
  const message: TopicMessage = { topic: "t", seq: 2, set: { a: { v: 2 } }, gone: [] };
  apply(first, message);
  expect(plain(first)).toEqual({ a: { v: 1 } });
});

test("a snapshot keeps the identity of rows that it repeats", () => {
  const first = apply(NOTHING, { topic: "t", seq: 1, snapshot: { a: { v: 1 }, b: { v: 1 } } });
  const second = apply(first, { topic: "t", seq: 9, snapshot: { a: { v: 1 }, b: { v: 2 } } });
  expect(second.rows.get("a")).toBe(first.rows.get("a"));
  expect(second.rows.get("b")).not.toBe(first.rows.get("b"));
});

test("an error clears the rows; a new connection waits again", () => {
  const first = apply(NOTHING, { topic: "job:17", seq: 1, snapshot: { job: { id: 17 } } });
  const refused = apply(first, { topic: "job:17", error: "not_found" });
  expect(refused.error).toBe("not_found");
  expect(refused.rows.size).toBe(0);
  expect(unsettled(refused).status).toBe("waiting");
  expect(unsettled(first).rows.size).toBe(1);
});

test("a patch merges objects and replaces lists", () => {
  const first = apply(NOTHING, { topic: "t", seq: 1, snapshot: { a: { x: 1, deep: { y: 1, z: [1, 2] }, none: null }, b: { x: 1 } } });
  const second = apply(first, { topic: "t", seq: 2, patch: { a: { deep: { z: [3] }, none: { w: 1 }, extra: 2 } } });
  expect(second.rows.get("a")).toEqual({ x: 1, deep: { y: 1, z: [3] }, none: { w: 1 }, extra: 2 });
  expect(second.rows.get("b")).toBe(first.rows.get("b"));
  expect(first.rows.get("a")).toEqual({ x: 1, deep: { y: 1, z: [1, 2] }, none: null });
});
