// How well a text answers what was typed: letters in order, better together and at the beginnings of words.

/** Higher is better; null: not all letters are there in this order. */
export function score(text: string, asked: string): number | null {
  const [where, what] = [text.toLowerCase(), asked.toLowerCase().replace(/\s+/g, "")];
  let [at, total, before] = [0, 0, -2];
  for (const letter of what) {
    const found = where.indexOf(letter, at);
    if (found < 0) return null;
    const isStart = found === 0 || /[^a-z0-9]/.test(where[found - 1] ?? "");
    total += found === before + 1 ? 3 : isStart ? 2 : 0;
    [before, at] = [found, found + 1];
  }
  // Of two that have the same letters the shorter is meant.
  return total - text.length / 100;
}
