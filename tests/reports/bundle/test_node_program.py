"""The program that asks a node for evidence, in real shells, and what is read of its answers."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterprep.errors import Unreached
from clusterprep.fabric.results import Answer
from clusterprep.model import Inventory
from clusterprep.reports.bundle.node_answers import NodeReader, answers_of, text_of
from clusterprep.reports.bundle.node_program import program_for
from clusterprep.reports.bundle.sources import LAST, Source, sources_for

SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]
ENDED = Answer(0, "", "", 1.0)
SH = "/bin/sh"


def source(name: str, line: str, **settings: object) -> Source:
    return Source(name, name, (SH, "-c", line), **settings)  # type: ignore[arg-type]


def printed(sources: tuple[Source, ...], folder: Path, shell: str = "sh") -> str:
    """Return what the program prints where it runs as a command of its own."""
    program = program_for(sources)
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    with subprocess.Popen(
        [*argv, "-c", f"exec {program.line}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(program.stdin)
        process.stdin.flush()
        out = process.stdout.read().decode()
    assert list(folder.iterdir()) == [], "something stays on the node"
    return out


def told(sources: tuple[Source, ...], text: str) -> dict[str, tuple[str, str, str]]:
    """Return state, note and text of each answer."""
    reader = NodeReader(sources)
    reader.feed(text)
    answers = {}
    for answer in answers_of(sources, reader, ENDED):
        content, trouble = text_of(answer)
        answers[answer.source.name] = (answer.state, answer.note or trouble, content)
    return answers


@pytest.mark.parametrize("shell", SHELLS)
def test_each_way_to_answer(shell: str, tmp_path: Path) -> None:
    sources = (
        source("good", "echo out; echo err >&2"),
        source("bad", "echo half; exit 3"),
        source("long", "seq 100000", most=20),
        source("tail", "seq 100000", most=6, keep="end"),
        source("slow", "echo begun; sleep 600 & sleep 600", seconds=1),
        Source("missing", "", ("no-such-program",)),
        Source("file", "", ("/etc/passwd",), is_file=True),
        Source("nowhere", "", ("/etc/no-such-file",), is_file=True),
        Source("folder", "", ("/etc",), is_file=True),
        source("empty", ":"),
    )
    answers = told(sources, printed(sources, tmp_path, shell))
    assert answers["good"] == ("present", "", "out\nerr\n")
    assert answers["bad"] == ("failed", "exit code 3", "half\n")
    assert answers["long"][1:] == ("the first 20 B of 575 KiB", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10")
    assert answers["tail"][1:] == ("the last 6 B of 575 KiB", "00000\n"[-6:])
    assert answers["slow"] == ("unknown", "ended after 1 s; what it had printed is here", "begun\n")
    assert answers["missing"] == ("absent", "not installed", "")
    assert answers["file"][::2] == ("present", Path("/etc/passwd").read_text())
    assert answers["nowhere"] == ("absent", "there is no such file", "")
    assert answers["folder"] == ("absent", "it is no regular file", "")
    assert answers["empty"] == ("present", "", "")


def test_answers_come_in_any_pieces(tmp_path: Path) -> None:
    sources = (source("one", "seq 2000"), source("two", "printf '\\377\\000x'"))
    text = "banner of a shell\n" + printed(sources, tmp_path)
    whole = told(sources, text)
    chance = random.Random(1)
    reader = NodeReader(sources)
    while text:
        size = chance.randrange(1, 50)
        reader.feed(text[:size])
        text = text[size:]
    assert reader.has_ended
    answers = answers_of(sources, reader, ENDED)
    assert [text_of(answer)[0] for answer in answers] == [whole["one"][2], whole["two"][2]]
    assert whole["two"][2] == "\\xff\x00x"


HEAD = "clusterprep-evidence 0\n"
ODD = "the node answered in another form than the program that was run there does"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(HEAD + "one answered 0 3 4\nYWI", "the node did not answer it", id="cut"),
        pytest.param(HEAD + "three absent - 0 0\n\n", ODD, id="not-asked-for"),
        pytest.param(HEAD + "../x answered 0 1 4\nYWI=\n", ODD, id="path"),
        pytest.param(HEAD + "one answered 0 9 99999999\n", ODD, id="longer-than-its-bound"),
        pytest.param(HEAD + "one answered 0 3 3\n\u00e9\u00e9\u00e9\n", ODD, id="no-base64"),
        pytest.param(HEAD + "x" * 400, ODD, id="endless-line"),
        pytest.param("x" * 100_000, "the node did not answer it", id="noise"),
        pytest.param("", "the node did not answer it", id="nothing"),
    ],
)
def test_what_a_node_must_not_say(text: str, why: str) -> None:
    sources = (source("one", ""), source("two", ""))
    assert told(sources, text) == dict.fromkeys(("one", "two"), ("unknown", why, ""))


def test_what_is_packed_is_bounded(tmp_path: Path) -> None:
    bomb = source("bomb", "head -c 3000000 /dev/zero | gzip", most=20_000, is_packed=True)
    state, note, content = told((bomb,), printed((bomb,), tmp_path))["bomb"]
    assert (state, note, len(content)) == ("present", "the first 39 KiB", 40_000)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (None, "the time was over before the node answered"),
        (Unreached("refused", "x"), "the node was not reached: refused"),
        (Answer(None, "", "", 1.0, "hung"), "the node was lost meanwhile: hung"),
        (
            Answer(1, "", "mktemp: No space left on device\n", 1.0),
            "the program ended with exit code 1: mktemp: No space left on device",
        ),
    ],
)
def test_a_node_that_says_nothing_is_unknown(outcome: object, why: str) -> None:
    sources = (source("one", ""),)
    (answer,) = answers_of(sources, NodeReader(sources), outcome)  # type: ignore[arg-type]
    assert (answer.state, answer.note) == ("unknown", why)


@pytest.mark.parametrize(
    ("rights", "code", "user", "expected"),
    [
        ("root", 1, 1000, ("refused", "it needs root")),
        ("root", 1, 0, ("failed", "exit code 1")),
        ("any", 1, 1000, ("failed", "exit code 1")),
        ("parts", 0, 1000, ("present", "without root parts of it are missing")),
        ("parts", 0, 0, ("present", "")),
    ],
)
def test_what_another_login_would_see(
    rights: str, code: int, user: int, expected: tuple[str, str]
) -> None:
    sources = (source("one", "", rights=rights),)
    line = f"clusterprep-evidence {user}\none answered {code} 1 32\n"
    packed = "H4sIAAAAAAAAA6sAAIMW3IwBAAAA"  # x
    answers = told(sources, line.replace("32", str(len(packed))) + packed + "\nend\n")
    assert answers["one"] == (*expected, "x")


def test_the_table_has_one_line_for_each_source() -> None:
    sources = sources_for(Inventory("demo", ()), names=True)
    names = [one.name for one in sources]
    assert len(names) == len(set(names))
    assert sources[-1] is LAST
    assert "file-etc-nccl.conf" in names
    assert all(len(name) < 100 and "/" not in name for name in names)
