"""Build the wheel in dist/, check it, and list everything that an installation consists of (an SBOM in CycloneDX).

`make release` runs it. It uploads nothing."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LICENCES = ROOT / "frontend" / "licences"
PACKAGES = ROOT / "frontend" / "node_modules"
# Folders that the wheel does not need, so that building it does not copy them.
OUTSIDE = ("tests/", "docs/", "benchmarks/")
REQUIRED = (
    "gpusched/_server/manage.py",
    "gpusched/_server/templates/base.html",
    "gpusched/_server/frontend/static/live/live.js",
    "gpusched/_server/jobs/migrations/0001_initial.py",
    "gpusched/py.typed",
)
CHANGELOG_LINES = 80
UNWANTED = re.compile(r"node_modules/|__pycache__|\.ts$|/tests/|\.pyc$")


def main() -> None:
    """Build and check; exit with the list of problems if there are any."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    wheel = build(DIST)
    if problems := [*wheel_problems(wheel), *source_problems()]:
        sys.exit("\n".join(problems))
    sbom = DIST / f"{wheel.name.split('-py3')[0]}.cdx.json"
    with tempfile.TemporaryDirectory() as place:
        _write_sbom(_install(wheel, Path(place) / "venv"), sbom)
    print(f"built and checked {wheel.relative_to(ROOT)}; its parts are in {sbom.relative_to(ROOT)}")


def build(directory: Path) -> Path:
    """Build the wheel into `directory`, from a copy of the sources: no file of an earlier build can get into it."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\0")  # fmt: skip
    page = [str(path.relative_to(ROOT)) for path in (ROOT / "frontend/static/live").glob("*")]
    with tempfile.TemporaryDirectory() as place:
        for name in filter(None, [*listed, *page]):
            if (ROOT / name).is_file() and not name.startswith(OUTSIDE):
                (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(place) / name)
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-build-isolation", "--wheel-dir", str(directory), place],
            check=True, cwd=directory,
        )  # fmt: skip
    [wheel] = directory.glob("gpusched-*.whl")
    return wheel


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel: its metadata, its names, its version, a missing or unwanted file."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [description] = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(description)
    try:
        Metadata.from_email(text, validate=True)
    except ExceptionGroup as errors:
        yield from (f"metadata: {error}" for error in errors.exceptions)
    headers: Message = BytesParser().parsebytes(text)
    if headers["Description-Content-Type"] != "text/markdown":
        yield "metadata: the description is not the README"
    if top := {name.split("/")[0] for name in names if ".dist-info/" not in name} - {"gpusched"}:
        yield f"site-packages would get the names {', '.join(sorted(top))}"
    yield from (f"missing: {name}" for name in REQUIRED if name not in names)
    yield from (f"unwanted: {name}" for name in names if UNWANTED.search(name))
    licences = {name.rsplit("/", 1)[-1] for name in names if "/licenses/" in name}
    yield from (f"missing licence: {name}" for name in ("LICENSE", *_licence_files()) if name not in licences)


def source_problems() -> Iterator[str]:
    """Yield what is wrong with the sources: versions that differ, licences of bundled scripts that are not current."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if f'__version__ = "{version}"' not in (ROOT / "gpusched/__init__.py").read_text():
        yield f"gpusched/__init__.py has another version than pyproject.toml, {version}"
    changes = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.M):
        yield f"CHANGELOG.md has no section with a date for {version}"
    if len(changes.splitlines()) > CHANGELOG_LINES:
        yield f"CHANGELOG.md has more than {CHANGELOG_LINES} lines"
    for package in bundled():
        text = LICENCES / f"{package}.txt"
        if not text.exists() or text.read_bytes() != (PACKAGES / package / "LICENSE").read_bytes():
            yield f"{text.relative_to(ROOT)} is not the licence of the installed {package}: copy it from node_modules"


def bundled() -> set[str]:
    """Return the npm packages whose code is in the built page: those that its source imports."""
    imports = re.compile(r"""(?:from|import) ["']([^."'][^"'/]*)""")
    sources = (ROOT / "frontend/src").rglob("*.ts")
    return {name for source in sources for name in imports.findall(source.read_text())}


def _licence_files() -> set[str]:
    return {f"{package}.txt" for package in bundled()}


def _install(wheel: Path, place: Path) -> Path:
    """Install the wheel with the server's libraries, in the versions of the lock file. Return its interpreter."""
    uv = str(Path(sys.executable).parent / "uv")
    python = place / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(place)], check=True)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(ROOT / "requirements.txt"),
         f"gpusched[server] @ {wheel.as_uri()}"],
        check=True,
    )  # fmt: skip
    subprocess.run([str(python), "-m", "gpusched.cli.main", "version"], check=True, cwd=place)
    return python


def _write_sbom(python: Path, target: Path) -> None:
    """List the libraries of the environment and the bundled scripts, each with version and licence."""
    program, root = str(Path(sys.executable).parent / "cyclonedx-py"), ["--pyproject", str(ROOT / "pyproject.toml")]
    subprocess.run([program, "environment", *root, "--output-file", str(target), str(python)], check=True)
    content = json.loads(target.read_text())
    content["components"] += [_script(package) for package in sorted(bundled())]
    target.write_text(json.dumps(content, indent=2) + "\n")


def _script(package: str) -> dict[str, Any]:
    facts = json.loads((PACKAGES / package / "package.json").read_text())
    purl = f"pkg:npm/{package}@{facts['version']}"
    licence = {"license": {"id": facts["license"]}}
    return {"type": "library", "bom-ref": purl, "name": package, "version": facts["version"], "purl": purl,
            "licenses": [licence]}  # fmt: skip


if __name__ == "__main__":
    main()
