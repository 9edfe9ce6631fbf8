"""Names of files that are not ASCII, on nodes whose locale knows ASCII alone.

Python 3.6 takes names for ASCII there; later releases use UTF-8.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote import bootstrap
from clusterprep.remote.transports.frames import FrameReader
from tests.support.surroundings import login_home

NONCE = "0123456789abcdef"
OLD_PYTHONS = sorted(login_home().glob(".pyenv/versions/3.6.*/bin/python"))
PYTHONS = [*map(str, OLD_PYTHONS), sys.executable]
RUN, NEXT = "20261121-093000-4f2a", "20261121-101500-0001"
FOLDER, NAME = "/etc/ünïcode", "näh ☂.conf"
PATH = f"{FOLDER}/{NAME}"
PARTS = ("look", "targets", "journal", "act", "steps")


class Conversation:
    """An agent in the C locale, asked one thing after the other."""

    def __init__(self, python: str, locale: str, root: Path) -> None:
        self.body = {"root": str(root), "cluster": "dünn", "undoes": None}
        self.body.update(number=1, node="n1", nodes="n1")
        loader = shlex.split(bootstrap.command())[-1]
        pipe = subprocess.PIPE
        names = {name: text for name, text in os.environ.items() if not name.startswith("LC_")}
        self.process = subprocess.Popen(
            [python, "-EsSB", "-c", loader],
            stdin=pipe,
            stdout=pipe,
            env={**names, "LC_ALL": locale, "LANG": locale},
            bufsize=0,
        )
        self.reader, self.frames, self.number = FrameReader(NONCE), [], 0
        self._send(bootstrap.payload(NONCE, PARTS))

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        self.number += 1
        request = {**self.body, "id": self.number, "op": op, **more}
        self._send(json.dumps(request).encode() + b"\n")
        assert self.process.stdout is not None
        while True:
            for frame in self.frames:
                if frame.get("id") == self.number and "beat" not in frame:
                    self.frames.remove(frame)
                    return {key: value for key, value in frame.items() if key != "id"}
            data = self.process.stdout.read(1 << 16)
            assert data, "it has ended"
            self.frames += self.reader.feed(data)

    def whole(self, run: str, *files: dict[str, Any]) -> None:
        for op in ("stage", "commit", "settle"):
            assert self.ask(op, run=run, files=files) == {}


@pytest.fixture(
    params=[(python, locale) for python in PYTHONS for locale in ("C", "POSIX")],
    ids=lambda pair: f"{Path(pair[0]).parents[1].name}-{pair[1]}",
)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Conversation]:
    talk = Conversation(*request.param, tmp_path)
    yield talk
    talk.process.kill()
    talk.process.communicate()


def coded(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(text.encode()).decode()


def wanted(before: str | None, after: str | None) -> dict[str, Any]:
    return {"path": PATH, "before": coded(before), "after": coded(after), "mode": 0o644}


def read(agent: Conversation, kind: str, *args: str) -> Any:
    """The answer to one read."""
    answer = agent.ask("look", reads=[[kind, list(args), 5.0]])
    (value,) = answer["answers"]
    return value


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.6 here")
def test_a_file_is_written_rolled_back_and_told_under_its_own_name(
    agent: Conversation, tmp_path: Path
) -> None:
    place = tmp_path / PATH.lstrip("/")
    agent.whole(RUN, wanted(None, "größer\n"))
    assert [path.name for path in (tmp_path / "etc").rglob("*")] == ["ünïcode", NAME]
    (run,) = agent.ask("runs")["runs"]
    assert (run["cluster"], run["files"][0]["path"]) == ("dünn", PATH)
    assert run["files"][0]["now"] == coded("größer\n")
    assert agent.ask("stage", run=NEXT, files=[wanted("größer\n", "newer\n")]) == {}
    assert agent.ask("commit", run=NEXT) == {}
    assert place.read_text() == "newer\n"
    assert agent.ask("undo", undo=NEXT) == {}
    assert place.read_text() == "größer\n"
    assert [path.name for path in place.parent.iterdir()] == [NAME]


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.6 here")
def test_a_refusal_names_it_so_that_it_can_be_read(agent: Conversation, tmp_path: Path) -> None:
    place = tmp_path / PATH.lstrip("/")
    place.parent.mkdir(parents=True)
    place.symlink_to("elsewhere")
    answer = agent.ask("stage", run=RUN, files=[wanted("a\n", "b\n")])
    assert (answer["no"], str(place) in answer["why"]) == ("not_a_file", True)
    place.unlink()
    place.write_text("other\n")
    answer = agent.ask("stage", run=RUN, files=[wanted("a\n", "b\n")])
    assert (answer["no"], answer["path"]) == ("changed", PATH)
    assert str(place) in answer["why"]


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.6 here")
def test_another_agent_in_another_locale_goes_on_with_the_run(
    agent: Conversation, tmp_path: Path
) -> None:
    """What one interpreter wrote into the journal the next one reads."""
    for first, second in ((agent, sys.executable), (None, PYTHONS[0])):
        one = first or Conversation(sys.executable, "C.UTF-8", tmp_path)
        assert one.ask("stage", run=RUN, files=[wanted(None, "it\n")]) == {}
        assert one.ask("commit", run=RUN) == {}
        other = Conversation(second, "C.UTF-8" if first else "C", tmp_path)
        assert other.ask("undo", undo=RUN) == {}
        assert not (tmp_path / "etc").exists()
        for talk in {one, other} - {agent}:
            talk.process.kill()
            talk.process.communicate()
        for manifest in tmp_path.glob("var/lib/clusterprep/runs/*/*"):
            manifest.unlink()


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.6 here")
def test_reads_and_commands_take_such_names_too(agent: Conversation, tmp_path: Path) -> None:
    place = tmp_path / PATH.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("größer\n")
    assert read(agent, "file", str(place)) == ["ok", "größer\n"]
    assert read(agent, "files", f"{place.parent}/*") == ["ok", {str(place): "größer"}]
    assert read(agent, "target", str(place))[1]["data"] == coded("größer\n")
    ok, answer = read(agent, "command", "cat", str(place))
    assert (ok, answer["out"]) == ("ok", "größer\n")
    why = read(agent, "file", f"{place}.missing")
    assert why[:2] == ["no", "missing"]
    assert f"{place}.missing" in why[2]
