"""The container of a job: who asks the engine to remove it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.remote.agent.crew import Crew

IGNORES_ITS_INPUT = [sys.executable, "-c", "import time; time.sleep(60)"]


class Started:
    """Starts programs in the place of an engine, and notes as which user, and with what."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, list[str], dict[str, str]]] = []

    def popen(self, account: str, argv: list[str], env: dict[str, str], **streams: Any) -> Any:
        self.commands.append((account, argv, env))
        is_removal = argv[1] == "rm"
        return subprocess.Popen(["true"] if is_removal else IGNORES_ITS_INPUT, **streams)


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_container_that_does_not_end_is_removed_as_the_user_who_has_it(engine: str) -> None:
    """Podman without root knows no container of another user, so root would remove none."""
    agent: Any = SimpleNamespace(watch=lambda *_: None, unwatch=lambda *_: None)
    container = {"engine": engine, "image": "job:1", "options": []}
    crew = Crew(agent, container, "python3", "mark", lambda problem: None)
    started = Started()
    env = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    crew.begin(started.popen, env, "trainer")
    crew.end()
    crew.close()
    assert (crew.client.wait(10) != 0, crew.remover.wait(10)) == (True, 0)
    (first, second) = started.commands
    assert first[1][:2] == [engine, "run"]
    assert second == ("trainer", [engine, "rm", "--force", crew.name], env)


def test_an_engine_that_is_gone_meanwhile_ends_nothing_else() -> None:
    agent: Any = SimpleNamespace(watch=lambda *_: None, unwatch=lambda *_: None)
    container = {"engine": "podman", "image": "job:1", "options": []}
    crew = Crew(agent, container, "python3", "mark", lambda problem: None)

    def popen(account: str, argv: list[str], env: dict[str, str], **streams: Any) -> Any:
        if argv[1] == "rm":
            raise FileNotFoundError(2, "No such file or directory", argv[0])
        return subprocess.Popen(IGNORES_ITS_INPUT, **streams)

    crew.begin(popen, {}, "trainer")
    crew.end()
    crew.close()
    assert crew.client.wait(10) != 0
