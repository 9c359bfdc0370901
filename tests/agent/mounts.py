"""Mounts for tests that need a file system of their own."""

import subprocess
from pathlib import Path

import pytest


def mount(*arguments: str | Path) -> None:
    """Run `mount`. Skip the test for an ordinary user, or in a container that forbids it: no other way limits a disk."""
    if subprocess.run(["mount", *arguments], capture_output=True).returncode:
        pytest.skip("this user may not mount")
