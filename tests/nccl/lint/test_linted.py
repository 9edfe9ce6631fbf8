"""`clusterprep lint` as a user meets it.

The report, its codes, and input that is no environment.
"""

from __future__ import annotations

import json
import random
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.cli.commands.explain import target_text
from clusterprep.cli.commands.lint import LARGEST, lint
from clusterprep.errors import InputError
from clusterprep.facts.env_files import FILES
from clusterprep.model import EnvSetting, Report
from clusterprep.nccl.environment import render as render_environment
from clusterprep.reports import render
from tests.support.command import CLI, report_schema
from tests.support.fleet import healthy, with_facts
from tests.support.operations import operations

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=timezone.utc)
GOLDEN = Path(__file__).with_name("golden.txt")
CONF = b"""\
# RoCE, eight rails
NCCL_IB_HCA==mlx5_0,mlx5_1
export NCCL_DEBUG=INFO
NCCL_BUFFSIZE=4M
NCCL_SOKET_IFNAME=eth0
TORCH_NCCL_BLOCKING_WAIT=1
"""


def linted(content: bytes, name: str = "nccl.conf", **words: Any) -> Report:
    given = {"dialect": None, "nccl": None, "torch": None, "strict": False, **words}
    return lint(name, content, NOW, **given)


def test_the_report_looks_as_it_did() -> None:
    assert render(linted(CONF, nccl="2.21.5", torch="2.6.0"), "console") == GOLDEN.read_text()


def test_the_report_is_valid_and_names_file_and_line() -> None:
    document = json.loads(render(linted(CONF), "json"))
    report_schema().validate(document)
    failed = [finding for finding in document["findings"] if finding["verdict"] == "fail"]
    assert [f["message"].split(": ")[0] for f in failed] == [
        f"nccl.conf:{line}" for line in (3, 4, 5, 6)
    ]
    assert {tuple(finding["nodes"]) for finding in document["findings"]} == {()}
    assert "nodes" not in document


@pytest.mark.parametrize(
    ("content", "strict", "code"),
    [
        (b"NCCL_DEBUG=INFO\n", False, 0),
        (b"", False, 0),
        (b"NCCL_SOKET_IFNAME=eth0\n", False, 0),
        (b"NCCL_SOKET_IFNAME=eth0\n", True, 1),
        (b" NCCL_DEBUG=INFO\n", False, 1),
    ],
)
def test_a_warning_counts_when_it_is_asked_for(content: bytes, strict: bool, code: int) -> None:
    report = linted(content, strict=strict)
    assert (report.code, report.verdict) == (code, "fail" if code else "pass")


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        (b"A=1\0", {}, "zero byte"),
        ("A=1\n".encode("utf-16"), {}, "UTF-16"),
        (b"x" * (LARGEST + 1), {}, "larger than 1 MiB"),
        (b"", {"nccl": "newest"}, "--nccl"),
        (b"", {"torch": "2"}, "--torch"),
        (b"", {"dialect": "shel"}, "shell"),
    ],
)
def test_what_is_no_environment_is_wrong_input(
    content: bytes, words: dict[str, str], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        linted(content, **words)


@pytest.mark.parametrize("version", ["2.21.5", "v2.21.5-1", "2.21.5+cuda12.4"])
def test_versions_are_taken_as_people_have_them(version: str) -> None:
    (bad,) = [
        f
        for f in linted(b"NCCL_RAS_ENABLE=0\n", nccl=version).findings or ()
        if f.verdict == "fail"
    ]
    assert "NCCL 2.21.5 ignores it" in bad.message


def test_without_versions_the_report_says_what_was_not_judged() -> None:
    assert any("--nccl and --torch" in notice for notice in linted(b"").notices)
    assert not any(
        "--nccl" in notice for notice in linted(b"", nccl="2.21.5", torch="2.6.0").notices
    )


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("pod.yaml", b"env:\n  - name: NCCL_IB_DISABLE\n    value: '1'\n", "line 2"),
        (
            "job.sh",
            b"cat > /etc/nccl.conf <<EOF\nNCCL_ALGO=Ring\nEOF\nsrun --export=ALL,NCCL_PROTO=LL x\n",
            "lines 2, 4",
        ),
        ("module.lua", b'setenv("NCCL_DEBUG", "TRACE")\n', "line 1"),
        ("x.service", b"[Service]\nExecStart=/bin/env NCCL_PROTO=LL x\n", "line 2"),
        ("job.sh", b'export NCCL_X="a\nb"\n', "line 1"),
        ("job.sh", b"export NCCL_IB_HCA=$(ls /sys/class/infiniband)\n", "line 1"),
        ("job.sh", b"export FOO=$(date)\n", ""),
        (
            "job.sh",
            b'# NCCL_ALGO=Ring\nexport A=1 \\\n  NCCL_DEBUG=INFO\n[ "$NCCL_DEBUG" = INFO ]\n',
            "",
        ),
        ("nccl.conf", b"#NCCL_ALGO=Ring\n", ""),
        ("supervisor.conf", b'environment=NCCL_DEBUG="INFO",NCCL_ALGO="Ring"\n', "line 1"),
        ("job.sh", b"export NCCL_DEBUG=INFO; ssh n2 'NCCL_ALGO=Ring ./x'\n", "line 1"),
    ],
)
def test_lines_that_nobody_judged_are_named(name: str, content: bytes, lines: str) -> None:
    report = linted(content, name, strict=True)
    told = [f.message for f in report.findings or () if f.verdict == "unknown"]
    assert [message.partition(" cannot be judged")[0] for message in told] == (
        [f"{name}: {lines}"] if lines else []
    )
    assert (report.code, report.verdict) == ((3, "unknown") if lines else (0, "pass"))
    assert linted(content, name).code == 0
    report_schema().validate(json.loads(render(report, "json")))


@pytest.mark.parametrize(
    ("content", "nccl", "told"),
    [
        (b"NCCL_IB_HCA==mlx5_0\n", "2.30.7", True),
        (b"NCCL_IB_HCA==mlx5_0\n", "2.29.7", False),  # does not know the name
        (b"NCCL_IB_HCA==mlx5_0\n", None, False),
        (b"NCCL_IB_HCA==mlx5_0\nNCCL_IGNORE_NET_MISMATCH=0\n", "2.30.7", False),
        (b"NCCL_IB_HCA==mlx5_0\nNCCL_IB_DISABLE=1\n", "2.30.7", False),
        (b"NCCL_DEBUG=WARN\n", "2.30.7", False),
    ],
)
def test_unequal_numbers_of_network_devices_can_be_an_error(
    content: bytes, nccl: str | None, told: bool
) -> None:
    notices = linted(content, nccl=nccl).notices
    assert any("NCCL_IGNORE_NET_MISMATCH=0" in notice for notice in notices) is told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("mlx5_1", True),
        ("mlx5_0,mlx5_3:1", True),
        ("=mlx5_1", False),
        ("^mlx5_1", False),
        ("mlx5_0,mlx5_10", False),
        ("mlx5", False),
    ],
)
def test_a_name_that_may_take_another_device(value: str, told: bool) -> None:
    notices = linted(f"NCCL_IB_HCA={value}\n".encode()).notices
    assert any("by prefix" in notice for notice in notices) is told


def test_bytes_of_any_kind_give_a_report_or_wrong_input() -> None:
    chosen = random.Random(11)
    for name in ("nccl.conf", "job.sh", "job.env", "x.service"):
        for _ in range(60):
            content = bytes(
                chosen.choices(b"NCL_DEBUGIFA=^lo,\n\r\t \"'#$\\\xff\xc3\xa9\xef\xbb\xbf01x", k=60)
            )
            report = linted(content, name, nccl="2.21.5", torch="2.6.0")
            report_schema().validate(json.loads(render(report, "json")))
            assert render(report, "console", ascii_only=True).isascii()


A_LINE = 7_000  # operations at most, of the dearest kind; 3,350 when this was written


@pytest.mark.parametrize("line", ["NCCL_A{}=1", "export NCCL_IB_TC=4M{}", "NCCL_{}"])
@pytest.mark.parametrize("name", ["nccl.conf", "job.sh", "job.env"])
def test_the_work_of_judging_a_file_grows_with_its_lines(name: str, line: str) -> None:
    def judged(lines: int) -> Report:
        rows = "\n".join(line.format(number) for number in range(lines))
        report = linted(rows.encode()[:LARGEST], name)
        render(report, "console")
        return report

    assert len(judged(15_000).findings or ()) < 600
    few = operations(lambda: judged(500))
    assert few < A_LINE * 500
    assert operations(lambda: judged(1_000)) < 2.2 * few


@pytest.mark.parametrize("target", [target for target in FILES if target != "container"])
@pytest.mark.parametrize(
    "declared", [{}, {"NCCL_SOCKET_NTHREADS": "8", "TORCH_NCCL_BLOCKING_WAIT": "1"}], ids=str
)
@pytest.mark.parametrize("devices", [None, ()], ids=["rdma", "sockets"])
def test_what_apply_writes_passes(target: str, declared: dict[str, str], devices: Any) -> None:
    seen = healthy(2)
    if devices is not None:
        seen = with_facts(seen, {(name, "rdma.devices"): devices for name in ("n1", "n2")})
    nodes = tuple(
        replace(n, env={k: EnvSetting(v, "env") for k, v in declared.items()})
        for n in seen.inventory.nodes
    )
    seen = replace(seen, inventory=replace(seen.inventory, nodes=nodes))
    text = target_text(seen.inventory, render_environment(seen), target, "n1")
    report = linted(text.encode(), FILES[target][0], nccl="2.21.5", torch="2.6.0")
    assert [f.message for f in report.findings or () if f.verdict != "pass"] == []
    assert ("NCCL_IB_DISABLE=1" in text) is (devices == ())
    assert " 0 settings" not in report.notices[0]


def test_what_others_add_to_the_file_of_apply_is_judged() -> None:
    block = target_text(healthy(2).inventory, render_environment(healthy(2)), "nccl.conf", "n1")
    report = linted(f"{block}NCCL_ALGO=Ring\n".encode())
    assert [f.check for f in report.findings or () if f.verdict == "fail"] == ["env.nccl_debug"]


# ---------------------------------------------------------------- the command


def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "lint", *words], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_file_and_standard_input_are_judged_alike(tmp_path: Path) -> None:
    path = tmp_path / "nccl.conf"
    path.write_bytes(CONF)
    by_name = run(str(path), "--format", "json")
    piped = run("-", "--dialect", "nccl.conf", "--format", "json", text=CONF.decode())
    assert (by_name.returncode, piped.returncode) == (1, 1)
    seen = [[f["seen"] for f in json.loads(done.stdout)["findings"]] for done in (by_name, piped)]
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("missing.env",), "missing.env"),
        (("/",), "directory"),
        (("/proc/self/cmdline",), "zero byte"),
        (("/dev/zero",), "MiB"),
        (("/proc/self/mem",), "error"),
        ((), "FILE"),
    ],
)
def test_what_cannot_be_read_is_exit_2_with_the_reason(words: tuple[str, ...], told: str) -> None:
    done = run(*words, "--format", "json")
    report = json.loads(done.stdout)
    report_schema().validate(report)
    assert (done.returncode, report["error"]["code"], report["command"]) == (2, 2, "lint")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
