"""GPUSCHED_CONFIG names a TOML file with the server's settings, which is read strictly (docs/settings.md)."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gpusched.env import Env, SettingError, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def written(file: Path, text: str, mode: int = 0o640) -> dict[str, str]:
    """The environment that names the file with this text."""
    file.write_text(text)
    file.chmod(mode)
    return {"GPUSCHED_CONFIG": str(file)}


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(SettingError) as refused:
        read(environ)
    return str(refused.value)


def test_settings_file_sets_values_of_every_type(file):
    environ = written(
        file, 'http_port = 8001\ntick_seconds = 2\ndebug = true\ndata_dir = "/srv/data"\npolicy = "shortest"\n'
    )
    env = read(environ)
    assert (env.http_port, env.tick_seconds, env.debug, env.data_dir, env.policy) == (
        8001,
        2.0,
        True,
        Path("/srv/data"),
        "shortest",
    )
    assert isinstance(env.tick_seconds, float)
    assert env.web_threads == Env().web_threads


def test_settings_file_accepts_the_default_of_each_setting(file):
    def toml(value: Any) -> str:
        return (
            str(value).lower()
            if isinstance(value, bool)
            else str(value)
            if isinstance(value, int | float)
            else f'"{value}"'
        )

    assert read(written(file, "".join(f"{f.name} = {toml(f.default)}\n" for f in fields(Env)))) == Env()


def test_environment_overrides_the_settings_file(file, tmp_path):
    environ = written(file, 'http_port = 8001\ndatabase_url = "postgresql:///file"\nsecret_key = "of-file"\n')
    (tmp_path / "key").write_text("of-environment")
    environ |= {"GPUSCHED_HTTP_PORT": "8002", "DATABASE_URL": "postgresql:///environment"}
    environ |= {"GPUSCHED_SECRET_KEY_FILE": str(tmp_path / "key")}
    env = read(environ)
    assert (env.http_port, env.database_url, env.secret_key) == (8002, "postgresql:///environment", "of-environment")
    assert read(environ | {"GPUSCHED_HTTP_PORT": ""}).http_port == 8001, "an empty variable is not set"


def test_settings_file_names_files_of_values(file, tmp_path):
    for name, text in (("key", "s3cret\n"), ("port", "8003\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    env = read(written(file, f'secret_key_file = "{tmp_path}/key"\nhttp_port_file = "{tmp_path}/port"\n', 0o644))
    assert (env.secret_key, env.http_port) == ("s3cret", 8003)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nhttp_prot = 8000", "line 2: http_prot is not a setting; the nearest name is http_port"),
        ("GPUSCHED_HTTP_PORT = 8000", "line 1: GPUSCHED_HTTP_PORT is not a setting; write http_port"),
        ("'secret-key' = 'x'", "line 1: secret-key is not a setting; the nearest name is secret_key"),
        ("[server]\nhttp_port = 8000", "line 1: server is not a setting; settings must be outside of tables"),
        ("oidc.issuer = 'x'", "line 1: oidc is not a setting; settings must be outside of tables"),
        ("otel_service_name = 'x'", "line 1: otel_service_name is not a setting; OpenTelemetry reads its variables from the environment only"),
        ("# ports\nhttp_port = '8000'", "line 2: http_port must be an integer, not a string"),
        ("http_port = true", "line 1: http_port must be an integer, not a boolean"),
        ("http_port = 8000.0", "line 1: http_port must be an integer, not a float"),
        ("debug = 1", "line 1: debug must be true or false, not an integer"),
        ("allowed_hosts = ['a']", "line 1: allowed_hosts must be a string, not an array"),
        ("secret_key = 2026-01-01", "line 1: secret_key must be a string, not date"),
        ("http_port_file = 1", "line 1: http_port_file must be a string, not an integer"),
        ("http_port = 0", "line 1: http_port=0 is not from 1 to 65535"),
        ("tick_seconds = nan", "line 1: tick_seconds=nan is not from 0.05 to 300"),
        ("policy = 'random'", "line 1: policy='random' is not valid; use fair or priority or cost_aware or shortest"),
        ("http_port = 1\nhttp_port_file = 'x'", "line 2: http_port_file and http_port set the same setting; keep one of them"),
        ("http_port_file = '/nonexistent'", "line 1: http_port_file: cannot read /nonexistent: No such file or directory"),
    ],
)  # fmt: skip
def test_settings_file_rejects_unknown_keys_by_line(file, text, says):
    assert refusal(written(file, text)) == f"{file}, {says}"


def test_settings_file_rejects_a_bad_value_of_a_named_file(file, tmp_path):
    (tmp_path / "port").write_text("many")
    refused = refusal(written(file, f'http_port_file = "{tmp_path}/port"'))
    assert refused.startswith(f"{file}, line 1: http_port_file='many' is not valid")


def test_settings_file_rejects_text_that_is_not_toml(file):
    assert refusal(written(file, "http_port = 8000\nhttp_host = \n")).startswith(f"{file} is not TOML: ")
    assert "line 2" in refusal({"GPUSCHED_CONFIG": str(file)})
    file.write_bytes(b"\xff\xfe")
    assert refusal({"GPUSCHED_CONFIG": str(file)}).startswith(f"{file} is not TOML: ")


def test_settings_file_must_be_readable(tmp_path):
    missing = tmp_path / "none.toml"
    assert (
        refusal({"GPUSCHED_CONFIG": str(missing)})
        == f"{missing} cannot be read: No such file or directory; GPUSCHED_CONFIG names it"
    )
    assert (
        refusal({"GPUSCHED_CONFIG": str(tmp_path)})
        == f"{tmp_path} cannot be read: Is a directory; GPUSCHED_CONFIG names it"
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("secret_key", "hunter2"), ("database_url", "postgresql://u:hunter2@db/x"),
        ("log_storage_options", '{"secret_key": "hunter2"}'), ("oidc_client_secret", "hunter2"),
    ],
)  # fmt: skip
def test_settings_file_with_a_secret_must_not_be_readable_by_others(file, setting, value):
    refused = refusal(written(file, f"{setting} = '{value}'", 0o644))
    assert refused == f"{file}, line 1: {setting} is a secret, and others can read the file: chmod o-rwx {file}"
    file.chmod(0o640)
    assert getattr(read({"GPUSCHED_CONFIG": str(file)}), setting) == value


def test_secret_file_of_the_settings_file_must_not_be_readable_by_others(file, tmp_path):
    key = tmp_path / "key"
    key.write_text("hunter2")
    key.chmod(0o644)
    refused = refusal(written(file, f'secret_key_file = "{key}"'))
    assert refused == f"{file}, line 1: secret_key_file names a secret that others can read: chmod o-rwx {key}"


def test_contradictory_settings_name_the_file(file):
    refused = refusal(written(file, "heartbeat_seconds = 20"))
    assert refused.startswith("GPUSCHED_NODE_LOST_SECONDS=15 ")
    assert refused.endswith(f"({file} sets heartbeat_seconds)")


def test_server_rejects_the_file_of_the_command_line(file):
    assert "which `gpusched login` writes" in refusal(written(file, 'url = "http://x"\ntoken = "u1.x"\n', 0o600))


@pytest.mark.parametrize("command", [["manage.py", "check"], ["-m", "daphne", "gpusched.asgi:application"]])
def test_server_refuses_to_start_in_one_sentence(file, command):
    environ = {**os.environ, **written(file, "http_prot = 1"), "DJANGO_SETTINGS_MODULE": "gpusched.settings"}
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (
        1,
        f"gpusched: {file}, line 1: http_prot is not a setting; the nearest name is http_port\n",
    )
