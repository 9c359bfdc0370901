"""Sends requests that the OpenAPI document allows or forbids to a running server as each role (schemathesis)."""

from benchmarks.report import arguments, publish
from tests.system.schema_fuzz import ROLES, FuzzResult, fuzz, prepare
from tests.system.stack import Stack


def main() -> None:
    options = arguments(__doc__ or "", requests=10_000, seed=0)
    result, seed = FuzzResult(), options.seed
    with Stack(rate_limit_per_minute=0) as stack:
        target = prepare(stack)
        while result.requests < options.requests:
            more = fuzz(target, each=30, seed=seed)
            result.requests += more.requests
            result.statuses += more.statuses
            result.failures = {**more.failures, **result.failures}
            seed += len(ROLES)
    for (operation, problem), detail in sorted(result.failures.items()):
        print(f"\n{operation}: {problem}\n{detail}")
    figures: dict[str, float | int | str] = {"requests": result.requests, "seed": options.seed}
    figures |= {f"answers {status}": count for status, count in sorted(result.statuses.items())}
    publish(figures, options.json, failures=len(result.failures))


if __name__ == "__main__":
    main()
