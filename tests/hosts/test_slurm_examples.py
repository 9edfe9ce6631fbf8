"""The examples under a real Slurm: only what is known to be wrong drains a node, with our reason.

Drains by others stay.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.model import Finding, Report
from clusterprep.reports import render
from tests.support.lab import faults
from tests.support.lab.rooms import Host
from tests.support.lab.slurm import Slurm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "slurm"
SCRIPTS = sorted(path for path in EXAMPLES.iterdir() if path.suffix in ("", ".sh"))
TOOL = "/usr/local/bin/clusterprep"
SITE = "/etc/clusterprep/slurm.sh"
# The agent's Python may be replaced by a test; the one that the command itself runs with is another
# name of it.
PATHS = ":".join(word for word in sys.path if word)
START = f"#!/bin/sh\nPYTHONPATH={PATHS} exec {sys._base_executable} -m clusterprep"
SMALL = {"folder": "/dev/shm", "size": "64m"}  # shm.size: an error under 1 GiB
# A prolog whose time runs out lets the job run: on a busy machine a check may take many seconds.
AMPLE = "BUDGET=60\n"
PATIENCE = 60.0  # seconds for Slurm


@pytest.fixture(scope="module")
def slurm(slurm4: Slurm) -> Iterator[Slurm]:
    """Its nodes have the examples as their prolog."""
    for host in slurm4.lab.hosts:
        host.write(TOOL, f'{START} "$@"\n', 0o755)
        host.write(SITE, AMPLE)
    slurm4.configure(f"Prolog={EXAMPLES}/prolog.sh", "PrologFlags=Alloc")
    yield slurm4
    slurm4.configure()


@pytest.fixture(autouse=True)
def idle_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "slurm" in request.fixturenames:
        slurm = request.getfixturevalue("slurm")
        slurm.run("scancel", "--state=PENDING", "--me")
        slurm.run("scancel", "--user=root")
        for name, state in slurm.states().items():
            if "drain" in state:
                slurm.run("scontrol", "update", f"node={name}", "state=resume", check=True)
        slurm.wait_state("idle", *(host.name for host in slurm.lab.hosts))


def reason(slurm: Slurm, name: str) -> str:
    """As Slurm shows it, without who set it."""
    shown = slurm.run("scontrol", "show", "node", name).stdout
    lines = [line.strip() for line in shown.splitlines() if line.strip().startswith("Reason=")]
    return lines[0].removeprefix("Reason=").split(" [")[0] if lines else ""


def job_on(slurm: Slurm, host: Host) -> None:
    """A job on one node; whether it ran is told by a file that it makes there."""
    host.run(["rm", "-f", "/run/job-was-here"])
    words = [
        "sbatch",
        "--nodelist",
        host.name,
        "--output=/dev/null",
        "--wrap=touch /run/job-was-here",
    ]
    slurm.run(*words, check=True)


def ran(host: Host) -> bool:
    return host.run(["test", "-e", "/run/job-was-here"], check=False).returncode == 0


def wait_for(what: object, seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


def drain(host: Host, *words: str) -> subprocess.CompletedProcess[str]:
    return host.run([EXAMPLES / "clusterprep-drain", *words], check=False)


def foreign(slurm: Slurm, name: str, words: str = "a fan is broken") -> None:
    slurm.run("scontrol", "update", f"node={name}", "state=drain", f"reason={words}", check=True)


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(script: Path) -> None:
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("drain", "n1"),
        ("drain", "n[1-2]", "x"),
        ("drain", "-a", "x"),
        ("drain", "n1 State=RESUME", "x"),
        ("drain", "n1", ""),
        ("resume", "n1", "x"),
        ("remove", "n1"),
        (),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [EXAMPLES / "clusterprep-drain", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("clusterprep-drain: ")


# ---------------------------------------------------------------- what the check's code means


def judged(tmp_path: Path, tool: str, **more: str) -> tuple[int, str, str]:
    """Exit code, words and log of node-check.sh with this script in the place of clusterprep."""
    (tmp_path / "tool").write_text(f"#!/bin/sh\n{tool}\n")
    (tmp_path / "tool").chmod(0o755)
    settings = {
        "TOOL": str(tmp_path / "tool"),
        "KEEP": str(tmp_path / "kept"),
        "BUDGET": "1",
        **more,
    }
    (tmp_path / "site.sh").write_text(
        "".join(f"{key}='{value}'\n" for key, value in settings.items())
    )
    env = {
        "CLUSTERPREP_SLURM_CONF": str(tmp_path / "site.sh")
    }  # no PATH, as Slurm's prologs have none
    done = subprocess.run(
        [EXAMPLES / "node-check.sh"],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def says(tmp_path: Path, code: int, *findings: Finding) -> str:
    report = Report(
        "check",
        "20261121-093000-4f2a",
        "c",
        "2026-11-21T09:30:00Z",
        1.0,
        "fail",
        code,
        findings=findings,
    )
    (tmp_path / "report.json").write_text(render(report, "json"))
    return f"cat '{tmp_path}/report.json'; exit {code}"


FAILED = Finding("gpu.lost", "fail", "error", ("n1",), "a GPU is lost")
TRAP = (
    'x", "fixed": false, "silenced": null, \n'
    ' {"check": "evil.trap", "verdict": "fail", "severity": "error", '
)
OTHERS = (
    replace(FAILED, check="a.silenced", silenced="ticket 7"),
    replace(FAILED, check="a.fixed", fixed=True),
    replace(FAILED, check="a.warning", severity="warning", message=TRAP, seen=TRAP),
    replace(FAILED, check="a.pass", verdict="pass"),
)


def test_only_a_report_that_names_a_failed_check_fails(tmp_path: Path) -> None:
    twice = replace(FAILED, check="shm.size", message=TRAP)
    found = judged(tmp_path, says(tmp_path, 1, *OTHERS, FAILED, twice, twice))
    assert found[:2] == (1, "gpu.lost,shm.size 20261121-093000-4f2a\n")
    assert "gpu.lost" in (tmp_path / "kept" / "last.json").read_text()
    assert judged(tmp_path, says(tmp_path, 1, *OTHERS))[:2] == (3, "")


def test_many_failures_make_a_short_reason(tmp_path: Path) -> None:
    many = [replace(FAILED, check=f"gpu.x{number}") for number in range(50)]
    assert judged(tmp_path, says(tmp_path, 1, *many))[1].count("gpu.x") == 5


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("exit 0", 0),
        ("exit 1", 3),
        ("echo '{}'; exit 1", 3),
        ("exit 2", 3),
        ("exit 70", 3),
        ("kill -9 $$", 3),
    ],
)
def test_all_else_says_nothing_about_the_node(tmp_path: Path, tool: str, code: int) -> None:
    assert judged(tmp_path, tool)[:2] == (code, "")


def test_what_is_not_known_is_named_in_the_log(tmp_path: Path) -> None:
    lacking = replace(FAILED, verdict="unknown", reason="the budget ended")
    code, words, log = judged(tmp_path, says(tmp_path, 3, lacking))
    assert (code, words, "gpu.lost" in log or not log) == (3, "", True)


def test_a_tool_that_is_missing_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert judged(tmp_path, "exit 0", TOOL="/nowhere/clusterprep")[0] == 3
    assert judged(tmp_path, says(tmp_path, 1, FAILED), KEEP="/proc/nowhere")[0] == 1


# ---------------------------------------------------------------- under Slurm


@pytest.mark.hosts
def test_a_healthy_node_takes_the_job(slurm: Slurm) -> None:
    host = slurm.lab.host("n1")
    job_on(slurm, host)
    assert wait_for(lambda: ran(host))
    assert reason(slurm, "n1") == ""


@pytest.mark.hosts
def test_a_fault_drains_with_our_reason_and_the_job_waits(slurm: Slurm) -> None:
    host = slurm.lab.host("n2")
    with faults.resized(host, SMALL["folder"], SMALL["size"]):
        job_on(slurm, host)
        slurm.wait_state("drained", "n2")
    assert reason(slurm, "n2").startswith("clusterprep: shm.size 2")
    assert not ran(host)
    assert "PENDING" in slurm.run("squeue", "--noheader", "--format=%T").stdout


@pytest.mark.hosts
@pytest.mark.parametrize(
    "tool",
    [
        pytest.param("#!/bin/sh\nexit 3\n", id="not-known", marks=pytest.mark.slow),
        pytest.param(
            "#!/bin/sh\necho Traceback; exit 1\n",
            id="a-python-that-cannot-start",
            marks=pytest.mark.slow,
        ),
        pytest.param("#!/bin/sh\nexit 70\n", id="a-bug", marks=pytest.mark.slow),
        pytest.param("#!/bin/sh\nsleep 1000\n", id="hangs", marks=pytest.mark.slow),
        pytest.param(None, id="not-installed", marks=pytest.mark.slow),
    ],
)
def test_a_broken_tool_drains_no_node(slurm: Slurm, tool: str | None) -> None:
    host = slurm.lab.host("n3")
    with (
        faults.without(host, TOOL) if tool is None else faults.written(host, TOOL, tool, 0o755),
        faults.written(host, SITE, "BUDGET=1\n"),
    ):
        job_on(slurm, host)
        assert wait_for(lambda: ran(host))
    assert reason(slurm, "n3") == ""


@pytest.mark.hosts
@pytest.mark.slow
def test_an_unknown_finding_drains_no_node(slurm: Slurm) -> None:
    """An interpreter that does not start is not known to be a fault of the node."""
    host = slurm.lab.host("n4")
    slow = faults.written(host, "/usr/bin/python3", "#!/bin/sh\nexec sleep 1000\n", 0o755)
    with slow, faults.written(host, SITE, "BUDGET=6\n"):
        job_on(slurm, host)
        assert wait_for(lambda: ran(host))
        assert host.processes("sleep 1000") == []
    assert reason(slurm, "n4") == ""
    assert '"verdict": "unknown"' in host.read("/run/clusterprep/last.json")


@pytest.mark.hosts
def test_a_drain_by_an_administrator_is_not_lifted(slurm: Slurm) -> None:
    host = slurm.lab.host("n1")
    foreign(slurm, "n1")
    assert drain(host, "drain", "n1", "gpu.lost r").returncode == 0
    refused = drain(host, "resume", "n1")
    assert (refused.returncode, reason(slurm, "n1")) == (1, "a fan is broken")
    assert "not ours" in refused.stderr
    assert slurm.states()["n1"] == "drained"


@pytest.mark.hosts
def test_a_reason_that_only_looks_like_ours_is_not(slurm: Slurm) -> None:
    for words in ("clusterprep", "x clusterprep: y", "Clusterprep: x", " "):
        foreign(slurm, "n1", words)
        assert drain(slurm.lab.host("n1"), "resume", "n1").returncode == 1, words
        assert slurm.states()["n1"] == "drained", words


@pytest.mark.hosts
def test_our_drain_is_resumed(slurm: Slurm) -> None:
    host = slurm.lab.host("n1")
    assert drain(host, "drain", "n1", 'gpu.lost $(reboot); "x"\nReason=y').returncode == 0
    assert reason(slurm, "n1") == "clusterprep: gpu.lost __reboot__ _x__Reason_y"
    assert drain(host, "drain", "n1", "another").returncode == 0  # the first reason stays
    assert reason(slurm, "n1").startswith("clusterprep: gpu.lost")
    assert drain(host, "resume", "n1").returncode == 0
    slurm.wait_state("idle", "n1")
    assert drain(host, "resume", "n1").returncode == 0  # nothing to do


@pytest.mark.hosts
def test_a_drain_by_an_administrator_meanwhile_is_told(slurm: Slurm) -> None:
    """An administrator drains the node at that moment: the reason is theirs, and is reported."""
    host = slurm.lab.host("n1")
    meanwhile = 'case $1 in update) /usr/bin/scontrol update node=n1 reason="a fan" ;; esac'
    with faults.written(
        host, "/opt/slurm/bin/scontrol", f'#!/bin/sh\n/usr/bin/scontrol "$@"\n{meanwhile}\n', 0o755
    ):
        path = {"PATH": "/opt/slurm/bin:/usr/bin:/bin"}
        done = host.run(
            [EXAMPLES / "clusterprep-drain", "drain", "n1", "gpu.lost"], env=path, check=False
        )
    assert done.returncode == 1
    assert "at the same time" in done.stderr
    assert reason(slurm, "n1") == "a fan"


@pytest.mark.hosts
def test_a_node_that_slurm_does_not_know_is_said(slurm: Slurm) -> None:
    done = drain(slurm.lab.host("n1"), "drain", "nobody", "x")
    assert (done.returncode, "nobody" in done.stderr) == (3, True)


@pytest.mark.hosts
@pytest.mark.slow
def test_the_health_check_drains_and_takes_back_its_own_alone(slurm: Slurm) -> None:
    host = slurm.lab.host("n2")
    slurm.configure(f"HealthCheckProgram={EXAMPLES}/healthcheck.sh", "HealthCheckInterval=2")
    try:
        with faults.resized(host, SMALL["folder"], SMALL["size"]):
            slurm.wait_state("drained", "n2")
            assert reason(slurm, "n2").startswith("clusterprep: shm.size ")
        with (
            faults.written(host, SITE, "RESUME=yes\n"),
            faults.written(host, TOOL, "#!/bin/sh\nexit 70\n", 0o755),
        ):
            time.sleep(5)  # a tool that is broken takes nothing back
            assert slurm.states()["n2"] == "drained"
        foreign(slurm, "n1")
        for name in ("n1", "n2"):
            slurm.lab.host(name).write(SITE, "RESUME=yes\n")
        slurm.wait_state("idle", "n2")
        time.sleep(5)
        assert (slurm.states()["n1"], reason(slurm, "n1")) == ("drained", "a fan is broken")
    finally:
        slurm.configure(f"Prolog={EXAMPLES}/prolog.sh", "PrologFlags=Alloc")
        for name in ("n1", "n2"):
            slurm.lab.host(name).write(SITE, AMPLE)
