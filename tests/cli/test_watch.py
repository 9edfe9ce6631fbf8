"""Options of `watch` that are refused before any node is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import asked


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "i.yaml"
    path.write_text("nodes: [{name: n1, address: 127.0.0.1}]\n")
    return str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("--every", "0"), "--every: '0' is not between 1s and 24h", id="no-interval"),
        pytest.param(("--every", "500ms"), "is not between 1s and 24h", id="too-short"),
        pytest.param(("--every", "soon"), "--every: expected a duration", id="no-time"),
        pytest.param(("--format", "yaml"), "'yaml' is not one of", id="no-stream"),
        pytest.param(("--only", "env.shadow"), "env.shadow", id="nothing-cheap"),
        pytest.param(("--only", "no.such"), "there is no check 'no.such'", id="no-check"),
        pytest.param(("--job", "4711"), "--job: '4711' is neither NODE:PID", id="no-node-of-job"),
        pytest.param(("--job", "n9:1"), "there is no node 'n9'", id="job-elsewhere"),
        pytest.param(("--limit", ""), "--limit: it is empty", id="no-nodes"),
        pytest.param(
            ("--webhook", "https://h/"), "needs a secret to sign with", id="nothing-to-sign-with"
        ),
        pytest.param(("--webhook-secret", "f"), "add --webhook URL", id="nothing-to-sign"),
        pytest.param(("--textfile", "w.txt"), "has to end in .prom", id="no-collector-reads-it"),
        pytest.param(("--textfile", "/no/w.prom"), "there is no folder", id="no-folder"),
    ],
)
def test_wrong_options_are_exit_2(
    inventory: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, out, err = asked(capsys, "watch", inventory, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_time_limit_ends_it_and_tells_what_was_seen(
    inventory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Port 1 of this machine refuses the connection."""
    text = Path(inventory).read_text().replace("127.0.0.1", "127.0.0.1, ssh: {port: 1}")
    Path(inventory).write_text(text)
    textfile = tmp_path / "watch.prom"
    words = ("--every", "1s", "--timeout", "3", "--textfile", str(textfile))
    code, out, err = asked(capsys, "watch", inventory, *words)
    assert code == 3
    labels = 'cluster="i",command="watch",state="unreached"'
    assert f"clusterprep_nodes{{{labels}}} 1\n" in textfile.read_text()
    assert out.count("down      n1: the node is not reached") == 1
    assert "0 of 1 nodes reached" in err
