"""The field `gpu_model` of jobs and reservations: words of the driver's name, alternatives separated by `|`."""

RULE = "words of the model's name in printable characters, alternatives separated by |, such as A100|H100"


def alternatives(text: str | None) -> tuple[str, ...]:
    """Return the alternatives; none for an empty text, which any model matches."""
    return tuple(word.strip() for word in (text or "").split("|") if word.strip())


def is_gpu_model(text: str | None) -> bool:
    """Return whether a text is a field that can match a model. Spaces alone would match every model; control
    characters, which are invisible, would match none."""
    return not text or (text.isprintable() and bool(alternatives(text)))
