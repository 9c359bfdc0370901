"""The rules for a label, its value and the key of a taint."""

import re

MAX_LABELS = 32  # of one job or node
LABEL_RULE = "short words of letters, digits, . _ / -"
_LABEL = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?\Z")


def is_label(word: str) -> bool:
    return _LABEL.match(word) is not None


def is_value(word: str) -> bool:
    return not word or is_label(word)
