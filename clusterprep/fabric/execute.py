"""Run one program on all nodes: by Fabric over SSH, and by the agent elsewhere."""

from __future__ import annotations

import binascii
import contextlib
import time
from collections.abc import Callable, Mapping

from clusterprep.errors import LinkLost, Unreached
from clusterprep.fabric.fleet import Fleet, NodeWork, on_every_node
from clusterprep.fabric.printed import Hear, Kept, kept_of
from clusterprep.fabric.program import ShellProgram
from clusterprep.fabric.results import Answer, Outcome, answer_of
from clusterprep.model import Node
from clusterprep.remote.transports.link import Frame, Link, open_link
from clusterprep.remote.untrusted import require_integer, shortened

STARTING_LIMIT = 10.0  # seconds until the agent says that the command has been started
POLL = 0.5  # seconds
MOST_CODE = 255  # of an exit code; a code below 0 is the number of a signal
PULSE = 5.0  # seconds between signs of life to an agent, which gives up after 30


def run_program(
    fleet: Fleet, program: ShellProgram, hear: Hear | None = None
) -> tuple[dict[str, Outcome], bool]:
    """Run a program on all nodes. Returns as `on_every_node`, with an Answer for each that ran it.

    `hear` gets output as it comes; its end is kept all the same.
    """
    return run_programs(fleet, lambda node: program, hear)


def run_programs(
    fleet: Fleet, program_of: Callable[[Node], ShellProgram], hear: Hear | None = None
) -> tuple[dict[str, Outcome], bool]:
    """Run on each node the program that `program_of` returns for it, else as `run_program`."""
    over_ssh: Callable[[Node], NodeWork] | None = None
    if any(node.transport == "ssh" for node in fleet.nodes):
        from clusterprep.fabric.ssh_run import starter

        over_ssh = starter(fleet, program_of, hear)

    def begin(node: Node) -> NodeWork:
        if node.transport == "ssh" and over_ssh is not None:
            return over_ssh(node)
        return AgentRun(fleet, node, program_of(node), hear)

    return on_every_node(fleet, "run", begin)


class AgentRun:
    """A program that a node's agent runs: locally, or in a step of Slurm."""

    def __init__(self, fleet: Fleet, node: Node, program: ShellProgram, hear: Hear | None) -> None:
        self._fleet = fleet
        self._node = node
        self._program = program
        self._link: Link | None = None
        self._closed = False
        self._kept = kept_of(node.name, hear)

    def run(self) -> Answer:
        """Return how it ended. Raises Unreached if it could not be started."""
        began = time.monotonic()
        transport = self._fleet.transports[self._node.transport]
        link = open_link(transport, self._node, ("look", "output"), self._fleet.password)
        self._link = link
        stdin = binascii.b2a_base64(self._program.stdin, newline=False).decode()
        answer = link.request("exec", STARTING_LIMIT, argv=self._program.argv, stdin=stdin)
        if "no" in answer:
            why = shortened(answer.get("why"))
            raise Unreached("hung", f"the command could not be started: {why}")
        try:
            code, left_out = self._follow(link)
            reason = None
        except LinkLost as lost:
            code, left_out = None, 0
            reason = "timed_out" if self._closed else lost.reason
        if code is not None and code < 0:
            code, reason = None, "killed"
        return self._answer(code, reason, left_out, time.monotonic() - began)

    def _follow(self, link: Link) -> tuple[int, int]:
        """Return the exit code and how many bytes the node left out. Raises LinkLost."""
        pulsed = time.monotonic()
        while True:
            for event in link.poll(POLL):
                if event.get("what") == "ended":
                    return ending_of(event)
                if event.get("what") == "output":
                    take_output(self._kept, event)
            if self._closed:
                raise LinkLost("hung", "the command ended")
            if time.monotonic() - pulsed > PULSE:
                pulsed = time.monotonic()
                link.pulse()
                link.send_waiting()

    def _answer(
        self, code: int | None, reason: str | None, left_out: int, seconds: float
    ) -> Answer:
        secret = self._fleet.password(self._node)
        return answer_of(self._kept, secret, code, reason, left_out, seconds)

    def close(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.close()


def ending_of(event: Frame) -> tuple[int, int]:
    """Return the exit code and how many bytes the node left out. Raises LinkLost for others."""
    try:
        code = require_integer(event.get("code"), -MOST_CODE, MOST_CODE)
        return code, require_integer(event.get("left_out", 0))
    except ValueError as error:
        raise LinkLost("hung", f"the agent did not say how the command ended: {error}") from error


def take_output(kept: Mapping[str, Kept], event: Frame) -> None:
    """Keep a piece of output. What no agent of ours sends is dropped."""
    stream, data = event.get("stream"), event.get("data")
    if not isinstance(stream, str) or not isinstance(data, str) or stream not in kept:
        return
    with contextlib.suppress(ValueError):  # it is no base64
        kept[stream].feed(binascii.a2b_base64(data))
