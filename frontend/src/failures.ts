// Why a request failed, in words for a person.

/** `otherwise`: for what is no Error at all. */
export function whyFailed(error: unknown, otherwise = "no answer"): string {
  // What fetch itself says of a server that is away differs from browser to browser.
  if (error instanceof TypeError) return "the server gave no answer";
  return error instanceof Error ? error.message : otherwise;
}
