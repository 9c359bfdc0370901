"""The sending process connects to public or allowed addresses only, opens no files, and cannot hang the sender."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gpusched.installation import SERVER_ROOT
from notifications.addresses import is_allowed, parse_networks
from notifications.sending import child, guard
from notifications.sending.child import SendingProcess
from notifications.sending.guard import NOT_PUBLIC
from notifications.sending.message import Message
from tests.notifications.receiver import Receiver


@pytest.fixture
def strict() -> Iterator[SendingProcess]:
    """No private address is allowed."""
    process = SendingProcess("")
    yield process
    process.end()


@pytest.fixture
def open_here() -> Iterator[SendingProcess]:
    """127.0.0.1 is allowed, and no other loopback address."""
    process = SendingProcess("127.0.0.1")
    yield process
    process.end()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",  # noqa: S104
        "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "192.0.0.8", "198.18.0.1", "::1", "::", "fe80::1",
        "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",
        "64:ff9b::10.0.0.1", "2002:a00:1::", "2001:db8::1", "fec0::1", "not an address", "",
    ],
)  # fmt: skip
def test_address_that_is_not_public_is_refused(address: str):
    assert not is_allowed(address, ())


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]
)
def test_public_address_is_allowed(address: str):
    assert is_allowed(address, ())


def test_allowed_network_is_allowed_in_every_form_and_no_other():
    allowed = parse_networks("10.0.0.0/8, fd12::/16")
    assert is_allowed("10.1.2.3", allowed) and is_allowed("::ffff:10.1.2.3", allowed) and is_allowed("fd12::9", allowed)
    assert not is_allowed("192.168.1.1", allowed) and not is_allowed("fd13::9", allowed)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "127.1", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_webhook_reaches_no_private_address_by_any_spelling(strict: SendingProcess, receiver: Receiver, host: str):
    result = strict.send(Message(target=f"http://{host}:{receiver.port}/", body="{}", is_webhook=True))
    assert (result.is_sent, result.error) == (False, NOT_PUBLIC)
    assert not receiver.requests


@pytest.mark.parametrize(
    "target",
    ["ntfy://localhost:{}/topic", "gotify://127.0.0.1:{}/abcdefgh", "mailto://localhost:{}?from=a@x.org&to=b@x.org",
     "matrix://u:p@localhost:{}/room", "mmost://localhost:{}/abcdefghijklmnopqrstuvwx", "workflow://localhost:{}/a/b"],
)  # fmt: skip
def test_service_reaches_no_private_address(strict: SendingProcess, receiver: Receiver, target: str):
    """The library resolves the name; what it then connects to is checked."""
    result = strict.send(Message(target=target.format(receiver.port), body="x", title="x"))
    assert (result.is_sent, result.error) == (False, NOT_PUBLIC)
    assert not receiver.requests


def test_service_follows_no_redirect_to_a_private_address(open_here: SendingProcess, receiver: Receiver):
    receiver.status, receiver.headers = 302, {"Location": f"http://127.0.0.2:{receiver.port}/secret"}
    result = open_here.send(Message(target=f"ntfy://127.0.0.1:{receiver.port}/topic", body="x", title="x"))
    assert (result.is_sent, result.error) == (False, NOT_PUBLIC)
    assert [request.path for request in receiver.requests] == ["/"]


def test_webhook_follows_no_redirect(open_here: SendingProcess, receiver: Receiver):
    receiver.status, receiver.headers = 307, {"Location": f"http://127.0.0.1:{receiver.port}/other"}
    result = open_here.send(Message(target=receiver.url, body="{}", is_webhook=True))
    assert (result.is_sent, result.status) == (False, 307) and "redirect" in result.error
    assert [request.path for request in receiver.requests] == ["/hook"]


def test_message_is_sent_by_another_process_when_the_first_was_killed(open_here: SendingProcess, receiver: Receiver):
    message = Message(target=receiver.url, body="{}", is_webhook=True)
    assert open_here.send(message).is_sent
    assert open_here._process
    open_here._process.kill()
    open_here._process.wait()
    assert open_here.send(message).is_sent
    assert len(receiver.requests) == 2


def test_process_opens_no_file_even_if_a_library_would(receiver: Receiver, tmp_path):
    """Otherwise a parameter that the check of targets overlooks would send any file of the server."""
    code = f"""
import sys
from notifications import services
from notifications.addresses import parse_networks
from notifications.sending import process
from notifications.sending.guard import Guard
services._check_parameters = lambda target: None
services.load_all()
sending = process._Sending(Guard(parse_networks("127.0.0.1")))
for work in (lambda: open({str(tmp_path / "secret")!r}), lambda: open({str(tmp_path / "new")!r}, "w"),
             lambda: __import__("subprocess").run(["true"]), lambda: __import__("os").system("true"),
             lambda: __import__("socket").socket(1).connect("/run/x"),
             lambda: __import__("socket").socket(2, 2).sendto(b"x", ("127.0.0.1", 9))):
    try:
        work()
    except PermissionError:
        continue
    sys.exit("was possible")
target = "workflow://127.0.0.1:{receiver.port}/workflow/signature?template={tmp_path / "secret"}"
print(sending.send(process.Message(target=target, body="x", title="x")))
"""
    import subprocess
    import sys

    (tmp_path / "secret").write_text('{"stolen": "hunter2"}')
    done = subprocess.run([sys.executable, "-c", code], cwd=SERVER_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is_sent=False" in done.stdout
    assert not any("hunter2" in request.body for request in receiver.requests)


def test_send_that_hangs_ends_in_time_and_the_next_one_works(
    open_here: SendingProcess, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(child, "MESSAGE_SECONDS", 1.0)
    assert open_here.send(Message(target=receiver.url, body="{}", is_webhook=True)).is_sent
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=lambda: [silent.accept() for _ in range(3)], daemon=True).start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        result = open_here.send(Message(target=url, body="{}", is_webhook=True))
        assert "longer than" in result.error and time.monotonic() - began < 8
    assert open_here.send(Message(target=receiver.url, body="{}", is_webhook=True)).is_sent


def test_error_of_a_service_names_no_secret(open_here: SendingProcess, receiver: Receiver):
    receiver.status = 500
    target = f"gotify://127.0.0.1:{receiver.port}/AbCdEfGhSecret"
    result = open_here.send(Message(target=target, body="x", title="x"))
    assert not result.is_sent and result.error and "AbCdEfGhSecret" not in result.error


def test_process_gets_no_settings_and_secrets_of_the_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUSCHED_SECRET_KEY", "x")
    monkeypatch.setenv("DATABASE_URL", "postgresql://x")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    assert not {"GPUSCHED_SECRET_KEY", "DATABASE_URL", "HTTPS_PROXY"} & set(child._INHERITED)


def test_guard_names_the_setting():
    assert "GPUSCHED_NOTIFY_ALLOWED_NETWORKS" in guard.NOT_PUBLIC


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("is_closed", [True, False])
def test_answer_that_does_not_end_confirms(open_here: SendingProcess, answer: bytes, is_closed: bool):
    """Its status has arrived. A second request would be a second message."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def respond() -> None:
            connection, _ = server.accept()
            connections.append(connection)
            connection.recv(65536)
            connection.sendall(answer)
            if is_closed:
                connection.close()

        threading.Thread(target=respond, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        result = open_here.send(Message(target=url, body="{}", is_webhook=True))
    assert result.is_sent, result.error
    for connection in connections:
        connection.close()
