"""Hosts whose python3 is not one.

Each is known for what it is, and no other host is judged otherwise for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterprep.reports import SUFFIXES
from tests.fuzz.wellformed import FORMATS
from tests.support.command import CLI, Answer, answer, clusterprep
from tests.support.hostile import LOST, SPOILT, WAYS, WRITING, hostile
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab

pytestmark = pytest.mark.hosts

HEALTHY = 2
MEMORY = 120  # MiB of the controller; without hostile nodes it takes 80
SECONDS = 60
ONLY = "--only=ssh.reach,host.identity,kernel.version,os.release,time.offset"
PROFILE = "/etc/profile.d/clusterprep-nccl.sh"
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print("PEAK", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def among(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Check two healthy hosts and one for each way, and before that the healthy ones alone."""
    require_lab()
    folder = tmp_path_factory.mktemp("hostile")
    with Lab(HEALTHY + len(WAYS)) as lab, ExitStack() as undone:
        names = [host.name for host in lab.hosts[:HEALTHY]]
        alone = clusterprep(lab, "check", ONLY, f"--limit={','.join(names)}")
        for host, way in zip(lab.hosts[HEALTHY:], WAYS, strict=True):
            undone.enter_context(hostile(host, way))
        outputs = [f"--output={folder / f'report{suffix}'}" for suffix in SUFFIXES.values()]
        argv = [*CLI, "check", str(lab.inventory()), "--format", "json", ONLY, *outputs]
        done = lab.controller.run([sys.executable, "-c", MEASURED, *argv], timeout=SECONDS)
        of = {way: host.name for host, way in zip(lab.hosts[HEALTHY:], WAYS, strict=True)}
        few = f"--limit={','.join([*names, of[WRITING]])}"
        # Of the others it is not known what they have; --partial goes on all the same.
        writing = clusterprep(lab, "apply", ONLY, few, "--no-verify", "--partial")
        left = [
            host.name
            for host in lab.hosts
            if host.run(["test", "-e", PROFILE], check=False).returncode == 0
        ]
        yield Told(alone, answer(done), of, folder, names, writing, left)


@dataclass(frozen=True)
class Told:
    """What was said of the healthy hosts `alone` and of all, and what an apply left where.

    `of` is the host of each way.
    """

    alone: Answer
    said: Answer
    of: dict[str, str]
    folder: Path
    names: list[str]
    writing: Answer
    left: list[str]


def told(said: Answer, name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in said.report["findings"]:
        if name in finding["nodes"]:
            found.setdefault(finding["check"], set()).add(finding["verdict"])
    return found


@pytest.mark.hosts
@pytest.mark.parametrize("way", LOST)
def test_a_python_that_runs_no_agent_is_unknown_with_the_reason(among: Told, way: str) -> None:
    said, of = among.said, among.of
    (row,) = (node for node in said.report["nodes"] if node["name"] == of[way])
    assert (row["reached"], row["reason"]) == (False, LOST[way])
    assert told(said, of[way]) == {"ssh.reach": {"unknown"}}


@pytest.mark.hosts
@pytest.mark.parametrize("way", [way for way in SPOILT if way != "twice"])
def test_what_is_no_answer_passes_nothing(among: Told, way: str) -> None:
    said, of = among.said, among.of
    found = told(said, of[way])
    judged = (
        ("time.offset",) if way == "clock" else ("host.identity", "kernel.version", "os.release")
    )
    assert {check: found[check] for check in judged} == {check: {"unknown"} for check in judged}


@pytest.mark.hosts
def test_the_others_are_judged_as_without_them(among: Told) -> None:
    for name in (*among.names, among.of["twice"], among.of[WRITING]):
        assert told(among.said, name) == told(among.alone, among.names[0])
    assert among.said.code == 3


@pytest.mark.hosts
def test_an_answer_that_is_none_ends_a_write_on_all_nodes(among: Told) -> None:
    assert among.writing.code == 4
    assert among.of[WRITING] in among.writing.report["error"]["message"]
    assert among.writing.report["error"]["message"].isprintable()
    assert among.left == []


@pytest.mark.hosts
def test_unusable_pythons_cost_little_time_and_memory(among: Told) -> None:
    said = among.said
    (peak,) = (line for line in said.stderr.splitlines() if line.startswith("PEAK "))
    assert int(peak.split()[1]) < MEMORY
    assert said.report["seconds"] < SECONDS / 2


@pytest.mark.hosts
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_is_well_formed(among: Told, fmt: str) -> None:
    text = Path(among.folder / f"report{SUFFIXES[fmt]}").read_text("utf-8")
    FORMATS[fmt](text)
    assert len(text) < 200_000
