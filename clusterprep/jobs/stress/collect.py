"""Run the processes of the stress tier through the agent of one node, and collect their reports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.facts.stress import StressResults
from clusterprep.jobs.stress.plan import Round, StressPlan
from clusterprep.jobs.stress.results import results_of
from clusterprep.model import Absent
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.link import Link
from clusterprep.remote.untrusted import shortened

START_LIMIT = 20.0  # seconds for an agent to fork the processes
ANSWER_LIMIT = 5.0
STOP_LIMIT = 8.0  # the agent gives stuck processes two
POLL = 0.2
HOLD = 2.0  # seconds between the requests that keep the processes alive
MOST_REPORTS = 5000  # of a node


def run_stress(link: Link, plan: StressPlan, check: Callable[[], None]) -> StressResults | Absent:
    """Return the results of a node, or the Absent that says why there are none.

    `check` is called a few times a second and may raise. No process is left, whatever happens.
    """
    try:
        return _Run(link, plan, check).run()
    except LinkLost as lost:
        return Absent(lost.reason, shortened(lost.message))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return Absent("garbled", shortened(f"{type(error).__name__}: {error}"))


class _Run:
    """The processes of one node, and what they have said."""

    def __init__(self, link: Link, plan: StressPlan, check: Callable[[], None]) -> None:
        self._link = link
        self._plan = plan
        self._check = check
        self._said: list[dict[str, Any]] = []
        self._ended: set[int] = set()
        self._held = time.monotonic()

    def run(self) -> StressResults | Absent:
        body = self._plan.request(bootstrap.stress_source())
        answer = self._link.request("start", START_LIMIT, **body)
        if "no" in answer:
            return Absent(shortened(answer["no"], 80), shortened(answer.get("why", "")))
        try:
            for part in self._plan.rounds:
                self._run_round(part)
        finally:
            with contextlib.suppress(LinkLost):
                self._link.request("stop", STOP_LIMIT, grace=0.0)
        return results_of(self._plan, self._said)

    def _run_round(self, part: Round) -> None:
        """Have processes run their tests, and wait until all of them are done or have ended."""
        waiting = set(part.tests) - self._ended
        if not waiting:
            return
        self._link.request("go", ANSWER_LIMIT, tasks=self._plan.tasks(part))
        until = time.monotonic() + part.limit
        while waiting - self._ended:
            self._check()
            if time.monotonic() > until:
                self._give_up(waiting - self._ended)
                return
            for frame in self._link.poll(POLL):
                self._note(frame)
                if frame.get("what") == "done":  # only those say so that have had a test
                    waiting.discard(frame["rank"])
            self._hold()

    def _note(self, frame: dict[str, Any]) -> None:
        if "what" not in frame:
            return
        if len(self._said) >= MOST_REPORTS:
            raise LinkLost("garbled", "its processes said more than ours would")
        self._said.append(frame)
        if frame["what"] in ("exit", "unbound", "no_torch"):
            self._ended.add(frame["rank"])

    def _give_up(self, numbers: set[int]) -> None:
        """Note that processes neither answered nor ended."""
        for number in numbers:
            self._said.append({"rank": number, "what": "late"})
            self._ended.add(number)

    def _hold(self) -> None:
        if time.monotonic() - self._held > HOLD:
            self._held = time.monotonic()
            self._link.request("hold", ANSWER_LIMIT)
