// Fuzzy match: letters in order, better if adjacent or at the start of words.

/** Return a score, higher is better, or null without a match. */
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
  // Prefer shorter texts.
  return total - text.length / 100;
}
