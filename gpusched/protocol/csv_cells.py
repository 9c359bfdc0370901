"""What stands in a cell of CSV, of the server's and of the command line's."""


def as_text(value: object) -> object:
    """What a spreadsheet would take for a formula begins with a quote; numbers are numbers."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
