"""The part of the agent that runs a job which somebody sits beside: its processes, what they print, how they end.

A node either starts each rank itself, or one torchrun that starts them. Then each rank first connects its streams to a
socket of the agent, so that lines of different ranks stay apart; where it cannot, they come as torchrun's.

Operations: `launch` {python, user, folders, strict, torchrun, processes: [{rank, argv, env}], leash}, `keep` {},
`stacks` {}, `finish` {grace}. `rank` is null for torchrun, which is given the way to the agent in its environment.
Events: {"rank": 3, "what": "lines", …}, "started", "closed", "state" and "exit", with times by this node's clocks.
"""

import os
import signal
import socket
import struct
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
from clusterprep.remote.agent.printed import OutputStream
from clusterprep.remote.agent.processes import drain, process_stat

WAY, BEGIN = (
    "CLUSTERPREP_WAY",
    "CLUSTERPREP_BEGIN",
)  # the name of the socket; the words that the command begins with
HEAD = 256  # bytes of the first line of a connection
STREAMS = {1: "out", 2: "err"}

# Runs in the job's python before torchrun's worker becomes the user's program: its streams go to the agent, and it ends
# with torchrun, also where that is killed. No process stays of it, and no variable. torchrun shows the first word
# behind it as the name of the program, so that the user's own comes first.
BEFORE = (
    "import json,os,socket,sys\n"
    "place,begin=[os.environ.pop(name,'') for name in ('CLUSTERPREP_WAY','CLUSTERPREP_BEGIN')]\n"
    "argv=json.loads(begin or '[]')+sys.argv[1:]\n"
    "try:\n"
    " import ctypes\n"
    " ctypes.CDLL(None).prctl(1,9)\n"
    "except Exception:\n"
    " pass\n"
    "for stream in (1,2):\n"
    " try:\n"
    "  way=socket.socket(socket.AF_UNIX)\n"
    "  way.connect('\\0'+place)\n"
    "  head=os.environ['CLUSTERPREP_TRIAL'],os.environ['RANK'],stream,os.getpid()\n"
    "  way.sendall(('%s %s %d %d\\n'%head).encode())\n"
    "  os.dup2(way.fileno(),stream)\n"
    " except (OSError,KeyError):\n"
    "  pass\n"
    "os.execvp(argv[0],argv)\n"
)


class Process(Child):
    """One process that the agent started: a rank, or the node's torchrun."""

    def __init__(self, company, number, process, pipes):
        Child.__init__(self, company, number, process)
        self._pipes = pipes  # file descriptor -> stream
        for pipe, stream in pipes.items():
            company.agent.watch(pipe, stream.hear)

    def feed(self):
        closed = [stream.closed_at for stream in self._pipes.values()]
        if self.silent_since is None and None not in closed:
            self.silent_since = max(closed)

    def hear_the_rest(self):
        for pipe, stream in self._pipes.items():
            if stream.closed_at is None:
                drain(pipe, stream.hear)

    def ask_to_end(self):
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            os.killpg(self.process.pid, signal.SIGCONT)  # one that is stopped hears it then
        except OSError:
            pass

    def close(self):
        for pipe, stream in self._pipes.items():
            stream.end()
            self.company.agent.unwatch(pipe)
            os.close(pipe)


class Worker(object):
    """A rank that torchrun started, as far as its own connections tell."""

    def __init__(self, rank, pid):
        self.rank, self.pid, self.streams = rank, pid, {}


class Job(Company):
    """All processes of this node, and the ranks that they start."""

    def __init__(self, agent, mark, leash, uid):
        self._uid = uid
        self._door = self._ways = None
        self.workers = {}
        Company.__init__(self, agent, mark, leash)

    def open_door(self):
        """The socket that ranks connect their streams to; its name."""
        place = "clusterprep-%s" % self.mark
        self._door, self._ways = socket.socket(socket.AF_UNIX), {}
        self._door.bind("\0" + place)
        self._door.listen(1024)
        self._door.setblocking(False)
        return place

    def poll(self, now):
        self._accept()
        Company.poll(self, now)

    def _accept(self):
        while self._door is not None:
            try:
                way = self._door.accept()[0]
            except OSError:
                return
            pid, uid, _ = struct.unpack(
                "3i", way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if uid in (0, self._uid):
                self._ways[way.fileno()] = way
                self.agent.watch(way.fileno(), Arriving(self, way, pid).hear)
            else:
                way.close()

    def arrived(self, rank, stream, pid, words, way):
        """A rank has said whose stream a connection is."""
        worker = self.workers.get(rank)
        if worker is None or worker.pid != pid:
            worker = self.workers[rank] = Worker(rank, pid)
            self.tell("started", rank, said={"pid": pid})
        known = worker.streams[way.fileno()] = OutputStream(self, rank, STREAMS.get(stream, "out"))

        def hear(data):
            known.hear(data)
            if not data and all(other.closed_at for other in worker.streams.values()):
                self.tell("closed", rank, said={"pid": pid})

        self.agent.watch(way.fileno(), hear)
        if words:
            known.hear(words)

    def pids(self):
        """Rank -> its process, of those that are known."""
        found = dict(
            (child.number, child.pid) for child in self.children if child.number is not None
        )
        found.update((worker.rank, worker.pid) for worker in self.workers.values())
        return found

    def close(self):
        """The last words of ranks first: nobody listens afterwards."""
        for worker in self.workers.values():
            for way, stream in worker.streams.items():
                if stream.closed_at is None:
                    drain(way, stream.hear)
                    stream.end()
        Company.close(self)
        for number, way in (self._ways or {}).items():
            self.agent.unwatch(number)
            way.close()
        if self._door is not None:
            self._door.close()
            self._door = None


class Arriving(object):
    """A connection whose first line has not come yet. Who does not know the mark is no process of ours."""

    def __init__(self, job, way, pid):
        self._job, self._way, self._pid, self._head = job, way, pid, b""

    def hear(self, data):
        self._head += data
        line, end, rest = self._head.partition(b"\n")
        if not end and data and len(line) < HEAD:
            return
        words = line.decode("ascii", "replace").split()
        if (
            not end
            or len(words) != 4
            or words[0] != self._job.mark
            or not (words[1] + words[2]).isdigit()
        ):
            self._job.agent.unwatch(self._way.fileno())
            return
        self._job.arrived(int(words[1]), int(words[2]), self._pid, rest, self._way)


# ---------------------------------------------------------------- the start


def spawn(job, account, request, entry, place):
    """Start one process; raises OSError or SubprocessError when the kernel refuses."""
    out, printed = os.pipe()
    err, complained = os.pipe()
    given = dict(entry["env"], **{WAY: place}) if place else entry["env"]
    try:
        env = environment(account, request["python"], given, job.mark)
        process = popen(account, entry["argv"], env, stdout=printed, stderr=complained)
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    finally:
        os.close(printed)
        os.close(complained)
    rank = entry["rank"]
    job.children.append(
        Process(
            job,
            rank,
            process,
            {out: OutputStream(job, rank, "out"), err: OutputStream(job, rank, "err")},
        )
    )
    job.tell("spawned", rank, said={"pid": process.pid})


def spawn_all(job, account, request, place):
    """Start all processes of the request. Returns the folder in which the first works, empty where that is not known.

    It tells the folder itself: of a process that has ended meanwhile the kernel knows none any more.
    """
    reading, told = os.pipe()
    account.told = told
    with os.fdopen(reading, "rb") as heard:
        try:
            for entry in request["processes"]:
                spawn(job, account, request, entry, place)
                account.told = None
        finally:
            os.close(told)
        return os.fsdecode(heard.read())


class Jobs(object):
    """The operations of this part, and the one job that can run at a time."""

    def __init__(self):
        self._job = None

    def launch(self, agent, request):
        if self._running():
            return {"no": "busy", "why": "processes of an earlier launch are still running"}
        try:
            account = UserAccount(request["user"])
        except (OSError, KeyError) as error:
            return refusal(error, request)
        account.folders = tuple(request["folders"]) + (() if request["strict"] else account.folders)
        job = self._job = Job(agent, mark_of(agent), request.get("leash", LEASH), account.uid)
        try:
            place = job.open_door() if request["torchrun"] else ""
            folder = spawn_all(job, account, request, place)
        except (OSError, KeyError, ImportError, subprocess.SubprocessError) as error:
            job.begin_stop(time.monotonic())  # those that did start
            return refusal(error, request)
        if request["strict"] and folder != os.path.realpath(request["folders"][0]):
            job.begin_stop(time.monotonic())
            return {
                "no": "no_folder",
                "why": "%s cannot enter %s" % (account.name, request["folders"][0]),
            }
        return {"folder": folder, "user": account.name}

    def _running(self):
        return self._job is not None and bool(self._job.children)

    def keep(self, agent, request):
        if self._job:
            self._job.held = time.monotonic()
        return {}

    def stacks(self, agent, request):
        """Have every rank that runs say where it is: Python's fault handler prints that at SIGABRT, which ends it.

        No core is written of it: of a job on GPUs that would take minutes.
        """
        states = {}
        for rank, pid in sorted((self._job.pids() if self._job else {}).items()):
            states[str(rank)] = letter = process_stat(pid)[0]
            if letter not in "TtZX":
                without_core(pid)
                try:
                    os.kill(pid, signal.SIGABRT)
                except OSError:
                    pass
        return {"states": states}

    def finish(self, agent, request):
        if not self._running():
            return {"left": []}
        self._job.begin_stop(time.monotonic(), request, request.get("grace", 0.0))
        return None


def without_core(pid):
    """One byte is less than any core has, and for a core that goes to a program the kernel takes it for none."""
    try:
        import resource

        hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
        resource.prlimit(pid, resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))
    except (ImportError, OSError, ValueError):
        pass


def install(agent):
    jobs = Jobs()
    agent.ops.update(launch=jobs.launch, keep=jobs.keep, stacks=jobs.stacks, finish=jobs.finish)
