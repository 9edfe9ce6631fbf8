"""What a receiver of a webhook gets, and what becomes of a watch whose receiver is slow or down."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from clusterprep.cli.webhook import MOST_WAITING, TRIES, Webhook, checked_url, read_secret
from clusterprep.errors import InputError
from tests.support.patience import LONG, eventually

SECRET = "0123456789abcdef0123456789abcdef"


class Receiver:
    """An HTTP server that keeps what it is sent, and answers with these codes in turn."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.goes_on.wait(LONG)
                receiver.got.append((dict(self.headers), body))
                codes = receiver.codes
                self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *given: Any) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]

    def stop(self) -> None:
        self.goes_on.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver(200)
    yield made
    made.stop()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_a_body_is_signed_with_the_time(receiver: Receiver, secret: Path) -> None:
    hook = Webhook(receiver.url, read_secret(str(secret)), print)
    hook.put({"changes": ["µ"]})
    assert eventually(lambda: receiver.got)
    headers, body = receiver.got[0]
    signed = headers["X-Clusterprep-Timestamp"].encode() + b"." + body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Clusterprep-Signature"] == f"sha256={expected}"
    assert json.loads(body) == {"changes": ["µ"], "left_out": 0}
    hook.close()


def test_what_is_refused_is_sent_again_and_said_once(receiver: Receiver, secret: Path) -> None:
    receiver.codes = [*[500] * (2 * TRIES), 200]
    said: list[str] = []
    hook = Webhook(receiver.url, read_secret(str(secret)), said.append, try_again=0.001)
    for number in range(3):
        hook.put({"number": number})
    assert eventually(lambda: len(receiver.got) == 2 * TRIES + 1)
    hook.close()
    assert [body["number"] for body in receiver.bodies()] == [0] * TRIES + [1] * TRIES + [2]
    assert said == [
        "clusterprep: --webhook: 127.0.0.1 did not take what changed: HTTP 500",
        "clusterprep: --webhook: 127.0.0.1 takes what changes again",
    ]


def test_a_redirect_is_not_followed(receiver: Receiver, secret: Path) -> None:
    receiver.codes = [307]
    said: list[str] = []
    hook = Webhook(receiver.url, read_secret(str(secret)), said.append, try_again=0.001)
    hook.put({})
    assert eventually(lambda: said)
    hook.close()
    assert said == ["clusterprep: --webhook: 127.0.0.1 did not take what changed: HTTP 307"]


def test_a_receiver_that_does_not_answer_holds_up_nothing(receiver: Receiver, secret: Path) -> None:
    receiver.goes_on.clear()
    hook = Webhook(receiver.url, read_secret(str(secret)), print)
    total = 3 * MOST_WAITING
    for number in range(total):
        hook.put({"number": number})  # returns, or this test would not end
    receiver.goes_on.set()
    assert eventually(lambda: receiver.got and receiver.bodies()[-1]["number"] == total - 1)
    bodies = receiver.bodies()
    assert len(bodies) + sum(body["left_out"] for body in bodies) == total
    assert len(bodies) <= MOST_WAITING + 1
    hook.close()


def test_what_waits_at_the_end_is_sent(receiver: Receiver, secret: Path) -> None:
    hook = Webhook(receiver.url, read_secret(str(secret)), print)
    hook.put({"last": True})
    hook.close()
    assert eventually(lambda: receiver.got)
    assert receiver.bodies() == [{"last": True, "left_out": 0}]


@pytest.mark.parametrize("url", ["", "ftp://host/", "host/path", "http://", "https://h:0/"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="--webhook: it is no URL"):
        checked_url(url)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        pytest.param(SECRET, 0o644, "other users can read it", id="open-to-all"),
        pytest.param("short", 0o600, "16 to 1024 are a secret", id="short"),
        pytest.param("x" * 5000, 0o600, "16 to 1024 are a secret", id="long"),
        pytest.param(None, 0, "No such file", id="missing"),
    ],
)
def test_a_secret_that_is_none_is_refused(
    tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(InputError, match=said):
        read_secret(str(path))


def test_a_secret_is_not_shown(secret: Path) -> None:
    assert SECRET not in repr(read_secret(str(secret)))
