"""CSV cells of the server and the command line."""


def as_text(value: object) -> object:
    """Prefix text that a spreadsheet would take for a formula with a quote; leave numbers as they are."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
