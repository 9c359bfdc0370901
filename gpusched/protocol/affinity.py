"""Taints, tolerations and node affinity: their JSON, the short texts that people type, and their limits."""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from gpusched.protocol.labels import LABEL_RULE, is_label, is_value

MAX_TAINTS = MAX_TOLERATIONS = MAX_EXPRESSIONS = MAX_VALUES = 32
MAX_WEIGHT = 100
# The key of a taint that reserves a node for jobs of at least as many GPUs as its value. They need no toleration.
MIN_GPUS = "min-gpus"
_ANY = "*"
_GPUS = re.compile(r"[1-9][0-9]{0,4}")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_WEIGHT = re.compile(r"(\d{1,9}):(.*)", re.DOTALL)


class TaintEffect(StrEnum):
    """`NoSchedule`: no job without the toleration starts there. `PreferNoSchedule`: only where no other node fits."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"


class TolerationOperator(StrEnum):
    EQUAL = "Equal"
    EXISTS = "Exists"


class LabelOperator(StrEnum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "doesnotexist"


class Taint(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A mark of a node that jobs without the toleration avoid. A node has one taint per key and effect."""

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE


class Toleration(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The taints that a job accepts: with this key and value (`Equal`), or with this key (`Exists`; an empty key
    matches any key). Without an effect it covers all effects."""

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: TaintEffect | None = None


class Expression(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A condition on the labels of a node. A node without the key matches `notin`."""

    key: str
    operator: LabelOperator
    values: list[str] = []


class Preference(Expression, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A condition that a node should match; the weights of all matches add up."""

    weight: int = 1


class NodeAffinity(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A node must match all of `required`; of those with capacity, the scheduler chooses the ones with the most
    weight."""

    required: list[Expression] = []
    preferred: list[Preference] = []


# --- texts ------------------------------------------------------------------------------------------------------------


def taint_of(text: str) -> Taint:
    """Parse `key=value:EFFECT` or `key:EFFECT`. Raises ValueError with a sentence."""
    named, separator, effect = text.strip().rpartition(":")
    if not separator or effect not in list(TaintEffect):
        raise ValueError(f"{text!r} is not a taint: write KEY=VALUE:EFFECT or KEY:EFFECT, {_effects()}")
    key, _, value = named.partition("=")
    taint = Taint(key=key, value=value, effect=TaintEffect(effect))
    if problem := next(taint_problems(taint), None):
        raise ValueError(f"{text!r} is not a taint: {problem}")
    return taint


def taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def toleration_of(text: str) -> Toleration:
    """Parse `key=value`, `key` (any value) or `*` (all taints), each with or without `:EFFECT`. Raises ValueError."""
    named, separator, word = text.strip().rpartition(":")
    effect = TaintEffect(word) if separator and word in list(TaintEffect) else None
    if separator and effect is None:
        raise ValueError(f"{text!r} has an unknown effect: {_effects()}")
    named = named if separator else word
    key, has_value, value = named.partition("=")
    if has_value:
        toleration = Toleration(key=key, value=value, effect=effect)
    else:
        toleration = Toleration(key="" if named == _ANY else named, operator=TolerationOperator.EXISTS, effect=effect)
    problem = next(toleration_problems(toleration), None) or ("" if named else "it is empty")
    if problem:
        raise ValueError(
            f"{text!r} is not a toleration: {problem}; write KEY=VALUE, KEY or {_ANY}, with or without :EFFECT"
        )
    return toleration


def toleration_text(toleration: Toleration) -> str:
    named = toleration.key or _ANY
    if toleration.operator is TolerationOperator.EQUAL:
        named = f"{named}={toleration.value}"
    return f"{named}:{toleration.effect}" if toleration.effect else named


def expression_of(text: str) -> Expression:
    """Parse `key in (a, b)`, `key notin (a, b)`, `key=value`, `key!=value`, `key` or `!key`. Raises ValueError."""
    written = text.strip()
    if match := _SET.fullmatch(written):
        values = [value.strip() for value in match[3].split(",") if value.strip()]
        expression = Expression(key=match[1], operator=LabelOperator(match[2]), values=values)
    elif "=" in written:
        key, _, value = written.replace("==", "=").partition("=")
        operator = LabelOperator.NOT_IN if key.endswith("!") else LabelOperator.IN
        expression = Expression(key=key.removesuffix("!").strip(), operator=operator, values=[value.strip()])
    elif written.startswith("!"):
        expression = Expression(key=written[1:].strip(), operator=LabelOperator.DOES_NOT_EXIST)
    else:
        expression = Expression(key=written, operator=LabelOperator.EXISTS)
    if problem := next(expression_problems(expression), None):
        forms = "'KEY in (A, B)', 'KEY notin (A, B)', KEY=A, KEY!=A, KEY or !KEY"
        raise ValueError(f"{text!r} is not an expression: {problem}; write one of {forms}")
    return expression


def expression_text(expression: Expression) -> str:
    if expression.operator in (LabelOperator.IN, LabelOperator.NOT_IN):
        return f"{expression.key} {expression.operator} ({', '.join(expression.values)})"
    return expression.key if expression.operator is LabelOperator.EXISTS else f"!{expression.key}"


def preference_of(text: str) -> Preference:
    """Parse `10:key in (a, b)`: a weight of 1 to 100 (1 without one) and an expression. Raises ValueError."""
    match = _WEIGHT.fullmatch(text.strip())
    weight, condition = (int(match[1]), match[2]) if match else (1, text)
    if not 1 <= weight <= MAX_WEIGHT:
        raise ValueError(f"{text!r} has the weight {weight}: it must be between 1 and {MAX_WEIGHT}")
    expression = expression_of(condition)
    return Preference(key=expression.key, operator=expression.operator, values=expression.values, weight=weight)


def preference_text(preference: Preference) -> str:
    return f"{preference.weight}:{expression_text(preference)}"


# --- limits --------------------------------------------------------------------------------------------------------


def taint_problems(taint: Taint) -> Iterator[str]:
    if not is_label(taint.key) or not is_value(taint.value):
        yield f"key and value are {LABEL_RULE}"
    elif taint.key == MIN_GPUS and not _GPUS.fullmatch(taint.value):
        yield f"the value of {MIN_GPUS} is the fewest GPUs of a job that may start there, from 1 to 99999"


def toleration_problems(toleration: Toleration) -> Iterator[str]:
    if not is_value(toleration.key) or not is_value(toleration.value):
        yield f"key and value are {LABEL_RULE}"
    elif toleration.operator is TolerationOperator.EXISTS and toleration.value:
        yield "the operator Exists takes no value"
    elif toleration.operator is TolerationOperator.EQUAL and not toleration.key:
        yield "the operator Equal needs a key; only Exists covers every key"


def expression_problems(expression: Expression) -> Iterator[str]:
    takes_values = expression.operator in (LabelOperator.IN, LabelOperator.NOT_IN)
    if not is_label(expression.key) or not all(is_value(value) for value in expression.values):
        yield f"key and values are {LABEL_RULE}"
    elif takes_values and not 1 <= len(expression.values) <= MAX_VALUES:
        yield f"{expression.operator} takes 1 to {MAX_VALUES} values"
    elif not takes_values and expression.values:
        yield f"{expression.operator} takes no values"


def affinity_problems(affinity: NodeAffinity) -> Iterator[tuple[str, str]]:
    """Yield (field, sentence) for each problem."""
    lists: tuple[tuple[str, Sequence[Expression]], ...] = (
        ("required", affinity.required),
        ("preferred", affinity.preferred),
    )
    for name, expressions in lists:
        if len(expressions) > MAX_EXPRESSIONS:
            yield f"node_affinity.{name}", f"at most {MAX_EXPRESSIONS} expressions"
        for number, expression in enumerate(expressions):
            yield from ((f"node_affinity.{name}[{number}]", problem) for problem in expression_problems(expression))
    for number, preference in enumerate(affinity.preferred):
        if not 1 <= preference.weight <= MAX_WEIGHT:
            yield f"node_affinity.preferred[{number}].weight", f"must be between 1 and {MAX_WEIGHT}"


def _effects() -> str:
    return f"with EFFECT {' or '.join(TaintEffect)}"
