"""Send the changes of a watch to a URL, signed, from a thread of its own.

A look never waits for it: what the receiver does not take in time waits in a queue, and when that
is full the oldest changes are left out and counted. The secret signs each body, so that the
receiver can tell it from what others send:

    X-Clusterprep-Timestamp: 1795949703
    X-Clusterprep-Signature: sha256=HEX    HMAC-SHA256 of «timestamp.body» by the secret
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import stat
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from clusterprep.errors import InputError

KEY, SECRET_KEY = "--webhook", "--webhook-secret"
MOST_WAITING = 100  # looks with changes that wait to be sent
TRIES = 3  # of each, TRY_AGAIN seconds apart and twice as many each time
TRY_AGAIN = 2.0
LIMIT = 10.0  # seconds that the receiver may take
LAST = 2.0  # seconds to send what waits when the watch ends
SHORTEST, LONGEST = 16, 1024  # bytes of a secret

Body = Mapping[str, Any]


class Signer:
    """Signs bodies with a secret, and never shows it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def signature(self, timestamp: str, body: bytes) -> str:
        """Return what the header with the signature says of a body."""
        signed = timestamp.encode("ascii") + b"." + body
        return f"sha256={hmac.new(self._secret, signed, hashlib.sha256).hexdigest()}"


def checked_url(url: str) -> str:
    """Return the URL. Raises InputError for one that nothing can be sent to."""
    parts = urlsplit(url)
    with contextlib.suppress(ValueError):
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    raise InputError.of("it is no URL of http or https", key=KEY, hint="https://host/path")


def read_secret(path: str | None) -> Signer:
    """Return what signs by a secret: the first line of a file that no other user can read.

    Raises InputError.
    """
    if path is None:
        raise InputError.of("a webhook needs a secret to sign with", key=SECRET_KEY)
    try:
        with open(path, "rb") as source:
            mode = os.fstat(source.fileno()).st_mode
            line = source.readline(LONGEST + 1).strip()
    except OSError as error:
        raise InputError.of(f"{error.strerror}", file=path, key=SECRET_KEY) from None
    if stat.S_IMODE(mode) & 0o077:
        hint = f"chmod 600 {path}"
        raise InputError.of("other users can read it", file=path, key=SECRET_KEY, hint=hint)
    if not SHORTEST <= len(line) <= LONGEST:
        raise InputError.of(
            f"its first line has {len(line)} bytes; {SHORTEST} to {LONGEST} are a secret",
            file=path,
            key=SECRET_KEY,
            hint=f"openssl rand -hex 32 > {path}",
        )
    return Signer(line)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the changes are for the URL that the user gave."""

    def redirect_request(self, *given: Any) -> None:
        """Refuse it; the answer then counts as an error."""


class Webhook:
    """Sends bodies in the order in which they were put. `say` tells what cannot be delivered."""

    def __init__(
        self,
        url: str,
        signer: Signer,
        say: Callable[[str], None],
        try_again: float = TRY_AGAIN,
    ) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._signer = signer
        self._say = say
        self._try_again = try_again
        self._waiting: deque[Body] = deque()
        self._left_out = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_failing = False
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="webhook")
        self._thread.start()

    def put(self, body: Body) -> None:
        """Have a body sent. Returns at once."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._left_out += 1
            self._waiting.append(body)
            self._changed.notify()

    def close(self) -> None:
        """Give what waits a moment to be sent; the rest is lost."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(LAST)

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                body = {**self._waiting.popleft(), "left_out": self._left_out}
                self._left_out = 0
            self._deliver(json.dumps(body).encode("ascii"))

    def _deliver(self, body: bytes) -> None:
        """Send one body, again after a while if it is not taken."""
        problem = ""
        for number in range(TRIES):
            if number and not self._pause(self._try_again * 2 ** (number - 1)):
                break
            problem = self._post(body)
            if not problem:
                break
        if problem and not self._is_failing:
            self._say(f"clusterprep: {KEY}: {self._host} did not take what changed: {problem}")
        elif self._is_failing and not problem:
            self._say(f"clusterprep: {KEY}: {self._host} takes what changes again")
        self._is_failing = bool(problem)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try. Returns False if the watch ends meanwhile."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._is_closing, seconds)

    def _post(self, body: bytes) -> str:
        """Send a body once. Return why that failed, or ""."""
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "clusterprep",
            "X-Clusterprep-Timestamp": timestamp,
            "X-Clusterprep-Signature": self._signer.signature(timestamp, body),
        }
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - http or https
        try:
            with self._opener.open(request, timeout=LIMIT):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"HTTP {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return str(getattr(error, "reason", "") or error or type(error).__name__)
