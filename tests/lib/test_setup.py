"""The script behind `make setup`, in a checkout of its own, without an index."""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Installs nothing, so that the test needs no build tools.
BACKEND = """
import zipfile

def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "walked-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.writestr("walked-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: walked\\nVersion: 1\\n")
        wheel.writestr("walked-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("walked-1.dist-info/RECORD", "")
    return name
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose page is built already."""
    for path in ("deploy/setup.sh", "deploy/node.sh"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tmp_path / "requirements.txt").write_text("# none\n")
    built = tmp_path / "frontend" / "static" / "live"
    built.mkdir(parents=True)
    (tmp_path / "frontend" / "src").mkdir()
    for name in ("package.json", "package-lock.json", "vite.config.ts", "tsconfig.json"):
        (tmp_path / "frontend" / name).write_text("{}")
    (built / ".built").write_text(sha256(b"{}{}{}{}").hexdigest())
    return tmp_path


def setup(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", **variables}
    return subprocess.run(
        ["bash", "deploy/setup.sh"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120
    )


def test_setup_makes_an_environment_again_that_was_half_made_or_is_of_another_python(checkout: Path) -> None:
    """As `python3 -m venv` leaves it on Debian without python3-venv; and after the system has got another Python,
    which does not look into the folder of the old version."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(checkout / ".venv")], check=True)

    result = setup(checkout)

    assert result.returncode == 0, result.stderr
    [libraries] = (checkout / ".venv" / "lib").glob("python3*")
    libraries.rename(libraries.with_name("python3.9"))

    result = setup(checkout)

    assert result.returncode == 0, result.stderr
    assert "installing libraries" in result.stdout


def test_setup_prints_why_npm_failed(checkout: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (checkout / "frontend" / "package.json").write_text('{"dependencies": {"absent": "1.0.0"}}')

    result = setup(checkout)

    assert result.returncode != 0
    assert "absent@1.0.0" in result.stderr + result.stdout


def test_checkout_without_the_built_page_installs_all_but_the_server(tmp_path: Path) -> None:
    """As `pip install .` does on a node; the server says why it does not start."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "benchmarks/")):
            (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "checkout" / name)
    (tmp_path / "checkout" / "frontend" / "static" / "live" / "live.js").unlink(missing_ok=True)

    build = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path / "installed")]
    subprocess.run(build, cwd=tmp_path / "checkout", check=True)

    def run(program: str, argument: str) -> subprocess.CompletedProcess[str]:
        script = f"import sys; sys.argv = ['it', '{argument}']; from {program} import main; sys.exit(main())"
        variables = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
        return subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
        )

    for program in ("gpusched.agent.main", "gpusched.cli.main"):
        result = run(program, "version")
        assert (result.returncode, result.stdout.startswith("gpusched")) == (0, True), result.stderr
    result = run("gpusched.server", "up")
    assert result.returncode == 1
    assert result.stderr.startswith("gpusched-server: the page is missing") and "make setup" in result.stderr
