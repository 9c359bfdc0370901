// Why a reading is not there, in words.
import type { NodeRow } from "../topics";

export function absent(node: Pick<NodeRow, "state">): string {
  return node.state === "lost" ? "n/a: its node is lost" : "n/a: its agent has not read it yet";
}
