"""Check what no linter does: modules of at most 400 lines, no registry address in any committed file, and that each
file of tests belongs to the tier of its folder."""

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 400
# Package managers write the address of their registry into lock files and configuration.
LOCKS = re.compile(r"(lock|requirements|\.npmrc|pip\.conf)")
HOST = re.compile(
    r"(https?://[^\s\"']*/(simple|npm|registry|pypi)[^\s\"']*|\"resolved\"\s*:|--index-url|--extra-index-url)"
)

# deploy/test.sh selects by the mark: a test without it would run in no tier.
MARKED = re.compile(r"tests/(e2e|browser)/test_\w+\.py")

files = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
problems = []
for name in filter(None, files):
    path = Path(name)
    if not path.exists():
        continue
    if path.suffix in (".py", ".ts") and "migrations" not in path.parts:
        lines = len(path.read_text().splitlines())
        if lines > MAX_LINES:
            problems.append(f"{name}: {lines} lines, at most {MAX_LINES}")
    if (folder := MARKED.fullmatch(name)) and not re.search(
        rf"^pytestmark = .*mark\.{folder[1]}\b", path.read_text(), re.M
    ):
        problems.append(f"{name}: pytestmark has no pytest.mark.{folder[1]}, so that no tier runs the file")
    if LOCKS.search(path.name) and HOST.search(path.read_text(errors="replace")):
        problems.append(f"{name}: names a package registry")
print("\n".join(problems) or "tree: ok")
sys.exit(bool(problems))
