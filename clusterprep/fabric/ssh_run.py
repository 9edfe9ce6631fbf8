"""One program on one node, through Fabric's runner."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterprep.errors import Unreached
from clusterprep.fabric.connection import NodeConnection, new_config, ssh_of
from clusterprep.fabric.fleet import Fleet
from clusterprep.fabric.printed import Hear, Kept, kept_of
from clusterprep.fabric.program import ShellProgram
from clusterprep.fabric.results import Answer, answer_of
from clusterprep.fabric.runner import CONNECTION_ERRORS, ProgramRunner
from clusterprep.model import Node
from clusterprep.remote.transports.sudo import SudoPassword

NO_STATUS = -1  # paramiko's code of a command that ended without one


def starter(
    fleet: Fleet, program_of: Callable[[Node], ShellProgram], hear: Hear | None
) -> Callable[[Node], SshRun]:
    """Return what begins to run a node's program on it."""
    ssh = ssh_of(fleet.transports)
    config = new_config()  # reads files: once is enough

    def begin(node: Node) -> SshRun:
        connection = NodeConnection(node, ssh, fleet.password, config)
        return SshRun(connection, program_of(node), fleet.password(node), kept_of(node.name, hear))

    return begin


class SshRun:
    """A program that Fabric runs on a node. See NodeWork."""

    def __init__(
        self,
        connection: NodeConnection,
        program: ShellProgram,
        secret: SudoPassword | None,
        kept: dict[str, Kept],
    ) -> None:
        self._connection = connection
        self._program = program
        self._secret = secret
        self._kept = kept
        self._closed = False

    def run(self) -> Answer:
        """Return how it ended. Raises Unreached if it could not be started."""
        began = time.monotonic()
        connection = self._connection
        connection.open()
        if self._closed:
            raise Unreached("timed_out", "the time was over before the command was started")
        runner = ProgramRunner(connection, self._program, self._secret, self._kept)
        try:
            # Each option that Fabric's settings could change is given.
            result = runner.run(
                self._program.line,
                hide=True,
                warn=True,
                echo=False,
                dry=False,
                pty=False,
                in_stream=False,
                env={},
                watchers=[],
                timeout=None,
            )
        except CONNECTION_ERRORS as error:
            raise self._lost(error) from error
        code, reason = self._ending(result.exited)
        seconds = time.monotonic() - began
        return answer_of(self._kept, self._secret, code, reason, 0, seconds)

    def close(self) -> None:
        self._closed = True
        self._connection.close()

    def _ending(self, exited: int) -> tuple[int | None, str | None]:
        """Return the exit code, and where there is none why."""
        if exited != NO_STATUS:
            return exited, None
        if self._closed:
            return None, "timed_out"
        return None, "killed" if self._connection.opened_alive else "hung"

    def _lost(self, error: BaseException) -> Unreached:
        if self._closed:
            return Unreached("timed_out", "the time was over before the command was started")
        return Unreached("hung", f"the connection ended: {error or type(error).__name__}")
