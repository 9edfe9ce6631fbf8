"""Wrong input of bisect is refused before a node is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import asked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, nodes in {"one": "n1", "two": "n[1-2]", "four": "n[1-4]"}.items():
        text = f"cluster: c\nnodes: [{{name: '{nodes}'}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("four.yaml",), "there is no command to launch"),
        (("one.yaml", "--", "true"), "it needs two at least"),
        (("four.yaml", "--limit", "n2", "--", "true"), "it needs two at least"),
        (("four.yaml", "--min-nodes", "4", "--", "true"), "there is nothing to leave out"),
        (("two.yaml", "--min-nodes", "2", "--", "true"), "there is nothing to leave out"),
        (("four.yaml", "--max-runs", "0", "--", "true"), "--max-runs"),
        (("four.yaml", "--max-time", "soon", "--", "true"), "--max-time"),
        (("four.yaml", "--run-timeout", "x", "--", "true"), "--run-timeout"),
        (("four.yaml", "--chdir", "data", "--", "true"), "--chdir"),
        (("four.yaml", "--resume", "last", "--", "true"), "no bisect has runs that are kept"),
        (("four.yaml", "--resume", "../x", "--", "true"), "is not the name of a run"),
        (("four.yaml", "--timeout", "9", "--", "true"), "--timeout"),
    ],
)
def test_wrong_input_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, out, err = asked(capsys, "bisect", *words)
    assert (code, out) == (2, ""), err
    assert told in err
    assert not (folder / "state" / "clusterprep" / "bisect").exists()
