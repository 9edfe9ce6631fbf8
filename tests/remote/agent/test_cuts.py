"""What is too long for an answer is truncated, and no part of it passes for the whole."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import kernel_log, launched, nccl_address, shells
from clusterprep.remote.agent.look import MAX_ANSWERS, MAX_VALUES, answer, within_limits
from clusterprep.remote.agent.printed import LONGEST, events_of
from clusterprep.remote.agent.readers import MAX_TEXT, MAX_TEXTS, NoAnswer
from clusterprep.remote.transports.frames import MAX_EVENT, MAX_EVENT_VALUES, MAX_FRAME
from clusterprep.remote.transports.frames import MAX_VALUES as MOST_TAKEN


def shell(script: str) -> Any:
    return answer("command", ["sh", "-c", script])


@pytest.mark.parametrize("stream", ["", " >&2"], ids=["stdout", "stderr"])
def test_a_command_that_prints_too_much_has_no_answer(stream: str) -> None:
    whole = shell(f"head -c {MAX_TEXT} /dev/zero | tr '\\0' x{stream}")
    assert whole[0] == "ok"
    assert len(whole[1]["out"] + whole[1]["err"]) == MAX_TEXT
    more = shell(f"head -c {MAX_TEXT + 1} /dev/zero | tr '\\0' x{stream}")
    assert more == ["no", "truncated", f"sh prints more than {MAX_TEXT} bytes"]


def test_a_command_is_read_to_its_end_all_the_same(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    assert shell(f"head -c 5000000 /dev/zero; touch {mark}")[1] == "truncated"
    assert mark.exists()


def test_a_file_that_is_too_long_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("short")
    (tmp_path / "b").write_text("x" * (MAX_TEXT + 1))
    assert answer("files", [f"{tmp_path}/*"])[:2] == ["no", "truncated"]


def test_files_that_are_too_long_together_have_no_answer(tmp_path: Path) -> None:
    for number in range(MAX_TEXTS // MAX_TEXT):
        (tmp_path / f"{number}").write_text("x" * MAX_TEXT)
    assert answer("files", [f"{tmp_path}/*"])[0] == "ok"
    (tmp_path / "one more").write_text("x")
    assert answer("files", [f"{tmp_path}/*"])[:2] == ["no", "truncated"]


def test_a_start_up_file_that_is_too_long_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("export NCCL_DEBUG=INFO\n" + "#" * MAX_TEXT)
    assert launched.text_of(str(tmp_path / "nothing")) is None
    with pytest.raises(NoAnswer, match="truncated"):
        launched.text_of(str(tmp_path / ".bashrc"))


def test_a_shell_that_prints_too_much_has_not_ended_early(tmp_path: Path) -> None:
    loud = tmp_path / "loud"
    loud.write_text("#!/bin/sh\nexec head -c 5000000 /dev/zero\n")
    loud.chmod(0o755)
    env = {"HOME": "/", "USER": "alice", "PATH": os.environ["PATH"]}
    said = shells._ask_shell(str(loud), env, [], False, False, launched.wanted)
    assert said == [
        "no",
        "truncated",
        f"start-up files of alice print more than {shells.MOST} bytes",
    ]


def test_more_start_up_files_than_are_followed_are_no_answer(tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.sh" for number in range(shells.MOST_FILES + 1)]
    for name in names:
        name.touch()
    first = tmp_path / "profile"
    first.write_text("".join(f". {name}\n" for name in names))
    with pytest.raises(NoAnswer, match="truncated"):
        shells._add_file(str(first), "/", [], [])


def test_what_nccl_prints_is_whole_or_no_answer() -> None:
    ending = "print(sys.argv[1], 'end', '00')"
    few = f"import sys; print('x' * 100); {ending}"
    assert (
        nccl_address.probed("/usr/bin/python3", few, dict(os.environ))["log"].strip() == "x" * 100
    )
    many = f"import sys; print('x' * {nccl_address.MOST_LOG}); {ending}"
    with pytest.raises(NoAnswer, match="truncated"):
        nccl_address.probed("/usr/bin/python3", many, dict(os.environ))


def test_the_word_of_a_long_line_of_the_kernel_is_kept() -> None:
    kinds = kernel_log.Kinds(["Out of memory: Kill"], [])
    text = "x" * 5000 + "Out of memory: Killed process 7"
    kinds.add("Out of memory: Kill", 1, 2.0, 3, text)
    (record,) = kinds.records()
    assert record[5].endswith("Out of memory: Killed process 7")
    assert len(record[5]) <= kernel_log.LINE


def test_answers_that_are_too_much_together_keep_what_fits() -> None:
    text = "x" * (1 << 20)
    answers = [["ok", text], ["ok", "short"], ["ok", text], ["ok", text], ["no", "missing", ""]]
    fitting = within_limits(answers)
    assert [row[:2] if row[0] == "no" else row[0] for row in fitting] == [
        "ok",
        "ok",
        "ok",
        ["no", "truncated"],
        ["no", "missing"],
    ]
    assert len(json.dumps(fitting)) < MAX_ANSWERS < MAX_FRAME


def test_values_that_are_too_many_are_truncated() -> None:
    many = [["ok", [[]] * (MAX_VALUES // 2)], ["ok", [[]] * MAX_VALUES], ["ok", 1]]
    began = time.process_time()
    fitting = within_limits(many)
    assert time.process_time() - began < 2.0
    assert [row[1] == "truncated" for row in fitting] == [False, True, False]
    assert MAX_VALUES < MOST_TAKEN


def test_ordinary_answers_are_left_as_they_are() -> None:
    answers = [["ok", {"a": [1, 2]}], ["no", "denied", "x"]]
    assert within_limits(answers) is answers


def test_every_event_of_output_is_one_that_the_controller_takes() -> None:
    lines = [b"\xff" * LONGEST] * 50 + [b"\x01"] * 1000 + [b"", b"x" * LONGEST]
    events = list(events_of(lines))
    assert list(itertools.chain.from_iterable(events)) == lines
    for event in events:
        texts = [line.decode("utf-8", "replace") for line in event]
        assert len(json.dumps({"rank": 1 << 40, "stream": "stdout", "lines": texts})) < MAX_EVENT
        assert len(texts) < MAX_EVENT_VALUES
    assert list(events_of([])) == []
