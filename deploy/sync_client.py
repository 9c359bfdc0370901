"""Generate the blocking SDK (gpusched/client/sync/) from the async one (`make client`); with --check, only report what
differs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TARGET = ROOT / "gpusched/client/aio", ROOT / "gpusched/client/sync"
COMMAND = "make client"
_SUBSTITUTIONS = {
    # A type with at most one level of brackets.
    r"\bCoroutine\[Any, Any, ((?:[^][]|\[[^][]*\])*)\]": r"\1",
    r"\basync (def|for|with) ": r"\1 ",
    r"\bawait ": "",
    r"\bAsync(?=[A-Z])": "",
    r"\b__a(enter|exit)__": r"__\1__",
    r"\.aclose\b": ".close",
    r"\basyncio\b": "time",
    r"\bgpusched\.client\.aio\b": "gpusched.client.sync",
}


def generate() -> dict[Path, str]:
    """Return the text of each module of the blocking SDK."""
    return {TARGET / path.name: _blocking(path) for path in sorted(SOURCE.glob("*.py")) if path.name != "__init__.py"}


def _blocking(path: Path) -> str:
    text = path.read_text()
    for pattern, replacement in _SUBSTITUTIONS.items():
        text = re.sub(pattern, replacement, text)
    note = f"# Written from {path.relative_to(ROOT)} by `{COMMAND}`: edit that file, not this one.\n"
    for command in ("check --fix-only --select=F401,I", "format"):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command.split(),
            "--quiet",
            "--stdin-filename",
            str(TARGET / path.name),
            "-",
        ]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return note + text


if __name__ == "__main__":
    stale = {path: text for path, text in generate().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} differs from its source: run `{COMMAND}`")
        else:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} is written")
    sys.exit(bool(stale and "--check" in sys.argv))
