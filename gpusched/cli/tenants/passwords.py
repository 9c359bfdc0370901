"""Read passwords for commands from stdin or a prompt, never from arguments."""

import sys

import typer


def line_of_stdin() -> str:
    """Return the next line of stdin with its end; empty at the end of stdin."""
    try:
        return sys.stdin.readline()
    except UnicodeDecodeError as error:
        from gpusched.client.errors import Invalid

        raise Invalid("stdin is not text in UTF-8") from error


def password_of_stdin(subject: str) -> str:
    """Return a line of stdin without its end, or, on a terminal, ask for it without echo."""
    if sys.stdin.isatty():
        return ask_new(subject)
    text = line_of_stdin().rstrip("\r\n")
    if not text:
        from gpusched.client.errors import Invalid

        raise Invalid(f"{subject} is missing on stdin", next_step="write it to stdin as a line")
    return text


def ask(subject: str, *, is_secret: bool = True, instead: str = "give --username and --password-stdin") -> str:
    """Ask on the terminal. Raise Invalid without one, with what to do `instead`."""
    _require_terminal(subject, instead)
    return str(typer.prompt(subject, hide_input=is_secret, err=True))


def ask_new(subject: str, *, instead: str = "give --password-stdin") -> str:
    """Ask twice for a new password."""
    _require_terminal(subject, instead)
    return str(typer.prompt(subject, hide_input=True, confirmation_prompt=True, err=True))


def _require_terminal(subject: str, instead: str) -> None:
    if not sys.stdin.isatty():
        from gpusched.client.errors import Invalid

        raise Invalid(f"{subject} is required, and there is no terminal to ask on", next_step=instead)
