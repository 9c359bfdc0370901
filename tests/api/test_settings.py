"""A setting that makes no sense stops the process at its start, by its name (docs/settings.md)."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gpusched.env import Env, SettingError, read

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "setting",
    [
        "LOG_RETENTION_DAYS=-1", "SAMPLE_RETENTION_DAYS=-0.5", "ROLLUP_RETENTION_DAYS=-1", "CYCLE_RETENTION_DAYS=inf",
        "TICK_SECONDS=nan", "TICK_SECONDS=0", "NODE_LOST_SECONDS=-5", "LOST_GPU_SECONDS=-1", "HEARTBEAT_SECONDS=0",
        "DIRTY_MINUTES=-1", "RETRY_BACKOFF_SECONDS=-1", "HTTP_PORT=99999", "HTTP_PORT=0", "WEB_THREADS=0",
        "MAX_QUEUE_SIZE=-1", "RATE_LIMIT_PER_MINUTE=-1", "LOG_LEVEL=verbose", "LOG_STORAGE_OPTIONS=xx",
        "LOG_STORAGE_OPTIONS=[1]",
    ],
)  # fmt: skip
def test_senseless_value_is_rejected_by_its_name(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(
        SettingError, match=f"GPUSCHED_{name}.*(is not from .* to|is not valid; use|is not a JSON object)"
    ):
        read({f"GPUSCHED_{name}": value})


def test_each_number_has_bounds_around_its_default():
    for operation in fields(Env):
        if operation.type in (int, float):
            least, maximum = operation.metadata["between"]
            assert least <= operation.default <= maximum, operation.name


def test_node_is_not_lost_between_two_messages():
    with pytest.raises(SettingError, match="GPUSCHED_NODE_LOST_SECONDS=15 is not above GPUSCHED_HEARTBEAT_SECONDS=20"):
        read({"GPUSCHED_HEARTBEAT_SECONDS": "20"})
    assert read({"GPUSCHED_HEARTBEAT_SECONDS": "20", "GPUSCHED_NODE_LOST_SECONDS": "60"}).heartbeat_seconds == 20


def test_options_of_a_log_storage_are_not_repeated():
    """The options may contain a key."""
    with pytest.raises(SettingError) as refused:
        read({"GPUSCHED_LOG_STORAGE_OPTIONS": '{"secret_key": "hunter2"'})
    assert "hunter2" not in str(refused.value)


def test_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"GPUSCHED_SECRET_KEY_FILE: .*key is not text"):
        read({"GPUSCHED_SECRET_KEY_FILE": str(tmp_path / "key")})


@pytest.mark.parametrize("name", ["migrate", "up"])
def test_data_directory_that_cannot_be_used_is_named(tmp_path, name):
    (tmp_path / "file").touch()
    command = [sys.executable, "manage.py", name]
    environment = {**os.environ, "GPUSCHED_DATA_DIR": str(tmp_path / "file" / "data"), "GPUSCHED_SECRET_KEY": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{tmp_path}/file/data cannot be used (Not a directory); run as" in done.stderr


@pytest.mark.parametrize(("listening", "local"), [("0.0.0.0", "127.0.0.1"), ("10.0.0.5", "10.0.0.5")])  # noqa: S104
def test_server_answers_its_own_machine_whatever_its_names(listening, local, tmp_path):
    """Otherwise `up` waits in vain for it to become ready."""
    code = "from django.conf import settings; print(*settings.ALLOWED_HOSTS)"
    environment = {
        "DJANGO_SETTINGS_MODULE": "gpusched.settings", "GPUSCHED_DATA_DIR": str(tmp_path),
        "GPUSCHED_HTTP_HOST": listening, "GPUSCHED_ALLOWED_HOSTS": "gpu.example.org",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["gpu.example.org", local]
