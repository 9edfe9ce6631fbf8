"""The part of the agent that runs a job which the user watches: processes, output, exit codes.

A node either starts each rank itself, or one torchrun that starts them. Then each rank first
connects its streams to a socket of the agent, so that lines of different ranks stay apart; where
it cannot, they come as torchrun's.

Operations: `script` {user, folders, strict, path} says whether the user can read a script there,
`launch` {python, user, folders, strict, torchrun, processes: [{rank, argv, env}], leash}, with the
`runtime` in which they run if there is one, `keep` {}, `stacks` {}, `finish` {grace}. `rank` is
null for torchrun, which is given the name of the agent's socket in its environment. Events:
{"rank": 3, "what": "lines", …}, "started", "closed", "state" and "exit", with times by this node's
clocks.
"""

import os
import signal
import socket
import struct
import subprocess
import time

from clusterprep.remote.agent.children import (
    LEASH,
    PATH,
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
from clusterprep.remote.agent.printed import OutputStream
from clusterprep.remote.agent.processes import (
    drain,
    identified,
    is_alive,
    process_stat,
    send_signal,
)

WAY = "CLUSTERPREP_WAY"  # the name of the agent's socket
BEGIN = "CLUSTERPREP_BEGIN"  # the arguments that the command begins with, in JSON
HEAD = 256  # bytes of the first line of a connection
STREAMS = {1: "out", 2: "err"}
# Seconds to look for a script, which may lie on a file server that does not answer. The agent says
# nothing meanwhile, and after five seconds of silence it counts as lost.
SCRIPT_LIMIT = 3.0
# Exit codes of FIND_SCRIPT by what they mean.
SCRIPT_STATES = {0: "there", 3: "missing", 4: "unreadable"}
FIND_SCRIPT = 'test -e "$1" || exit 3; test -f "$1" && test -r "$1" || exit 4'

# Runs in the job's python before torchrun's worker becomes the user's program: its streams go to
# the agent, and it ends with torchrun, also where that is killed. Afterwards no process and no
# variable of it remains. torchrun shows the first argument behind it as the name of the program,
# so that the user's own comes first.
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

    def __init__(self, group, number, process, pipes):
        Child.__init__(self, group, number, process)
        self._pipes = pipes  # file descriptor -> stream
        for pipe, stream in pipes.items():
            group.agent.watch(pipe, stream.hear)

    def feed(self):
        closed = [stream.closed_at for stream in self._pipes.values()]
        if self.silent_since is None and None not in closed:
            self.silent_since = max(closed)

    def hear_the_rest(self):
        for pipe, stream in self._pipes.items():
            if stream.closed_at is None:
                drain(pipe, stream.hear)

    def ask_to_end(self):
        if getattr(self.process, "is_inside", False):
            self.process.signal(signal.SIGTERM)
            return
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            os.killpg(self.process.pid, signal.SIGCONT)  # a stopped process then gets SIGTERM
        except OSError:
            pass

    def close(self):
        for pipe, stream in self._pipes.items():
            stream.end()
            self.group.agent.unwatch(pipe)
            os.close(pipe)


class Worker(object):
    """A rank that torchrun started, as far as its own connections tell."""

    def __init__(self, rank, pid):
        self.rank, self.pid, self.streams = rank, pid, {}
        self.process = identified(pid)

    def is_closed(self):
        return all(stream.closed_at for stream in self.streams.values())


class Job(ProcessGroup):
    """All processes of this node, and the ranks that they start."""

    def __init__(self, agent, mark, leash, uid):
        self._uid = uid
        self._listener = None
        self._connections = {}  # file descriptor -> socket
        self.workers = {}
        ProcessGroup.__init__(self, agent, mark, leash)

    def open_listener(self):
        """Open the socket that ranks connect their streams to. Returns its name."""
        name = "clusterprep-%s" % self.mark
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + name)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        return name

    def poll(self, now):
        self._accept()
        ProcessGroup.poll(self, now)

    def _accept(self):
        """Accept all waiting connections of root and of the job's user, and close any other."""
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("3i", peer)
            if uid not in (0, self._uid):
                connection.close()
                continue
            fd = connection.fileno()
            self._connections[fd] = connection
            self.agent.watch(fd, Arriving(self, fd, pid).hear)

    def arrived(self, rank, stream_number, pid, data, fd):
        """Watch a connection whose rank and stream are known now. `data` came behind its head."""
        worker = self.workers.get(rank)
        if worker is None or worker.pid != pid:
            worker = self.workers[rank] = Worker(rank, pid)
            self.tell("started", rank, fields={"pid": pid})
        stream = OutputStream(self, rank, STREAMS.get(stream_number, "out"))
        worker.streams[fd] = stream

        def hear(data):
            stream.hear(data)
            if not data and worker.is_closed():
                self.tell("closed", rank, fields={"pid": pid})

        self.agent.watch(fd, hear)
        if data:
            stream.hear(data)

    def pids(self):
        """Return {rank: pid} of the ranks that are known."""
        pids = {}
        for child in self.children:
            if child.number is not None:
                pids[child.number] = child.pid
        for worker in self.workers.values():
            pids[worker.rank] = worker.pid
        return pids

    def process(self, rank):
        """Return the process of a rank that is known, as `identified` gave it when it began."""
        for worker in self.workers.values():
            if worker.rank == rank:
                return worker.process
        return identified(self.pids()[rank])  # of a child, whose number stays its own

    def close(self):
        """Read the last lines of ranks first: later they would be lost."""
        for worker in self.workers.values():
            for fd, stream in worker.streams.items():
                if stream.closed_at is None:
                    drain(fd, stream.hear)
                    stream.end()
        ProcessGroup.close(self)
        for fd, connection in self._connections.items():
            self.agent.unwatch(fd)
            connection.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class Arriving(object):
    """A connection whose first line has not come yet: mark, rank, stream and pid.

    A process that does not know the mark is none of this job.
    """

    def __init__(self, job, fd, pid):
        self._job, self._fd, self._pid, self._head = job, fd, pid, b""

    def hear(self, data):
        self._head += data
        line, end, rest = self._head.partition(b"\n")
        if not end and data and len(line) < HEAD:
            return
        fields = line.decode("ascii", "replace").split()
        if not end or not self._is_valid(fields):
            self._job.agent.unwatch(self._fd)
            return
        _, rank, stream_number, _ = fields
        # The pid is the kernel's, not that of the line.
        self._job.arrived(
            int(rank),
            int(stream_number),
            self._pid,
            rest,
            self._fd,
        )

    def _is_valid(self, fields):
        if len(fields) != 4:
            return False
        mark, rank, stream_number, _ = fields
        return mark == self._job.mark and (rank + stream_number).isdigit()


# ---------------------------------------------------------------- the start


def spawn(job, account, request, entry, socket_name):
    """Start one process. Raises OSError or SubprocessError if the kernel refuses."""
    out, out_sink = os.pipe()
    err, err_sink = os.pipe()
    given = entry["env"]
    if socket_name:
        given = dict(given, **{WAY: socket_name})
    try:
        argv, env = command_of(account, request, entry["argv"], given, job.mark)
        process = popen(
            account,
            argv,
            env,
            stdout=out_sink,
            stderr=err_sink,
        )
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    finally:
        os.close(out_sink)
        os.close(err_sink)
    rank = entry["rank"]
    pipes = {
        out: OutputStream(job, rank, "out"),
        err: OutputStream(job, rank, "err"),
    }
    job.children.append(Process(job, rank, process, pipes))
    job.tell("spawned", rank, fields={"pid": process.pid})


def spawn_inside(job, request, entry, socket_name):
    """Have one process started in the container of the job's crew."""
    out, out_sink = os.pipe()
    err, err_sink = os.pipe()
    given = entry["env"]
    if socket_name:
        given = dict(given, **{WAY: socket_name})
    rank = entry["rank"]
    process = job.crew.start(
        entry["argv"],
        environment_inside(given),
        request["folders"],
        {"out": out_sink, "err": err_sink},
    )
    pipes = {
        out: OutputStream(job, rank, "out"),
        err: OutputStream(job, rank, "err"),
    }
    job.children.append(Process(job, rank, process, pipes))
    job.tell("spawned", rank, fields={"pid": process.pid})


def spawn_all(job, account, request, socket_name):
    """Start all processes. Returns the folder in which the first works, empty if it is not known.

    The process writes the folder to a pipe: the kernel knows none of a process that has ended.
    """
    source, sink = os.pipe()
    account.folder_fd = sink
    with os.fdopen(source, "rb") as folder:
        try:
            for entry in request["processes"]:
                spawn(
                    job,
                    account,
                    request,
                    entry,
                    socket_name,
                )
                account.folder_fd = None
        finally:
            os.close(sink)
        return os.fsdecode(folder.read())


def find_script(account, path):
    """Return whether the user can read a script, and the folder where it was looked for.

    "" stands for what could not be learned. Raises OSError or SubprocessError.
    """
    source, sink = os.pipe()
    account.folder_fd = sink
    with os.fdopen(source, "rb") as folder:
        try:
            process = popen(account, ["/bin/sh", "-c", FIND_SCRIPT, "sh", path], {"PATH": PATH})
        finally:
            os.close(sink)
        try:
            code = process.wait(SCRIPT_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return "", ""
        return SCRIPT_STATES.get(code, ""), os.fsdecode(folder.read())


class Jobs(object):
    """The operations of this part, and the one job that can run at a time."""

    def __init__(self):
        self._job = None

    def launch(self, agent, request):
        if self._running():
            return {
                "no": "busy",
                "why": "processes of an earlier launch are still running",
            }
        try:
            account = UserAccount(request["user"])
        except (OSError, KeyError) as error:
            return start_error(error, request)
        folders = tuple(request["folders"])
        if not request["strict"]:
            folders += account.folders
        account.folders = folders
        job = self._job = Job(agent, mark_of(agent), request.get("leash", LEASH), account.uid)
        try:
            socket_name = job.open_listener() if request["torchrun"] else ""
            crew = crew_of(job, account, request, self._answer_launch(agent, request, account))
            if crew is not None:
                crew.begin(popen, client_environment(account), account)
                for entry in request["processes"]:
                    spawn_inside(job, request, entry, socket_name)
                return None
            folder = spawn_all(job, account, request, socket_name)
        except (OSError, KeyError, ImportError, subprocess.SubprocessError) as error:
            job.begin_stop(time.monotonic())  # those that did start
            return start_error(error, request)
        return self._started(request, account, folder)

    def _started(self, request, account, folder):
        """Return the answer to a launch whose first process works in a folder."""
        if request["strict"]:
            wanted = request["folders"][0]
            if folder != os.path.realpath(wanted):
                self._job.begin_stop(time.monotonic())
                return {
                    "no": "no_folder",
                    "why": "%s cannot enter %s" % (account.name, wanted),
                }
        return {
            "folder": folder,
            "user": account.name,
        }

    def _answer_launch(self, agent, request, account):
        """Return what answers a launch in a container, once it is known."""

        def answer(problem):
            if problem is None:
                folder = self._job.crew.folder
                agent.answer(request, **self._started(request, account, folder))
                return
            reason, why = problem
            self._job.begin_stop(time.monotonic())
            agent.answer(request, no=reason, why=why)

        return answer

    def script(self, agent, request):
        try:
            account = UserAccount(request["user"])
            folders = tuple(request["folders"])
            account.folders = folders if request["strict"] else folders + account.folders
            state, folder = find_script(account, request["path"])
        except (OSError, KeyError, ImportError, subprocess.SubprocessError):
            return {"script": "", "folder": ""}  # `launch` says why nothing can be started
        if request["strict"] and folder != os.path.realpath(request["folders"][0]):
            state = ""  # the same
        return {"script": state, "folder": folder}

    def _running(self):
        return self._job is not None and bool(self._job.children)

    def keep(self, agent, request):
        if self._job:
            self._job.held = time.monotonic()
        return {}

    def stacks(self, agent, request):
        """Have every rank print its Python stack: the fault handler does so at SIGABRT.

        That ends the rank. No core is written: of a job on GPUs that would take minutes.
        """
        states = {}
        pids = self._job.pids() if self._job else {}
        for rank, pid in sorted(pids.items()):
            letter, _ = process_stat(pid)
            states[str(rank)] = letter
            if letter not in "TtZX":
                abort(self._job.process(rank))
        return {"states": states}

    def finish(self, agent, request):
        if not self._running():
            return {"left": []}
        self._job.begin_stop(time.monotonic(), request, request.get("grace", 0.0))
        return None


def abort(process):
    pid, _ = process
    if is_alive(process):
        prevent_core(pid)
    send_signal(process, signal.SIGABRT)


def prevent_core(pid):
    """Set the limit of core files to one byte.

    A core file is larger than that, and for a core that is piped to a program the kernel takes
    this value as no core at all.
    """
    try:
        import resource

        hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
        soft = 1 if hard < 0 else min(1, hard)  # -1 is no limit
        resource.prlimit(pid, resource.RLIMIT_CORE, (soft, hard))
    except (ImportError, OSError, ValueError):
        pass


def install(agent):
    jobs = Jobs()
    agent.ops.update(
        script=jobs.script,
        launch=jobs.launch,
        keep=jobs.keep,
        stacks=jobs.stacks,
        finish=jobs.finish,
    )
