"""A virtual environment with gpusched's own wheel, for tests of what users install.

The dependencies are links to those of this environment, and only those that the wheel's metadata name: installing them
from a registry would take a minute, and a missing one must fail."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


def install(wheel: Path, place: Path, extra: str = "") -> Path:
    """Create an environment at `place` with the wheel and its dependencies. Return its folder of programs."""
    venv.create(place, symlinks=True)
    programs = place / "bin"
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(programs / "python"),
         "install", "--no-deps", "--no-index", str(wheel)],
        check=True, env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    [site_packages] = (place / "lib").glob("python*/site-packages")
    [installed] = metadata.distributions(name="gpusched", path=[str(site_packages)])
    for name in sorted({entry for distribution in _needed(installed, extra) for entry in _entries(distribution)}):
        (site_packages / name).symlink_to(_SITE_PACKAGES / name)
    return programs


def _needed(distribution: metadata.Distribution, extra: str) -> list[metadata.Distribution]:
    """Return all distributions that this one requires with its extra, directly or not."""
    needed: dict[str, metadata.Distribution] = {}
    pending = [(distribution, extra)]
    while pending:
        current, current_extra = pending.pop()
        for text in current.requires or ():
            requirement = Requirement(text)
            extras = {"", *current_extra.split(",")}
            if requirement.marker and not any(requirement.marker.evaluate({"extra": name}) for name in extras):
                continue
            name = canonicalize_name(requirement.name)
            if name not in needed or requirement.extras:
                needed[name] = metadata.distribution(name)
                pending.append((needed[name], ",".join(sorted(requirement.extras))))
    return list(needed.values())


def _entries(distribution: metadata.Distribution) -> Iterator[str]:
    """Yield the names in site-packages that belong to the distribution."""
    for file in distribution.files or ():
        if file.parts[0] not in ("..", "__pycache__"):
            yield file.parts[0]
