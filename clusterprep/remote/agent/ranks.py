"""The part of the agent that runs ranks: it starts them as the job's user, watches them and leaves none behind.

What decides who is to blame is known to the kernel and not to the job: how a process ended and when, whether it is
stopped, whether it is stuck in a driver. Ranks report on a socket of their own, apart from what they print.

Operations: `start` {python, user, source, ranks: [{rank, env}], config, leash}, `go` {tasks}, `part` {}, `hold` {},
`sockets` {}, `stop` {grace}. A task per rank, in the order of the start: {rank, world, address, port, steps, timeout}.
Ranks that are done with one and have parted may be given another, under another number.
Events: {"rank": 3, "what": "exit", "mono": …, "wall": …, …}, both times by this node's clocks.
"""

import json
import os
import socket
import subprocess
import time

from clusterprep.remote.agent.children import (
    LEASH,
    Child,
    Company,
    UserAccount,
    environment,
    mark_of,
    popen,
    refusal,
)
from clusterprep.remote.agent.nccl_lines import Output
from clusterprep.remote.agent.processes import drain, process_stat
from clusterprep.remote.agent.sockets import look as look_at_sockets

MAX_LINE = 16384  # bytes of one report of a rank
MAX_REPORTS = 10000  # of one rank; more is not our program
MAX_SOURCE = 65536  # bytes; more is not our program

# Runs in the job's python: reads nine digits and so many bytes of source from the socket, and runs them. The empty
# entry of sys.path is the working folder, where a file of the user's could be taken for a module of Python's. The
# string at its head is what `ps` and `pgrep -f` show.
BOOT = (
    "'clusterprep-rank %d'\n"
    "import os,sys\n"
    "sys.path[:]=[p for p in sys.path if p]\n"
    "f=int(sys.argv[1]);s=b''\n"
    "n=int(os.read(f,9))\n"
    "while len(s)<n: s+=os.read(f,n-len(s)) or sys.exit(1)\n"
    "exec(compile(s,'clusterprep-rank','exec'),{'__name__':'clusterprep.rank','FD':f})"
)


class RankProcess(Child):
    """One started rank: its process, what it printed last, what it said, how it ended."""

    def __init__(self, trial, number, process, reports, output):
        Child.__init__(self, trial, number, process)
        self.reports, self.output = reports, output
        self.printed, self._line, self._unsent = Output(), b"", b""
        self._count = 0

    def hear_report(self, data):
        if not data:
            self.silent_since = time.monotonic()
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()[:MAX_LINE]
        for line in lines:
            self._pass_on(line)

    def _pass_on(self, line):
        self._count += 1
        try:
            said = json.loads(line[:MAX_LINE].decode("ascii"))
            what, moment = str(said.pop("what")), said.pop("t", None)
        except (ValueError, KeyError, AttributeError, TypeError):
            return
        if self._count > MAX_REPORTS:
            return
        if what == "started" and process_stat(said.get("pid") or 0)[1] == self.process.pid:
            self.pid = said["pid"]
        self.company.tell(what, self.number, moment, said=said)

    def say(self, words):
        """Send something to the rank, as much of it at once as it takes: nobody here may wait for it."""
        self._unsent += words
        self.feed()

    def feed(self):
        try:
            while self._unsent:
                self._unsent = self._unsent[self.reports.send(self._unsent, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass  # it is read as the rank comes along
        except OSError:
            self._unsent = b""  # it is gone; how it ended says more

    def hear_the_rest(self):
        drain(self.output, self.printed.hear)
        self.tell_of_nccl()

    def last_words(self):
        return {"output": self.printed.tail.decode("utf-8", "replace")}

    def ask_to_end(self):
        self.say(b"end\n")

    def tell_of_nccl(self):
        """How NCCL said that it connects; told once, when no more can come."""
        self.printed.end()
        if self.printed.lines:
            self.company.tell(
                "nccl", self.number, said={"lines": self.printed.lines, "cut": self.printed.cut}
            )

    def close(self):
        if not self.ended:
            self.tell_of_nccl()
        self.company.agent.unwatch(self.output)
        self.company.agent.unwatch(self.reports.fileno())
        os.close(self.output)
        self.reports.close()


class Trial(Company):
    """All ranks of this node, from `start` to `stop`."""

    def add(self, number, process, reports, output):
        rank = RankProcess(self, number, process, reports, output)
        self.children.append(rank)
        self.agent.watch(output, rank.printed.hear)
        self.agent.watch(reports.fileno(), rank.hear_report)
        self.tell("spawned", number, said={"pid": process.pid})
        return rank


# ---------------------------------------------------------------- the start


def spawn(trial, account, request, entry):
    """Start one rank; raises OSError or SubprocessError when the kernel refuses."""
    ours, theirs = socket.socketpair()
    output, printed = os.pipe()
    source = request["source"].encode("utf-8") + b"\nmain(FD)\n"
    config = json.dumps(request["config"]).encode("ascii") + b"\n"
    try:
        process = popen(
            account,
            [request["python"], "-c", BOOT % entry["rank"], str(theirs.fileno())],
            environment(account, request["python"], entry["env"], trial.mark),
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
        )
    except BaseException:
        ours.close()
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(printed)
    trial.add(entry["rank"], process, ours, output).say(b"%09d" % len(source) + source + config)


class Ranks(object):
    """The operations of this part, and the one trial that can run at a time."""

    def __init__(self):
        self._trial = None

    def start(self, agent, request):
        if self._running():
            return {"no": "busy", "why": "ranks of an earlier trial are still running"}
        if len(request["source"]) > MAX_SOURCE:
            return {
                "no": "agent_error",
                "why": "the program of the ranks has more than %d bytes" % MAX_SOURCE,
            }
        trial = self._trial = Trial(agent, mark_of(agent), request.get("leash", LEASH))
        try:
            account = UserAccount(request["user"])
            for entry in request["ranks"]:
                spawn(trial, account, request, entry)
        except (OSError, KeyError, ImportError, subprocess.SubprocessError) as error:
            trial.begin_stop(time.monotonic())  # those that did start
            return refusal(error, request)
        return {"pids": [rank.process.pid for rank in trial.children]}

    def _running(self):
        return self._trial is not None and bool(self._trial.children)

    def go(self, agent, request):
        ranks = self._trial.children if self._trial else []
        for rank, task in zip(ranks, request["tasks"]):
            rank.number = task["rank"]
            rank.say(json.dumps(task).encode("ascii") + b"\n")
        return {"left": sum(not rank.ended for rank in ranks)}

    def part(self, agent, request):
        for rank in self._trial.children if self._trial else ():
            rank.say(b"part\n")
        return {}

    def hold(self, agent, request):
        if self._trial:
            self._trial.held = time.monotonic()
        return {}

    def sockets(self, agent, request):
        return look_at_sockets(
            {rank.number: rank.pid for rank in (self._trial.children if self._trial else ())}
        )

    def stop(self, agent, request):
        if not self._running():
            return {"left": []}
        self._trial.begin_stop(time.monotonic(), request, request.get("grace", 0.0))
        return None


def install(agent):
    ranks = Ranks()
    agent.ops.update(
        start=ranks.start,
        go=ranks.go,
        part=ranks.part,
        hold=ranks.hold,
        sockets=ranks.sockets,
        stop=ranks.stop,
    )
