"""The agent on every Python from 3.6 on that is here: each read, operation and program of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterprep.inventory.local import local_inventory
from clusterprep.model import Absent, Json, Read
from clusterprep.remote import bootstrap
from clusterprep.survey import registry
from clusterprep.survey.queries import plan_queries
from tests.remote.agent.stories import (
    STORIES,
    agent_of,
    closed_port,
    special_reads,
    tell,
    tell_relay,
)
from tests.support.asked import answered, interpret, reads
from tests.support.pythons import OWN, each_release, find_python, releases_here

INVENTORY = local_inventory()
PLAN = plan_queries((), {}, list(registry.facts().values()))  # every fact there is
LOOKS = 3


def python_of(release: str) -> str:
    found = find_python(release)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Read]]:
    """Everything that an agent can be asked to read."""
    folder = tmp_path_factory.mktemp("read")
    (folder / "file").write_text("x\n")
    with closed_port() as port:
        own = special_reads(sys.executable, folder, port)
        yield [*reads(PLAN, INVENTORY.nodes[0], INVENTORY), *own]


@pytest.fixture(scope="module")
def own_answers(asked: list[Read]) -> list[Json]:
    return answers_of(OWN, asked)


def answers_of(release: str, asked: Sequence[Read]) -> list[Json]:
    parts = bootstrap.parts_for({read.kind for read in asked})
    with agent_of(python_of(release), *parts[1:], "inside") as link:
        assert link.hello["python"].startswith(f"{release}.")
        return answered(link, asked)


def form_of(answer: Any) -> tuple[object, ...]:
    """Return how a read ended, with the reason if it failed, or the type of what it brought."""
    if answer[0] != "ok":
        return (answer[0], answer[1])
    return (answer[0], type(answer[1]).__name__)


def differences(
    asked: Sequence[Read], own: Sequence[Json], other: Sequence[Json]
) -> dict[Read, tuple[Json, Json]]:
    """Return the reads whose answers have another form, with both answers."""
    rows = zip(asked, own, other, strict=True)
    return {read: (one, two) for read, one, two in rows if form_of(one) != form_of(two)}


def unread(told: Mapping[Read, Json]) -> dict[str, Absent]:
    """Return the facts of this machine whose answers cannot be understood."""
    facts: dict[str, Any] = interpret(PLAN, INVENTORY.nodes[0], INVENTORY, told)
    assert len(facts) > 50
    return {
        name: fact
        for name, fact in facts.items()
        if isinstance(fact, Absent) and fact.reason in {"garbled", "agent_error"}
    }


@pytest.mark.parametrize("release", each_release())
def test_every_read_answers_as_on_our_own_python(
    release: str, asked: list[Read], own_answers: list[Json]
) -> None:
    """A machine changes meanwhile: what answers otherwise has to do so in all of LOOKS."""
    other = answers_of(release, asked)
    assert unread(dict(zip(asked, other, strict=True))) == {}
    found = differences(asked, own_answers, other)
    for _ in range(LOOKS - 1):
        if found:
            again = list(found)
            found = differences(again, answers_of(OWN, again), answers_of(release, again))
    assert found == {}


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("release", each_release())
def test_every_operation(release: str, name: str, tmp_path: Path) -> None:
    tell(name, python_of(release), tmp_path)


@pytest.mark.parametrize("release", each_release())
def test_a_task_of_a_slurm_step(release: str) -> None:
    tell_relay(python_of(release))


@pytest.mark.parametrize("release", each_release())
def test_a_near_node_chooses_text_or_code(release: str) -> None:
    with agent_of(python_of(release), near=True) as link:
        assert link.hello["python"].startswith(f"{release}.")
        assert (link.hello["magic"] == bootstrap.MAGIC) == (release == OWN)
        assert "sent" in link.request("ping", 30.0)


LOADS = """
import sys
source = {"__name__": "light"}
exec(sys.stdin.read(), source)
for text in ("", "{", "[1", "nothing", '{"a" 1}'):
    try:
        source["loads"](text)
    except ValueError:
        print("refused")
"""


@pytest.mark.parametrize("release", releases_here())
def test_text_that_is_no_json_is_refused_by_an_agent_without_the_json_module(release: str) -> None:
    """Our own process has imported it, so that only another one shows what an agent does."""
    light = Path("clusterprep/remote/agent/light.py").read_text("utf-8")
    told = subprocess.run(
        [python_of(release), bootstrap.FLAGS, "-c", LOADS],
        input=light,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["refused"] * 5


# ---------------------------------------------------------------- nothing is left out

OPERATIONS = """
import importlib
from clusterprep.remote import bootstrap
from clusterprep.remote.agent.loop import Agent
agent = Agent("x")
for names in bootstrap._MODULES_OF_PART.values():
    for name in names:
        module = importlib.import_module("clusterprep.remote.agent." + name)
        if hasattr(module, "install"):
            module.install(agent)
from clusterprep.remote.agent.readers import READERS
print(*agent.ops)
print(*READERS)
"""


def test_every_operation_and_every_read_takes_part(asked: list[Read]) -> None:
    told = subprocess.run(
        [sys.executable, "-c", OPERATIONS], capture_output=True, text=True, check=True
    )
    operations, kinds = (set(line.split()) for line in told.stdout.splitlines())
    assert operations == set().union(*(each.ops for each in STORIES.values()))
    assert kinds - {read.kind for read in asked} == {"stream"}  # it has a story
    assert set(bootstrap.kinds()) - {read.kind for read in asked} == {bootstrap.INSIDE}


def test_another_python_than_our_own_takes_part_where_there_is_one() -> None:
    if releases_here() == [OWN]:
        pytest.skip(f"Python {OWN} is the only one in pyenv and on PATH")
    fast = [each for each in each_release() if not each.marks]  # type: ignore[attr-defined]
    assert {each.values[0] for each in fast} - {OWN}  # type: ignore[attr-defined]
