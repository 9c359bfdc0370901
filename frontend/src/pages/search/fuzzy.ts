// How well a text answers what was typed: letters in order, better together and at the beginnings of words.

/** Higher is better; null: not all letters are there in this order. */
export function score(text: string, query: string): number | null {
  const [haystack, letters] = [text.toLowerCase(), query.toLowerCase().replace(/\s+/g, "")];
  let [at, total, previous] = [0, 0, -2];
  for (const letter of letters) {
    const index = haystack.indexOf(letter, at);
    if (index < 0) return null;
    const isStart = index === 0 || /[^a-z0-9]/.test(haystack[index - 1] ?? "");
    total += index === previous + 1 ? 3 : isStart ? 2 : 0;
    [previous, at] = [index, index + 1];
  }
  // Of two that have the same letters the shorter is meant.
  return total - text.length / 100;
}
