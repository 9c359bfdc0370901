"""The rules file: its types, and what is wrong with it."""

import re
from pathlib import Path
from typing import Any

import msgspec

from gpusched.client.errors import Invalid
from gpusched.protocol import choices
from gpusched.protocol.reservations import NewReservation, validate

SOURCES = ("log", "files", "process", "command", "slurm", "monitor")
_MAX_TIME = 1_000_000  # minutes: two years
_MAX_AHEAD = 366 * 1440  # minutes; a later reservation is refused


class Endpoint(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The user's LLM (OpenAI protocol). The key comes from the variable `key_variable`, or, with `key_keyring` like
    SERVICE/USER, from the keyring."""

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    key_keyring: str = ""


class Reserve(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The booking of a match: from `in_minutes` after the match, for `for_minutes`."""

    gpus: int
    for_minutes: float = 60.0
    in_minutes: float = 0.0
    tenant: str | None = None
    gpu_model: str | None = None
    gpu_memory_mb: int | None = None
    node_selector: dict[str, str] = {}
    one_node: bool = True


class Rule(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One source, how it is judged, and what it books.

    `log`: a file, read as it grows. `files`: a glob; each new file is observed. `process`: a regular expression for
    command lines; each start and end is observed. `command`: a command; its new lines of output are observed.
    `slurm`: a user of its queue; each new state of a job is observed. `monitor`: MODULE:CLASS of your own, with
    `options`."""

    name: str
    reserve: Reserve
    log: str = ""
    files: str = ""
    process: str = ""
    command: list[str] = []
    slurm: str = ""
    monitor: str = ""
    options: dict[str, Any] = {}
    match: str = ""
    ask: str = ""
    confidence: float = 0.8
    minimum_confidence: float = 0.5
    every_seconds: float = 5.0
    cool_down_minutes: float = 30.0

    @property
    def source(self) -> str:
        return next(name for name in SOURCES if getattr(self, name))


class Rules(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    rules: list[Rule]
    endpoint: Endpoint | None = None


def load(path: Path) -> Rules:
    """Return the rules of a YAML file. Raise Invalid with the place and the next step."""
    import yaml

    try:
        rules = msgspec.convert(yaml.safe_load(path.read_text("utf-8")), Rules)
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from error
    except RecursionError as error:
        raise Invalid(f"{path}: it is nested too deeply") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        message = choices.named(Rules, str(error))
        raise Invalid(f"{path}: {message}", next_step="docs/how-to/watch-and-reserve.md has the fields") from error
    problems = [f"rule {rule.name!r}: {problem}" for rule in rules.rules for problem in _problems(rule, rules.endpoint)]
    names = [rule.name for rule in rules.rules]
    problems += [f"two rules are named {name!r}" for name in sorted({name for name in names if names.count(name) > 1})]
    if problems:
        raise Invalid(f"{path}: {problems[0]}", next_step="docs/how-to/watch-and-reserve.md has the fields")
    return rules


def _problems(rule: Rule, endpoint: Endpoint | None) -> list[str]:
    problems = []
    if sum(bool(getattr(rule, name)) for name in SOURCES) != 1:
        problems.append(f"set exactly one of {', '.join(SOURCES)}")
    if not rule.match and not rule.ask:
        problems.append("set `match`, a regular expression, or `ask`, a question to the endpoint, or both")
    if rule.ask and endpoint is None:
        problems.append("`ask` needs an `endpoint`")
    for name, pattern in (("match", rule.match), ("process", rule.process)):
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            problems.append(f"`{name}` is no regular expression: {error}")
    if not (0 <= rule.confidence <= 1 and 0 <= rule.minimum_confidence <= 1):
        problems.append("`confidence` and `minimum_confidence` must be from 0 to 1")
    if rule.reserve.gpus < 1 or rule.reserve.for_minutes <= 0 or rule.reserve.in_minutes < 0:
        problems.append("`reserve` needs gpus of at least 1, a positive for_minutes, and in_minutes of at least 0")
    times = (rule.reserve.for_minutes, rule.reserve.in_minutes, rule.every_seconds, rule.cool_down_minutes)
    if not all(time <= _MAX_TIME for time in times):  # nor .nan
        problems.append(f"for_minutes, in_minutes, every_seconds and cool_down_minutes must be at most {_MAX_TIME}")
    if rule.every_seconds < 0.1 or rule.cool_down_minutes < 0:
        problems.append("every_seconds must be at least 0.1, and cool_down_minutes at least 0")
    return problems or _refusals(rule)


def _refusals(rule: Rule) -> list[str]:
    """Return why any server would refuse what the rule books: it would be noticed only when the rule matches."""
    wanted = rule.reserve
    request = NewReservation(
        gpus=wanted.gpus,
        gpu_model=wanted.gpu_model,
        gpu_memory_mb=wanted.gpu_memory_mb,
        node_selector=wanted.node_selector,
        for_seconds=round(wanted.for_minutes * 60),
        note=f"watch: {rule.name}",
    )
    problems = {error.field: f"`reserve`: {error.field}: {error.message}" for error in validate(request)}
    if "for_seconds" in problems:
        problems["for_seconds"] = "`reserve`: for_minutes must be between 1 and 44640 (31 days)"
    if "note" in problems:
        problems["note"] = "`name` is too long, or has a NUL"
    if wanted.in_minutes > _MAX_AHEAD:
        problems["from"] = f"`reserve`: in_minutes must be at most {_MAX_AHEAD} (366 days)"
    return list(problems.values())
