"""The blocks of the documents are run as they are written, against one real stack; what they show is what is printed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.docs.blocks import RUN, Block, blocks, documents, is_run
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]  # a shared machine is slow
DOCS = ROOT / "docs"
GUIDES = [DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
OTHERS = [path for path in documents() if path not in GUIDES and any(is_run(block) for block in blocks(path))]
# Blocks that no test runs; each has its reason beside it in the document. A new one is a decision. What can be checked
# of them without running them tests/docs/test_blocks.py does.
NOT_RUN = 67
# What the documents take for granted that their readers have.
FILES = {
    "train.py": "print('loss 0.1')\n",
    "train.sh": "#!/bin/sh\necho $1 $2\n",
    "token.txt": "s3cret\n",
    "bin/nvidia-smi": "#!/bin/sh\necho 'NVIDIA A100'\n",
}
# Python as in a notebook, where await may stand at the top. `c` is a client.
PYTHON = """
import ast, asyncio, inspect, sys
from gpusched.client import Client
code = compile(sys.stdin.read(), "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
done = eval(code, {"c": Client()})
if inspect.iscoroutine(done):
    asyncio.run(done)
"""


@dataclass
class Place:
    """A server without nodes, a directory that looks like the checkout from which it was started, and the shells that
    ran in it: what they left running is in their process groups."""

    stack: Stack
    directory: Path
    shells: list[int]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("checkout")
    with Stack() as stack:
        for name, target in (
            (".gpusched", stack.data_dir),
            (".venv", ROOT / ".venv"),
            ("manage.py", ROOT / "manage.py"),
        ):
            (directory / name).symlink_to(target)
        for name, text in {**FILES, "as_in_a_notebook.py": PYTHON}.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
        here = Place(stack, directory, [])
        yield here
        for shell in here.shells:
            with suppress(ProcessLookupError):
                os.killpg(shell, signal.SIGTERM)


def script(found: list[Block]) -> str:
    """All blocks in one shell, each followed by a line that says where its output ends."""
    parts = ["set -euo pipefail"]
    for number, block in enumerate(found):
        # A file whose first line is its name is one that the next block uses.
        if block.kind == "yaml" and (name := re.match(r"# ([\w.-]+\.yaml)\b", block.text)):
            parts.append(f"cat > {name[1]} <<'END'\n{block.text}END")
        if is_run(block):
            text = block.text if block.kind == "sh" else f"python as_in_a_notebook.py <<'END'\n{block.text}END"
            parts.append(f"{text}\necho '=== {number}'; echo '=== {number}' >&2")
    return "\n".join(parts)


def run(guide: Path, place: Place) -> dict[int, str]:
    """Return the stdout of each block by its number. Fail with all output if a command fails."""
    stack, directory = place.stack, place.directory
    with stack.client() as client:
        # What the guide before cancelled ends meanwhile, and then is history: the next one may replay or count it.
        wait_for(lambda: "stopping" not in client.status().jobs_by_state, 120, "jobs of the guide before to end", 0.5)
    environment = {
        **stack.environment(), "HOME": str(directory), "GPUSCHED_URL": stack.url, "GPUSCHED_AGENT_ALLOW_ROOT": "true",
        "GPUSCHED_TOKEN_FILE": str(stack.data_dir / "tokens" / "admin"), "GPUSCHED_TENANT": "default",
        "PATH": f"{directory / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOKEN": stack.token(),
    }  # fmt: skip
    out, errors = directory / "out", directory / "errors"
    with out.open("w") as standard, errors.open("w") as other:
        shell = subprocess.Popen(
            ["bash", "-c", script(blocks(guide))], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=standard, stderr=other, start_new_session=True,
        )  # fmt: skip
    place.shells.append(shell.pid)
    try:
        code = shell.wait(300)
    except subprocess.TimeoutExpired:
        code = -1
    printed = out.read_text()
    assert code == 0, f"{guide.name}: {printed}\n{errors.read_text()}"
    pieces = re.split(r"^=== (\d+)\n", printed, flags=re.M)
    return {int(number): text for text, number in zip(pieces[::2], pieces[1::2], strict=False)}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide_commands_work_and_print_the_shown_output(place: Place, guide: Path) -> None:
    """A54. In this order: the tutorial's node is that of the how-tos."""
    printed = run(guide, place)
    for number, block in enumerate(blocks(guide)):
        if block.kind == "text":
            lines = [" ".join(line.split()) for line in printed[number - 1].splitlines()]
            for wanted in block.text.splitlines():
                pattern = " ".join(wanted.split()).replace("…", "*")
                assert any(fnmatch(line, pattern) for line in lines), f"{wanted!r} is not in {lines}"


@pytest.mark.parametrize("document", OTHERS, ids=lambda path: path.stem)
def test_document_commands_work(place: Place, document: Path) -> None:
    """A54. After the guides: on the tutorial's node, with the tenants that it made."""
    run(document, place)


def test_blocks_that_are_not_run_state_the_reason_and_are_counted() -> None:
    """A54"""
    found = [block for document in documents() for block in blocks(document) if block.kind in RUN]
    assert len([block for block in found if block.why_not]) == NOT_RUN
    assert len(found) > 2.5 * NOT_RUN
