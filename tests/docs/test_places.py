"""Check that the places that CONTRIBUTING.md and docs/architecture.md name exist."""

import re
import subprocess
import sys

import pytest

from tests.docs.reading import ROOT, section, text_of

TOP_FOLDERS = (
    "gpusched",
    "tenants",
    "jobs",
    "nodes",
    "scheduling",
    "serving",
    "notifications",
    "frontend",
    "templates",
    "tests",
    "benchmarks",
)
_FILE = re.compile(r"(?<![\w./-])((?:[\w-]+/)+[\w-]+\.(?:py|ts|html|json|md|txt|toml))\b")
_FOLDER = re.compile(rf"(?<![\w./-])((?:{'|'.join(TOP_FOLDERS)})/(?:[\w-]+/)*)(?=[`\s])")


def named_files(text: str) -> set[str]:
    return set(_FILE.findall(text))


def named_folders(text: str) -> set[str]:
    return set(_FOLDER.findall(text))


def questions() -> list[tuple[str, str]]:
    """Return the rows of "Where things are" as (question, places)."""
    lines = section("CONTRIBUTING.md", "## Where things are").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(question, places) for question, places in rows[2:]]


def test_contributing_answers_twenty_questions():
    assert len(questions()) >= 20


@pytest.mark.parametrize(("question", "places"), questions(), ids=lambda text: text[:50])
def test_each_question_names_files_that_exist(question: str, places: str):
    assert question.endswith("?")
    files = named_files(places)
    assert files, f"no file answers: {question}"
    missing = [path for path in sorted(files) if not (ROOT / path).is_file()]
    assert not missing, f"CONTRIBUTING.md, {question} names {missing}"


def test_places_of_new_things_exist():
    text = section("CONTRIBUTING.md", "## Where a new thing goes")
    missing = [path for path in sorted(named_files(text)) if not (ROOT / path).is_file()]
    missing += [path for path in sorted(named_folders(text)) if not (ROOT / path).is_dir()]
    assert not missing, f"CONTRIBUTING.md names {missing}"


def test_architecture_names_places_that_exist():
    text = text_of("docs/architecture.md")
    files, folders = named_files(text), named_folders(text)
    assert len(files) > 50
    assert len(folders) > 20
    missing = [path for path in sorted(files) if not (ROOT / path).is_file() and not (ROOT / "docs" / path).is_file()]
    missing += [path for path in sorted(folders) if not (ROOT / path).is_dir()]
    assert not missing, f"docs/architecture.md names {missing}"


def test_benchmark_script_hides_no_app() -> None:
    """benchmarks/serving.py and the app `serving` have one name, and Python searches the directory of a script first."""
    script = "import sys; sys.path.insert(0, 'benchmarks'); import benchmarks, serving; print(serving.__path__[0])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == str(ROOT / "serving")
