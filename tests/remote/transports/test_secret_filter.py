"""A password that a node sends back is found in every form in which programs print a text."""

from __future__ import annotations

import base64
import html
import json
import shlex
import subprocess
import urllib.parse
from typing import Any

import pytest

from clusterprep.errors import LinkLost, Unreached
from clusterprep.remote.transports.link import Link, open_link
from clusterprep.remote.transports.local import LocalChannel
from clusterprep.remote.transports.secret_filter import HIDDEN, REFUSED, SecretFilter
from clusterprep.remote.transports.sudo import SudoPassword
from tests.remote.transports.test_link import NODE, Ends

SECRETS = (
    "correct-horse-battery",
    "Tr0ub4dor  &3 correct",
    " blanks around ",
    'it\'s "so" $HOME\\ `x` <b>%',
    "schlüssel-für-alle",
    "\udcff-no-utf-8",
    "tab\tand more",
)


def as_printed(secret: str) -> dict[str, str]:
    """Return a secret in the forms in which programs print it, by what prints it so."""
    text = secret.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    data = text.encode()
    bash = subprocess.run(
        ["bash", "-c", 'printf %q "$1"', "bash", text],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    forms = {
        "raw": text,
        "blanks collapsed": " ".join(text.split()),
        "shlex": shlex.quote(text),
        "json": json.dumps(text),
        "json utf-8": json.dumps(text, ensure_ascii=False),
        "repr": repr(text),
        "ascii": ascii(text),
        "html": html.escape(text),
        "url": urllib.parse.quote(text),
        "url lower": urllib.parse.quote(text, safe="").lower(),
        "form": urllib.parse.quote_plus(text),
        "hex": data.hex(),
        "HEX": data.hex().upper(),
        "base64": base64.b64encode(data).decode(),
        "base64 of a line": base64.b64encode(data + b"\n").decode(),
        "base64 of a login": base64.b64encode(b"alice:" + data).decode(),
        "base64 of more": base64.urlsafe_b64encode(b"pw=" + data + b"; more").decode(),
    }
    quoted = bash.stdout.decode()
    if not quoted.startswith("$'"):  # C escapes, by which bash quotes control characters
        forms["bash"] = quoted
    return forms


def parts(text: str) -> list[str]:
    """Return what may be shown nowhere: the middle of a secret, in any form of it."""
    third = len(text) // 3
    return [text[third : 2 * third]]


@pytest.mark.parametrize("secret", SECRETS)
def test_every_form_is_hidden_in_what_a_program_prints(secret: str) -> None:
    secret_filter = SecretFilter(secret)
    for how, form in as_printed(secret).items():
        shown = secret_filter.data(f"sudo: alice said {form}, wrong\n".encode()).decode()
        assert HIDDEN in shown, (how, shown)
        for part in parts(form):
            assert part not in shown, (how, shown)
        assert shown.startswith("sudo: alice said "), (how, shown)


@pytest.mark.parametrize("secret", SECRETS)
def test_every_form_is_hidden_in_answers_and_events(secret: str) -> None:
    secret_filter = SecretFilter(secret)
    for how, form in as_printed(secret).items():
        well = ["ok", {"a": ["b", 1, None]}]
        answers: list[Any] = [["ok", {"deep": [f"x {form} y"]}], well, ["ok", {form: 1}]]
        frame = {"id": 1, "answers": answers}
        refused = ["no", "garbled", REFUSED]
        assert secret_filter.frame(frame) == {"id": 1, "answers": [refused, well, refused]}, how
        event = secret_filter.frame({"line": f"loss {form} 1.0"})
        assert event["line"].startswith("loss "), how
        assert HIDDEN in event["line"], how


def test_what_does_not_hold_it_is_the_very_frame() -> None:
    frame = {"id": 1, "answers": [["ok", "x"]]}
    assert SecretFilter("correct-horse-battery").frame(frame) is frame
    assert SecretFilter().frame(frame) is frame
    assert SecretFilter().text("as it is") == "as it is"
    assert SecretFilter().data(b"\xff") == b"\xff"


def test_a_short_password_is_no_reason_to_refuse_answers() -> None:
    """`root` is said by every healthy node; in a message of sudo it is hidden all the same."""
    secret_filter = SecretFilter("root")
    frame = {"id": 1, "answers": [["ok", "root"]]}
    assert secret_filter.frame(frame) == frame
    assert secret_filter.text("sudo: root is wrong") == f"sudo: {HIDDEN} is wrong"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("horse-battery: wrong", f"{HIDDEN}: wrong"),
        ("alice said correct-ho", f"alice said {HIDDEN}"),
        ("\ufffd-battery and correct-", f"{HIDDEN} and {HIDDEN}"),
        ("ry, co", "ry, co"),
    ],
)
def test_a_part_at_the_edge_of_a_text_is_hidden(text: str, shown: str) -> None:
    assert SecretFilter("correct-horse-battery").text(text) == shown


# ---------------------------------------------------------------- where texts of nodes enter

SECRET = "correct horse  battery"
WHOLE = "correct horse"


def open_with(command: str) -> Link:
    return open_link(Ends(command), NODE, ["look"], lambda node: SudoPassword(SECRET))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"echo '{SECRET}' >&2; exit 1", id="stderr"),
        pytest.param(f"echo '{SECRET}'; exit 1", id="junk"),
        pytest.param("printf 'correct hor'; sleep 0.3; printf 'se  battery'; exit 1", id="pieces"),
        pytest.param(
            f"printf '%8180s' '' >&2; printf '{SECRET}' >&2; exit 1", id="where-stderr-is-cut"
        ),
        pytest.param(
            f"printf '%8175s' '' >&2; printf '{SECRET}%20s' '' >&2; exit 1",
            id="where-stderr-is-cut-and-blank",
        ),
        pytest.param(f"printf '{SECRET}%2030s' ''; exit 1", id="where-junk-is-cut"),
        pytest.param(
            f"printf '{SECRET}' >&2; printf '%290s' '' | tr ' ' x >&2; exit 1",
            id="where-it-is-shown",
        ),
    ],
)
def test_no_error_of_a_session_shows_it(command: str) -> None:
    with pytest.raises(Unreached) as error:
        open_with(command)
    shown = f"{error.value.message} {error.value.remedy} {error.value}"
    for part in ("corr", "horse", "batt", "ttery"):
        assert part not in shown, shown


class Lost(LocalChannel):
    """A channel whose end the server explains, as sshd does with a disconnect message."""

    def recv(self, timeout: float) -> bytes:
        raise LinkLost("hung", f"the server said: {SECRET}")


class Refusing(Ends):
    """A server whose banner holds the password, from an earlier connection."""

    def open(self, node: object, command: str) -> LocalChannel:
        raise Unreached("auth_refused", f"banner: {SECRET}", f"try {SECRET}")


def test_what_the_server_says_is_filtered_too() -> None:
    class Losing(Ends):
        def open(self, node: object, command: str) -> LocalChannel:
            return Lost("sleep 5")

    for transport in (Losing(""), Refusing("")):
        with pytest.raises(Unreached) as error:
            open_link(transport, NODE, ["look"], lambda node: SudoPassword(SECRET))
        assert WHOLE not in f"{error.value.message} {error.value.remedy} {error.value}"
        assert HIDDEN in error.value.message
