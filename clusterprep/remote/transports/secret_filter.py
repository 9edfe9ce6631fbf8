"""Keep the password of sudo out of all that nodes send. Pure.

A program in the place of sudo reads the password and may print it. The node knows it then anyhow,
but readers of a report, of the history or of a CI log do not. So the password is taken out where a
node's text enters, before it is cut, joined or its blanks are collapsed: a part of a password, or
one that another step puts together again, would not be found later.

Found are the forms in which programs print a text: raw, quoted for a shell, escaped as in JSON,
Python, a URL or HTML, in hexadecimal and in base64. A node that means to pass a password on can
encode it in ways that no filter knows.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import urllib.parse
from collections.abc import Iterator
from typing import Any

HIDDEN = "<hidden>"
REFUSED = "the answer holds the password of sudo, so it is not used"
# Characters from which on a password is looked for in answers, too. A shorter one may be a word
# that a healthy node says by itself, such as `root` or `1234`.
LEAST_IN_ANSWERS = 8
LEAST_PART = 3  # characters of a password that was cut at the edge of a text
LEAST_CORE = 6  # characters of base64 or hexadecimal; fewer may be found anywhere
_BASE64_LETTER = "[A-Za-z0-9+/_-]"


class SecretFilter:
    """Takes one secret out of texts and answers. Without a secret it changes nothing."""

    def __init__(self, secret: str = "") -> None:
        # As the text of a node is decoded, so that bytes that are no UTF-8 look alike.
        self._secret = secret.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        patterns = sorted(set(_patterns(self._secret)), key=len, reverse=True)
        self._any = re.compile("|".join(patterns))
        # Searched one by one, which is ten times as fast as one search for all of them.
        self._in_answers: list[re.Pattern[str]] = []
        if len(self._secret) >= LEAST_IN_ANSWERS:
            self._in_answers = [re.compile(pattern) for pattern in patterns]

    @property
    def searches_answers(self) -> bool:
        """Whether `frame` looks for a secret."""
        return bool(self._in_answers)

    def text(self, text: str) -> str:
        """Return a node's text without the secret, also where the text begins or ends in it."""
        if not self._secret.strip():
            return text
        return self._without_cut_secret(self._any.sub(HIDDEN, text))

    def line(self, line: str) -> str:
        """Return a whole line of a node without the secret: it is not cut at its edges."""
        return self._any.sub(HIDDEN, line) if self._secret.strip() else line

    def data(self, data: bytes) -> bytes:
        """Return a node's bytes without the secret. What is no UTF-8 becomes U+FFFD."""
        if not self._secret.strip() or not data:
            return data
        return self.text(data.decode("utf-8", "replace")).encode()

    def frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Return a frame of an agent without the secret.

        An answer to a read that holds it is refused as a whole, because what is left of it would be
        judged as if the node had said it. In other texts, such as the lines of a job, it is hidden.
        """
        if not self._in_answers or not self._is_in(frame):
            return frame
        answers = frame.get("answers")
        if isinstance(answers, list):
            frame = {**frame, "answers": [self._answer(answer) for answer in answers]}
        hidden: dict[str, Any] = self._hidden(frame)
        return hidden

    def _answer(self, answer: Any) -> Any:
        return ["no", "garbled", REFUSED] if self._is_in(answer) else answer

    def _is_in(self, value: Any) -> bool:
        """Return whether a text or a key in `value` holds the secret."""
        return any(pattern.search(text) for text in _texts(value) for pattern in self._in_answers)

    def _hidden(self, value: Any) -> Any:
        """Return the value with the secret hidden in each of its texts. It is not nested deeply."""
        if isinstance(value, str):
            return self._any.sub(HIDDEN, value)
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        if isinstance(value, dict):
            return {self._hidden(key): self._hidden(item) for key, item in value.items()}
        return value

    def _without_cut_secret(self, text: str) -> str:
        """Return the text without a part of the secret at its beginning or end.

        Only the end of a long stderr is kept, and it is read while more is coming.
        """
        text = text.lstrip("\ufffd")  # what is left of a character that was cut
        for size in range(len(self._secret) - 1, LEAST_PART - 1, -1):
            if text.startswith(self._secret[-size:]):
                text = HIDDEN + text[size:]
                break
        for size in range(len(self._secret) - 1, LEAST_PART - 1, -1):
            if text.endswith(self._secret[:size]):
                return text[:-size] + HIDDEN
        return text


def _texts(value: Any) -> Iterator[str]:
    """Yield every text and key in a value of JSON."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            yield from item
            waiting.extend(item.values())


def _patterns(secret: str) -> Iterator[str]:
    """Yield regular expressions for the forms in which programs print a secret."""
    secret = secret.strip()  # as blanks around a text are dropped
    if not secret:
        return
    data = secret.encode()
    forms = (
        secret,
        shlex.quote(secret),
        _in_double_quotes(secret),
        _with_backslashes(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        html.escape(secret),
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote(secret, safe="/"),
        urllib.parse.quote_plus(secret),
    )
    for form in forms:
        # Blanks may be collapsed before a text is shown, or have been before it was printed.
        words = re.split(r"\s+", form)
        pattern = r"\s+".join(re.escape(word) for word in words)
        yield f"(?i:{pattern})" if "%" in form else pattern
    if 2 * len(data) >= LEAST_CORE:
        yield f"(?i:{data.hex()})"
    yield from _base64_patterns(data)


def _in_double_quotes(secret: str) -> str:
    return re.sub(r'(["$`\\])', r"\\\1", secret)


def _with_backslashes(secret: str) -> str:
    """Return the secret as `printf %q` of bash quotes it."""
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", secret)


def _base64_patterns(data: bytes) -> Iterator[str]:
    """Yield patterns for base64 of any text that holds the secret.

    Of its first and last byte a group of base64 may hold parts only, together with what stands
    around it: so there are three forms, by where in a group the secret begins.
    """
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + data).decode().rstrip("=")
        first_whole = (8 * offset + 5) // 6
        bits = 8 * (offset + len(data))
        core = encoded[first_whole : bits // 6]
        if len(core) < LEAST_CORE:
            continue
        either = re.escape(core).replace(r"\+", "[+-]").replace("/", "[/_]")
        yield f"{either}{_BASE64_LETTER}?={{0,2}}"
