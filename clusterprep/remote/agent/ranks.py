"""The part of the agent that runs ranks: it starts, watches and ends them as the job's user.

The kernel knows what a job cannot report about itself: how a process ended and when, whether it is
stopped, whether it is stuck in a driver. Ranks report on a socket of their own, apart from what
they print.

Operations: `start` {python, user, source, ranks: [{rank, env}], config, leash}, with the `runtime`
in which python is if there is one, `go` {tasks},
`part` {}, `hold` {}, `sockets` {}, `stop` {grace}. `go` has a task for each rank, in the order of
the start: {rank, world, address, port, steps, timeout}. Ranks that have finished a task and parted
may be given another one, under another number. Events: {"rank": 3, "what": "exit", "mono": …,
"wall": …, …}, both times by this node's clocks.
"""

import json
import os
import socket
import subprocess
import time

from clusterprep.remote.agent.children import (
    LEASH,
    Child,
    ProcessGroup,
    UserAccount,
    client_environment,
    command_of,
    crew_of,
    environment_inside,
    mark_of,
    popen,
    start_error,
)
from clusterprep.remote.agent.light import readable
from clusterprep.remote.agent.nccl_lines import Output
from clusterprep.remote.agent.processes import drain, process_stat, processor_ticks
from clusterprep.remote.agent.sockets import look as look_at_sockets

MAX_LINE = 16384  # bytes of one report of a rank
MAX_REPORTS = 10000  # of one rank; more is not our program
# Seconds between two signs that a rank which is not ready is at work, and the processor time that
# it must have used since: a process that waits for a dead server uses none.
WORK_SIGN, WORK_TICKS = 5.0, 5
MAX_SOURCE = 65536  # bytes; more is not our program

# Runs in the job's python: reads nine digits and so many bytes of source from the socket, and runs
# them. The empty entry of sys.path is the working folder, where a file of the user's could be taken
# for a module of Python's. The string at its head is what `ps` and `pgrep -f` show.
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
    """One started rank: its process, the end of its output, its reports, and how it ended."""

    def __init__(self, trial, number, process, reports, output):
        Child.__init__(self, trial, number, process)
        self.reports = reports  # our end of the socket
        self.output = output  # descriptor of the pipe with what it prints
        self.printed = Output()
        self._line = b""  # the start of a report whose end has not come yet
        self._unsent = b""
        self._report_count = 0
        self._is_ready = False
        self._ticks = 0  # of the processor, when the last sign was given
        self._signed = time.monotonic()

    def look(self, now):
        """Notice what becomes of the process, and that one which is not ready is at work."""
        Child.look(self, now)
        if self.ended or self._is_ready or now - self._signed < WORK_SIGN:
            return
        self._signed = now
        ticks = processor_ticks(self.pid)
        if ticks - self._ticks >= WORK_TICKS:
            self.group.tell("working", self.number)
        self._ticks = ticks

    def hear_report(self, data):
        """Take data from the rank's socket and send on every whole report."""
        if not data:
            self.silent_since = time.monotonic()
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()[:MAX_LINE]
        for line in lines:
            self._pass_on(line)

    def _pass_on(self, line):
        """Send one report of the rank as an event. What no rank of ours writes is dropped."""
        self._report_count += 1
        try:
            report = json.loads(line[:MAX_LINE].decode("ascii"))
            what = str(report.pop("what"))
            moment = report.pop("t", None)
        except (ValueError, KeyError, AttributeError, TypeError):
            return
        if self._report_count > MAX_REPORTS:
            return
        if what == "started":
            self._take_pid(report)
        elif what == "ready":
            self._is_ready = True
        self.group.tell(what, self.number, moment, fields=report)

    def _take_pid(self, report):
        """Use the reported pid if that process is in our child's session, forked by a wrapper."""
        if getattr(self.process, "is_inside", False):
            return  # the container counts processes in its own way
        _, session = process_stat(report.get("pid") or 0)
        if session == self.process.pid:
            self.pid = report["pid"]

    def say(self, data):
        """Send bytes to the rank, as much at once as it takes: the agent must not wait for it."""
        self._unsent += data
        self.feed()

    def feed(self):
        """Send more of what the rank has not taken yet."""
        try:
            while self._unsent:
                sent = self.reports.send(self._unsent, socket.MSG_DONTWAIT)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass  # the rank takes the rest later
        except OSError:
            self._unsent = b""  # the rank is gone; its exit says more

    def hear_the_rest(self):
        drain(self.output, self.printed.hear)
        self.tell_of_nccl()

    def last_words(self):
        return {"output": self.printed.tail.decode("utf-8", "replace")}

    def ask_to_end(self):
        self.say(b"end\n")

    def tell_of_nccl(self):
        """Send NCCL's lines about its connections, once no more can come."""
        self.printed.end()
        if self.printed.lines:
            report = {
                "lines": self.printed.lines,
                "cut": self.printed.cut,
            }
            self.group.tell("nccl", self.number, fields=report)

    def close(self):
        if not self.ended:
            self.tell_of_nccl()
        agent = self.group.agent
        agent.unwatch(self.output)
        agent.unwatch(self.reports.fileno())
        os.close(self.output)
        self.reports.close()


class Trial(ProcessGroup):
    """All ranks of this node, from `start` to `stop`."""

    def add(self, number, process, reports, output):
        """Watch a started rank and report that it runs. Returns its RankProcess.

        `reports` is our end of the socket of its reports, `output` that of the pipe of its stdout
        and stderr.
        """
        rank = RankProcess(self, number, process, reports, output)
        self.children.append(rank)
        self.agent.watch(output, rank.printed.hear)
        self.agent.watch(reports.fileno(), rank.hear_report)
        self.tell("spawned", number, fields={"pid": process.pid})
        return rank


# ---------------------------------------------------------------- the start


def spawn(trial, account, request, entry):
    """Start one rank. Raises OSError or SubprocessError if the kernel refuses."""
    number, python = entry["rank"], request["python"]
    ours, theirs = socket.socketpair()
    output, printed = os.pipe()
    try:
        argv = [python, "-c", BOOT % number, str(theirs.fileno())]
        argv, env = command_of(account, request, argv, entry["env"], trial.mark)
        process = popen(
            account,
            argv,
            env,
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
    rank = trial.add(number, process, ours, output)
    rank.say(program(request))


def spawn_inside(trial, request, entry):
    """Have one rank started in the container of the trial's crew."""
    number = entry["rank"]
    ours, theirs = socket.socketpair()
    output, printed = os.pipe()
    argv = [request["python"], "-c", BOOT % number]
    process = trial.crew.start(
        argv,
        environment_inside(entry["env"]),
        streams={"out": printed, "err": os.dup(printed)},
        channel=theirs.detach(),
    )
    rank = trial.add(number, process, ours, output)
    rank.say(program(request))


def program(request):
    """Return the source and the settings of a rank, as BOOT reads them."""
    source = readable(request["source"]).encode("utf-8") + b"\nmain(FD)\n"
    config = json.dumps(readable(request["config"])).encode("ascii") + b"\n"
    return b"%09d" % len(source) + source + config


class Ranks(object):
    """The operations of this part, and the one trial that can run at a time."""

    def __init__(self):
        self._trial = None

    def _ranks(self):
        return self._trial.children if self._trial else []

    def start(self, agent, request):
        if self._ranks():
            return {
                "no": "busy",
                "why": "ranks of an earlier trial are still running",
            }
        if len(request["source"]) > MAX_SOURCE:
            why = "the program of the ranks has more than %d bytes" % MAX_SOURCE
            return {
                "no": "agent_error",
                "why": why,
            }
        leash = request.get("leash", LEASH)
        trial = Trial(agent, mark_of(agent), leash)
        self._trial = trial
        try:
            account = UserAccount(request["user"])
            crew = crew_of(trial, account, request, self._answer_start(agent, request))
            if crew is not None:
                crew.begin(popen, client_environment(account), account)
                for entry in request["ranks"]:
                    spawn_inside(trial, request, entry)
                return None
            for entry in request["ranks"]:
                spawn(trial, account, request, entry)
        except (OSError, KeyError, ImportError, subprocess.SubprocessError) as error:
            trial.begin_stop(time.monotonic())  # for the ranks that did start
            return start_error(error, request)
        return {"pids": [rank.process.pid for rank in trial.children]}

    def _answer_start(self, agent, request):
        """Return what answers the start of ranks in a container, once it is known."""

        def answer(problem):
            if problem is None:
                agent.answer(request, pids=[rank.process.pid for rank in self._ranks()])
                return
            reason, why = problem
            self._trial.begin_stop(time.monotonic())
            agent.answer(request, no=reason, why=why)

        return answer

    def go(self, agent, request):
        ranks = self._ranks()
        for rank, task in zip(ranks, request["tasks"]):
            rank.number = task["rank"]
            rank.say(json.dumps(readable(task)).encode("ascii") + b"\n")
        running = [rank for rank in ranks if not rank.ended]
        return {"left": len(running)}

    def part(self, agent, request):
        for rank in self._ranks():
            rank.say(b"part\n")
        return {}

    def hold(self, agent, request):
        if self._trial:
            self._trial.held = time.monotonic()
        return {}

    def sockets(self, agent, request):
        pids = dict((rank.number, rank.pid) for rank in self._ranks())
        return look_at_sockets(pids)

    def stop(self, agent, request):
        if not self._ranks():
            return {"left": []}
        grace = request.get("grace", 0.0)
        self._trial.begin_stop(time.monotonic(), request, grace)
        return None


def install(agent):
    """Register the operations of this part."""
    ranks = Ranks()
    for name in ("start", "go", "part", "hold", "sockets", "stop"):
        agent.ops[name] = getattr(ranks, name)
