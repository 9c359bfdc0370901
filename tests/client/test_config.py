"""The sources of URL, token and tenant, and the server that a token belongs to."""

import stat
from pathlib import Path

import pytest

from gpusched.agent.identity import JoinError, addresses_in
from gpusched.client import Invalid
from gpusched.client.config import DEFAULT_URL, Config, read_file, require_own, resolve, write_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "config.toml"


def test_arguments_override_the_environment_which_overrides_the_file(file: Path) -> None:
    write_file(file, {"url": "http://file:1", "token": "f.1", "tenant": "of-file"})
    env = {"GPUSCHED_CONFIG": str(file)}
    assert resolve(environ=env) == Config("http://file:1", "f.1", "of-file")
    env |= {"GPUSCHED_URL": "http://env:1/", "GPUSCHED_TOKEN": "e.1", "GPUSCHED_TENANT": "of-env"}
    assert resolve(environ=env) == Config("http://env:1", "e.1", "of-env")
    assert resolve("http://given:1", "g.1", "given", environ=env) == Config("http://given:1", "g.1", "given")


def test_default_server_is_this_machine(file: Path) -> None:
    assert resolve(environ={"GPUSCHED_CONFIG": str(file)}) == Config(DEFAULT_URL)


def test_stored_token_goes_only_to_its_own_server(file: Path) -> None:
    write_file(file, {"url": "https://prod.example", "token": "f.1"})
    env = {"GPUSCHED_CONFIG": str(file)}
    assert resolve("https://evil.example", environ=env).token is None
    assert resolve("https://prod.example/", environ=env).token == "f.1"


def test_invalid_url_in_the_file_stops_only_commands_that_need_it(file: Path) -> None:
    write_file(file, {"url": "gpu.example", "token": "f.1", "tenant": "nlp"})
    env = {"GPUSCHED_CONFIG": str(file)}
    assert resolve("https://prod.example", environ=env) == Config("https://prod.example", None, "nlp")
    assert resolve(DEFAULT_URL, environ=env).token is None
    with pytest.raises(Invalid, match=f"url in the config file {file} is not"):
        resolve(environ=env)


def test_token_file_overrides_the_token_variable(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("x.1\n")
    env = {"GPUSCHED_CONFIG": str(tmp_path / "none"), "GPUSCHED_TOKEN_FILE": str(secret), "GPUSCHED_TOKEN": "y.1"}
    assert resolve(environ=env).token == "x.1"


def test_byte_order_marks_of_editors_on_windows_are_ignored(tmp_path: Path) -> None:
    config, secret = tmp_path / "config.toml", tmp_path / "token"
    config.write_bytes(b'\xef\xbb\xbfurl = "http://file:1"\r\n')
    secret.write_bytes(b"\xef\xbb\xbfx.1\r\n")
    env = {"GPUSCHED_CONFIG": str(config), "GPUSCHED_TOKEN_FILE": str(secret)}
    assert resolve(environ=env) == Config("http://file:1", "x.1")


def test_config_file_is_private_and_survives_odd_texts(file: Path) -> None:
    odd = {"url": 'http://a"b\\c:1', "tenant": "täglich\u007f\n"}
    write_file(file, odd)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_file(file) == odd
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("url", ["gpu.example:8000", "ftp://x", "http://", "http://x:99999", "http://[", "/api",
                                 "http://x/\udcff", "http://\udcff", "http://x/?a=b", "http://x/#a",
                                 "http://xn--a", f"http://{'a' * 64}.example"])  # fmt: skip
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="not a server URL"):
        resolve(url, environ={"GPUSCHED_CONFIG": "/nonexistent"})


@pytest.mark.parametrize("url", ["http://ada:secret@x", "http://ada:secret@x:99999", "http://y,http://secret@x"])
def test_url_with_a_password_is_refused_without_showing_it(url: str, file: Path) -> None:
    """A56: the password would be sent instead of the token."""
    with pytest.raises(Invalid, match="cannot contain a user name or password") as caught:
        resolve(url, environ={"GPUSCHED_CONFIG": "/nonexistent"})
    with pytest.raises(JoinError, match="cannot contain a user name or password") as agents:
        addresses_in(url)
    write_file(file, {"url": url})
    with pytest.raises(Invalid, match="in the config file") as stored:
        resolve(environ={"GPUSCHED_CONFIG": str(file)})
    assert not [error for error in (caught, agents, stored) if "secret" in str(error.value)]


def test_invalid_token_is_refused_without_showing_it() -> None:
    with pytest.raises(Invalid) as caught:
        resolve(token="u1.sec\nret", environ={"GPUSCHED_CONFIG": "/nonexistent"})
    assert "sec" not in str(caught.value).replace("characters", "")


def test_token_is_not_in_the_representation() -> None:
    assert "u1.secret" not in repr(Config("http://x", "u1.secret"))


@pytest.mark.parametrize("content", [b"url = ", b"\xff\xfe", b'url = "x'])
def test_error_names_a_broken_config_file(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(Invalid, match=r"config\.toml"):
        resolve(environ={"GPUSCHED_CONFIG": str(file)})


def test_login_does_not_replace_a_settings_file_of_the_server(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('http_port = 8000\nsecret_key = "x"\n')
    with pytest.raises(Invalid, match=r"config\.toml is a server's settings file: it sets http_port"):
        require_own(file)
    write_file(file, {"url": "http://file:1", "token": "f.1", "tenant": "nlp"})
    require_own(file)
    require_own(file.with_name("absent.toml"))
