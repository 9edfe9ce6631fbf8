"""`clusterprep diagnose` as a user meets it: page, document, exit codes, what is not read, and an inventory."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusterprep.cli.commands.explain import page
from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.inventory.schema import schema_path
from clusterprep.jobs.diagnose.command import (
    checks_of,
    diagnose,
    with_live_checks,
    with_nodes,
    without_names,
)
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.model import Finding
from clusterprep.reports.diagnosis import check_formats, document, render, to_json

CLI = (sys.executable, "-m", "clusterprep")
SCHEMA = Draft202012Validator(json.loads(schema_path("diagnosis").read_text()))
LOG = """\
n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
n4:51:52 [1] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.9.0.7<41001> returned 113(No route to host)
[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
  File "/home/alice/secret/train.py", line 3, in <module>
"""


def of(tmp_path: Path, text: str, name: str = "train.log") -> Diagnosis:
    path = tmp_path / name
    path.write_text(text)
    return diagnose([str(path)])[0]


def ran(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "diagnose", *words], input=stdin, capture_output=True, text=True, check=False
    )


def page_of(diagnosis: Diagnosis, verbose: int = 0) -> str:
    return render(diagnosis, "console", color=False, verbose=verbose, width=100, ascii_only=False)


# ---------------------------------------------------------------- the document


@pytest.mark.parametrize(
    "text", [LOG, "all is well\n", "", "ValueError: of its own\n", LOG.splitlines()[0]]
)
def test_the_document_is_what_the_schema_promises(tmp_path: Path, text: str) -> None:
    told = document(of(tmp_path, text))
    SCHEMA.validate(told)
    assert list(told) == ["schema", "causes", "unexplained"]


def test_a_row_has_the_keys_of_the_contract_in_its_order(tmp_path: Path) -> None:
    told: Any = document(of(tmp_path, LOG))
    assert list(told["causes"][0]) == [
        *("cause", "severity", "confidence", "culprit", "lines", "message", "remedy", "check"),
    ]
    assert [row["cause"] for row in told["causes"]] == [
        *("rank_gpu_oom", "firewall_blocked_port", "benign_no_net_plugin"),
    ]
    assert told["causes"][0]["lines"] == [[str(tmp_path / "train.log"), 3, LOG.splitlines()[2]]]
    assert told["causes"][0]["culprit"] == "rank 2"


def test_what_a_log_says_becomes_neither_markup_nor_an_escape(tmp_path: Path) -> None:
    bad = "[rank2]: RuntimeError: CUDA out of memory <script>alert('x')</script> & \x1b]0;owned\x07\x1b[2J\u202eabc [bold]x[/bold]"
    diagnosis = of(tmp_path, bad + "\n")
    text = to_json(diagnosis)
    assert text.isascii()
    assert not set("<>&\x1b\x07") & set(text)
    quoted = json.loads(text)["causes"][0]["lines"][0][2]
    assert "<script>alert('x')</script> & " in quoted
    assert quoted.isprintable()
    shown = page_of(diagnosis, verbose=1)
    assert "[bold]x[/bold]" in shown
    assert not set("\x1b\x07\u202e") & set(shown)


def test_lone_surrogates_and_long_lines_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"RuntimeError: CUDA out of memory \xed\xa0\x80 " + b"y" * 100_000 + b"\n")
    text = to_json(diagnose([str(path)])[0])
    assert len(text) < 4_000
    json.loads(text)


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (LOG, 1),
        (LOG.splitlines()[0], 3),
        (f"{LOG.splitlines()[0]}\nTraining finished.", 0),
        ("all is well", 3),
        ("", 3),
        ("ValueError: of the program's own", 3),
    ],
)
def test_exit_codes(text: str, code: int) -> None:
    answer = ran("-", "--format", "json", stdin=text)
    assert answer.returncode == code
    SCHEMA.validate(json.loads(answer.stdout))


def test_a_file_that_is_none_ends_with_2_and_its_name(tmp_path: Path) -> None:
    answer = ran(str(tmp_path / "none.log"), str(tmp_path), "--format", "json")
    assert answer.returncode == 2
    assert "none.log: No such file" in answer.stderr
    assert "Is a directory" in answer.stderr
    assert json.loads(answer.stdout)["error"]["code"] == 2


def test_several_files_are_one_job(tmp_path: Path) -> None:
    for rank, text in enumerate(("all is well\n", "RuntimeError: CUDA out of memory\n")):
        (tmp_path / f"rank{rank}.log").write_text(text)
    answer = ran(str(tmp_path / "rank0.log"), str(tmp_path / "rank1.log"), "--format", "json")
    assert json.loads(answer.stdout)["causes"][0]["culprit"] == "rank 1"


def test_the_report_goes_into_files_too(tmp_path: Path) -> None:
    answer = ran(
        "-", "--output", str(tmp_path / "x.json"), "--output", str(tmp_path / "x.txt"), stdin=LOG
    )
    SCHEMA.validate(json.loads((tmp_path / "x.json").read_text()))
    assert "rank_gpu_oom" in (tmp_path / "x.txt").read_text()
    assert "rank_gpu_oom" in answer.stdout


MOST_MODULES = 320  # of ours half of them, of the standard library most of the others


def test_a_small_log_needs_few_modules() -> None:
    """To import them is what a command spends its time with; neither torch nor what logs in to nodes is among them."""
    code = (
        "import sys\nfrom clusterprep.cli.main import cli\n"
        "try:\n cli.main(['diagnose', '-', '--format', 'json'], standalone_mode=False)\n"
        "except SystemExit:\n pass\n"
        "heavy = {'torch', 'fabric', 'paramiko', 'jsonschema', 'yaml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\nprint(len(sys.modules), file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], input=LOG, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stderr) < MOST_MODULES


def test_other_formats_are_refused_before_anything_is_read() -> None:
    with pytest.raises(InputError, match="is not written as 'junit'"):
        check_formats("junit")
    assert ran("/nonexistent", "--format", "yaml").returncode == 2


# ---------------------------------------------------------------- the page


def test_the_page_says_cause_culprit_remedy_and_check(tmp_path: Path) -> None:
    shown = page_of(of(tmp_path, LOG))
    for part in (
        "FATAL    rank_gpu_oom",
        "culprit: rank 2",
        "fix: nvidia-smi",
        "check: gpu.busy",
        "BENIGN   benign_no_net",
    ):
        assert part in shown
    assert (
        shown.index("rank_gpu_oom")
        < shown.index("firewall_blocked_port")
        < shown.index("benign_no_net_plugin")
    )
    assert "1 harmless" in shown


def test_the_page_of_what_is_unknown_shows_lines_and_says_what_to_do(tmp_path: Path) -> None:
    shown = page_of(of(tmp_path, "ValueError: of its own\n"))
    assert "nothing in it is known" in shown
    assert "ValueError: of its own" in shown
    assert "logs of all ranks" in shown


@pytest.mark.parametrize("name", causes())
def test_every_cause_has_its_page(name: str) -> None:
    text = page(name)
    assert text.startswith(f"{name}: ")
    for part in ("What it looks like", "What it is not", "Remedy"):
        assert part in text


def test_a_misspelt_cause_is_guessed() -> None:
    with pytest.raises(InputError, match="did you mean memlock_limit"):
        page("memlok_limit")


# ---------------------------------------------------------------- without names


def test_a_redacted_report_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG + "n4 again at 10.9.0.7: RuntimeError: failed for alice@n4\n")
    text = to_json(without_names(*diagnose([str(path)])))
    for name in ("n4", "10.9.0.7", "alice", "secret", str(tmp_path)):
        assert name not in text
    rows = json.loads(text)["causes"]
    assert rows[1]["culprit"] == "peer addr-1 as seen from host-1"


# ---------------------------------------------------------------- with an inventory


INVENTORY = """\
nodes:
  - {name: "gpu[1-2]", address: "10.9.0.[6-7]"}
nproc_per_node: 2
"""


def test_ranks_and_addresses_are_put_on_nodes(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    placed = with_nodes(of(tmp_path, LOG), load_inventory(str(tmp_path / "cluster.yaml")))
    assert [found.culprit for found in placed.causes] == [
        "rank 2 on gpu2",
        "peer 10.9.0.7 as seen from n4 (gpu2)",
        None,
    ]


@pytest.mark.parametrize(
    ("ranks", "shares", "culprit"),
    [
        ((2,), "nproc_per_node: 2", "rank 2 on gpu2"),
        ((1, 3), "gpus: 2", "ranks 1 and 3 on gpu1, gpu2"),
        ((2,), "gpus: {count: 4, use: '0-1'}", "rank 2 on gpu2"),
        ((9,), "gpus: 2", "rank 9"),
        ((2,), "cluster: x", "rank 2"),
    ],
)
def test_a_rank_has_its_node_where_nodes_say_how_many_they_start(
    tmp_path: Path, ranks: tuple[int, ...], shares: str, culprit: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(
        f'nodes: [{{name: "gpu[1-2]", address: "10.9.0.[6-7]"}}]\n{shares}\n'
    )
    log = (
        "".join(f"[rank{rank}]: RuntimeError: CUDA out of memory\n" for rank in ranks)
        + "[rank0]: KeyError: 1\n"
    )
    placed = with_nodes(of(tmp_path, log), load_inventory(str(tmp_path / "cluster.yaml")))
    assert placed.causes[0].culprit == culprit


def test_what_checks_say_now_stands_beside_the_cause(tmp_path: Path) -> None:
    diagnosis = of(tmp_path, LOG)
    assert checks_of(diagnosis) == ("gpu.busy", "net.ports")
    now = [
        Finding("net.ports", "fail", "error", ("gpu2",), "the port is filtered"),
        Finding(
            "gpu.busy", "skip", "warning", ("gpu1", "gpu2"), "no GPUs", reason="not_applicable"
        ),
    ]
    told: Any = document(with_live_checks(diagnosis, now))
    SCHEMA.validate(told)
    assert told["causes"][1]["now"] == ["net.ports fail on gpu2: the port is filtered"]
    assert "now" not in told["causes"][0]
    shown = page_of(with_live_checks(diagnosis, now, ["gpu1"]))
    assert "now: net.ports fail on gpu2" in shown
    assert "gpu1 not reached" in shown


def test_the_checks_are_run_on_the_nodes(tmp_path: Path) -> None:
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(
        "transport: local\npython: /usr/bin/python3\nnodes: [{name: here, address: 127.0.0.1}]\n"
    )
    log = "here:7:7 [0] NCCL WARN Call to accept failed : Too many open files\n"
    answer = ran("-", "--inventory", str(inventory), "--format", "json", stdin=log)
    (cause,) = json.loads(answer.stdout)["causes"]
    assert (cause["check"], answer.returncode) == ("lim.nofile", 1)
    assert cause["now"][0].startswith("lim.nofile ")
