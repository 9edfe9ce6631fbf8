"""The reading part of the agent: it answers what it is asked and cannot write.

Raw evidence travels home; only what must be computed on the node is computed here. Reads run in child
processes, one lane for those that are plain files and one each for what may hang, so that a stuck driver
call or a stale mount costs its own limit and nothing else.
"""

import base64
import errno
import glob
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

MAX_TEXT = 256 << 10  # bytes of one file or of a command's output that travel home
MAX_TARGET = 1 << 20  # bytes of a configuration file that we may rewrite
LINGER = 0.5  # seconds that a killed child gets to disappear before it is called stuck


class NoAnswer(Exception):
    """A read that has no value: a reason of the contract, and what was seen."""

    def __init__(self, reason, why=""):
        Exception.__init__(self, reason)
        self.reason, self.why = reason, why


# ---------------------------------------------------------------- readers


def read_file(path):
    """Text of a file, at most MAX_TEXT bytes."""
    with open(path, "rb") as source:
        data = source.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise NoAnswer("truncated", "%s is larger than %d bytes" % (path, MAX_TEXT))
    return data.decode("utf-8", "replace")


def read_files(*patterns):
    """Text of every file that matches the patterns, by path; one that cannot be read is left out."""
    found = {}
    for pattern in patterns:
        for path in sorted(glob.glob(pattern))[:4096]:
            try:
                found[path] = read_file(path).strip()
            except (OSError, NoAnswer):
                continue
    return found


def read_target(path):
    """A file that we may rewrite: bytes, mode, owner; links and devices are named, never followed."""
    import stat

    state = os.lstat(path)
    if not stat.S_ISREG(state.st_mode):
        raise NoAnswer("not_a_file", "%s is a link, folder or device; it is not touched" % path)
    if state.st_size > MAX_TARGET:
        raise NoAnswer("truncated", "%s has %d bytes" % (path, state.st_size))
    with open(path, "rb") as source:
        data = source.read(MAX_TARGET)
    return {
        "data": base64.b64encode(data).decode("ascii"),
        "mode": stat.S_IMODE(state.st_mode),
        "uid": state.st_uid,
        "gid": state.st_gid,
    }


def read_resolve(*names):
    """The IPv4 and IPv6 addresses of each name, as this node's own resolver answers; None where it has none."""
    answers = {}
    for name in names:
        try:
            infos = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.args[0] not in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                raise NoAnswer("timed_out", "%s: %s" % (name, error))
            answers[name] = None
        else:
            answers[name] = sorted(set(info[4][0] for info in infos))
    return answers


def read_own_name():
    """The addresses of this node's own host name, which is what gloo publishes when no interface is set."""
    return read_resolve(socket.gethostname())[socket.gethostname()]


def read_pci(vendor):
    """Addresses, classes and device ids of the PCI functions of one vendor."""
    found = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):
        try:
            if read_file(folder + "/vendor").strip() == vendor:
                found.append({"pci": os.path.basename(folder), "class": read_file(folder + "/class").strip()})
        except OSError:
            continue
    return found


def read_interfaces():
    """Every network interface: what /sys says of it and its addresses from the kernel's own table."""
    addresses = _addresses()
    found = []
    for name in sorted(os.listdir("/sys/class/net")):
        folder = "/sys/class/net/%s/" % name
        row = {"name": name, "physical": os.path.exists(folder + "device"), "bridge": os.path.exists(folder + "bridge")}
        row["master"] = os.path.basename(os.readlink(folder + "master")) if os.path.exists(folder + "master") else None
        for key in ("mtu", "operstate", "type", "flags", "speed", "ifindex", "carrier"):
            try:
                row[key] = read_file(folder + key).strip()
            except OSError:  # speed and carrier of an interface that is down answer EINVAL
                row[key] = None
        row["addresses"] = addresses.get(int(row["ifindex"] or 0), [])
        found.append(row)
    return found


def _addresses():
    # RTM_GETADDR: struct nlmsghdr (16 bytes), struct ifaddrmsg (family, prefixlen, flags, scope, index)
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.settimeout(2.0)
    sock.send(struct.pack("=IHHII", 24, 22, 0x301, 1, 0) + struct.pack("=BBBBI", 0, 0, 0, 0, 0))
    found = {}
    while True:
        data = sock.recv(1 << 17)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (2, 3):  # NLMSG_ERROR, NLMSG_DONE
                sock.close()
                return found
            _address(data[16:length], found)
            data = data[(length + 3) & ~3 :]


def _address(body, found):
    family, prefix, _, scope, index = struct.unpack_from("=BBBBI", body)
    attributes, at = {}, 8
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        attributes[kind] = body[at + 4 : at + length]
        at += (length + 3) & ~3
    raw = attributes.get(2) or attributes.get(1)  # IFA_LOCAL, else IFA_ADDRESS
    if raw and family in (socket.AF_INET, socket.AF_INET6):
        row = {"address": socket.inet_ntop(family, raw), "prefix": prefix, "scope": scope}
        found.setdefault(index, []).append(row)


def read_limits(user):
    """Soft limits of this session, or of a fresh session of `user` when the agent runs as somebody else."""
    import pwd

    if user in (None, pwd.getpwuid(os.geteuid()).pw_name):
        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return {"memlock": None if soft == resource.RLIM_INFINITY else soft, "by": "this session"}
    out = run(["su", "-s", "/bin/sh", user, "-c", "ulimit -l"])["out"].split()
    if len(out) != 1:
        raise NoAnswer("denied", "a session of %s could not be opened" % user)
    return {"memlock": None if out[0] == "unlimited" else int(out[0]) << 10, "by": "su %s" % user}


def read_command(*argv):
    """Exit code and output of a fixed command, in the C locale."""
    return run(list(argv))


def read_job_python(python, user, script):
    """What `script` prints as JSON when the job's interpreter runs it as the job's user."""
    if not os.path.exists(python):
        raise NoAnswer("missing_tool", "%s does not exist" % python)
    result = run([python, "-c", script], user=user)
    if result["code"] != 0:
        raise NoAnswer("garbled", "%s ended with %s: %s" % (python, result["code"], result["err"][-500:]))
    return json.loads(result["out"])


def read_nvml():
    """Driver, CUDA of the driver and GPUs by NVML; None when this node has no NVML library at all."""
    if not _has_library(b"libnvidia-ml.so.1"):
        return None
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NoAnswer("missing_tool", str(error))
    _nvml_call(nvml, "nvmlInit_v2")
    try:
        return _nvml_all(nvml, ctypes)
    finally:
        nvml.nvmlShutdown()


def _has_library(name):
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            if name in cache.read():
                return True
    except OSError:
        pass
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":") + ["/usr/lib", "/usr/lib64", "/lib64"]
    folders += glob.glob("/usr/lib/*-linux-gnu")
    return any(os.path.exists(os.path.join(folder, name.decode())) for folder in folders if folder)


_NVML_REASONS = {4: "denied", 9: "no_driver", 15: "gpu_lost", 18: "driver_library_mismatch"}


def _nvml_call(nvml, symbol, *args):
    code = getattr(nvml, symbol)(*args)
    if code:
        raise NoAnswer(_NVML_REASONS.get(code, "nvml_error"), "%s answered %d" % (symbol, code))


def _nvml_text(nvml, ctypes, symbol, *args):
    text = ctypes.create_string_buffer(96)
    _nvml_call(nvml, symbol, *(args + (text, 80)))
    return text.value.decode("ascii", "replace")


def _nvml_all(nvml, ctypes):
    count, cuda = ctypes.c_uint(), ctypes.c_int()
    _nvml_call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    _nvml_call(nvml, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    gpus = []
    for index in range(count.value):
        try:
            gpus.append(_nvml_gpu(nvml, ctypes, index))
        except NoAnswer as lost:  # one lost device must not hide the others
            gpus.append({"index": index, "no": lost.reason, "why": lost.why})
    return {"driver": _nvml_text(nvml, ctypes, "nvmlSystemGetDriverVersion"), "cuda": cuda.value, "gpus": gpus}


def _nvml_gpu(nvml, ctypes, index):
    handle = ctypes.c_void_p()
    _nvml_call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    pci = (ctypes.c_char * 68)()  # nvmlPciInfo_t: the 32 bytes of busId stand last
    _nvml_call(nvml, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
    return {
        "index": index,
        "name": _nvml_text(nvml, ctypes, "nvmlDeviceGetName", handle),
        "uuid": _nvml_text(nvml, ctypes, "nvmlDeviceGetUUID", handle),
        "pci": bytes(pci)[36:68].split(b"\0")[0].decode("ascii", "replace").lower(),
    }


READERS = {
    "file": read_file,
    "files": read_files,
    "target": read_target,
    "resolve": read_resolve,
    "own_name": read_own_name,
    "pci": read_pci,
    "interfaces": read_interfaces,
    "limits": read_limits,
    "command": read_command,
    "job_python": read_job_python,
    "nvml": read_nvml,
}
# Reads of the kernel's own tables and of /etc share a child; each of the others may hang and has its own.
SHARED = frozenset(["file", "files", "target", "pci", "interfaces"])


# ---------------------------------------------------------------- child processes


def become(user):
    """Turn this process into `user`, with its groups and home; does nothing for None or the same user."""
    import pwd

    if user is None or os.geteuid() != 0:
        return
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


def run(argv, user=None):
    """Run a command to its end in the C locale; its process group dies with the lane that runs it."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(user)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(out_write, 1)
            os.dup2(err_write, 2)
            os.execvpe(argv[0], argv, dict(os.environ, LC_ALL="C", LANGUAGE="C"))
        except OSError as error:
            os._exit(127 if error.errno == errno.ENOENT else 126)
        finally:
            os._exit(125)
    os.close(out_write)
    os.close(err_write)
    out, err = _drain(out_read, err_read)
    code = os.waitpid(pid, 0)[1]
    code = os.WEXITSTATUS(code) if os.WIFEXITED(code) else -os.WTERMSIG(code)
    if code in (125, 126, 127) and not out:
        raise NoAnswer("missing_tool" if code == 127 else "denied", "%s could not be run" % argv[0])
    return {"code": code, "out": out, "err": err}


def _drain(*fds):
    texts = dict((fd, b"") for fd in fds)
    left = set(fds)
    while left:
        for fd in select.select(list(left), [], [])[0]:
            data = os.read(fd, 1 << 16)
            if not data:
                left.discard(fd)
                os.close(fd)
            elif len(texts[fd]) < MAX_TEXT:
                texts[fd] += data
    return [texts[fd].decode("utf-8", "replace") for fd in fds]


def answer(kind, args):
    """One read: ["ok", value] or ["no", reason, what was seen]."""
    try:
        return ["ok", READERS[kind](*args)]
    except NoAnswer as no:
        return ["no", no.reason, no.why]
    except KeyError:
        return ["no", "unknown_read", str(kind)]
    except OSError as error:
        reason = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}.get(error.errno, "garbled")
        return ["no", reason, "%s: %s" % (error.filename or kind, error.strerror)]
    except Exception as error:
        return ["no", "garbled", "%s: %s" % (type(error).__name__, error)]


class Lane(object):
    """Reads that run one after the other in one child; a read over its limit is given up with its child."""

    def __init__(self, agent, reads, done):
        self.agent, self.reads, self.done = agent, list(reads), done
        self.pid = None
        self.buffer = b""
        self._start()

    def _start(self):
        source, sink = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(sink)
        os.close(sink)
        self.fd = source
        self._clock()
        self.agent.watch(source, self._hear)

    def _child(self, sink):
        try:
            os.setsid()
            for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(signum, signal.SIG_DFL)
            for fd in (0, 1, 2):  # the channel belongs to the agent alone
                os.dup2(os.open("/dev/null", os.O_RDWR), fd)
            for index, (kind, args, _) in self.reads:
                os.write(sink, json.dumps([index, answer(kind, args)]).encode("ascii") + b"\n")
        finally:
            os._exit(0)

    def _clock(self):
        self.deadline = time.monotonic() + (self.reads[0][1][2] if self.reads else LINGER)

    def _hear(self, data):
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        for line in lines:
            index, value = json.loads(line.decode("ascii"))
            self.reads = [read for read in self.reads if read[0] != index]
            self.done(index, value)
            self._clock()
        if not data:
            self._end("garbled", "the reading process ended early")

    def poll(self, now):
        """Give up the read under way when its limit has passed."""
        if self.pid is not None and now > self.deadline:
            self.agent.unwatch(self.fd)
            self._end("hung", "no answer within %g s" % (self.reads[0][1][2] if self.reads else LINGER))

    def _end(self, reason, why):
        os.close(self.fd)
        kill_group(self.pid)
        self.pid = None
        self.buffer = b""
        if self.reads:
            index = self.reads.pop(0)[0]
            self.done(index, ["no", reason, why])
        if self.reads:
            self._start()

    def kill(self):
        if self.pid is not None:
            kill_group(self.pid)
            self.pid = None


def kill_group(pid):
    """Kill a child and its group and reap it; one in uninterruptible sleep is left to the kernel."""
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            pass
    end = time.monotonic() + LINGER
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except OSError:
            return
        time.sleep(0.002)


def look(agent, request):
    """Operation look: {"reads": [[kind, args, limit], …]} → {"answers": [answer, …]} in the same order."""
    reads = list(enumerate(request["reads"]))
    answers = [None] * len(reads)
    left = set(index for index, _ in reads)
    shared = [read for read in reads if read[1][0] in SHARED]
    lanes = []

    def done(index, value):
        answers[index] = value
        left.discard(index)
        if not left:
            agent.polls.remove(poll)
            agent.answer(request, answers=answers)

    def poll(now):
        for lane in list(lanes):
            lane.poll(now)

    agent.polls.append(poll)
    for group in [shared] + [[read] for read in reads if read[1][0] not in SHARED]:
        if group:
            lanes.append(Lane(agent, group, done))
    agent.endings.append(lambda: [lane.kill() for lane in lanes])
    if not left:
        done(-1, None)


# ---------------------------------------------------------------- ports


def listen(agent, request):
    """Operation listen: hold a port until the command ends, so that the other nodes can dial it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("", request["port"]))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        in_use = error.errno == errno.EADDRINUSE
        return {"no": "in_use" if in_use else "denied", "why": error.strerror, "owner": _owner(request["port"])}

    sock.setblocking(False)
    handle = sock.fileno()

    def poll(now):
        try:
            while True:
                sock.accept()[0].close()
        except OSError:  # nobody is waiting, or the port was given back
            pass

    agent.polls.append(poll)
    _listening[handle] = (sock, poll)
    return {"port": sock.getsockname()[1], "handle": handle}


def unlisten(agent, request):
    """Operation unlisten: give the port back."""
    sock, poll = _listening.pop(request["handle"])
    agent.polls.remove(poll)
    sock.close()
    return {}


_listening = {}  # handle -> socket and the poll that empties its queue


def _owner(port):
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_file(path).splitlines()[1:] if os.path.exists(path) else []:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add("socket:[%s]" % fields[9])
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) in inodes:
                pid = link.split("/")[2]
                return {"pid": int(pid), "name": read_file("/proc/%s/comm" % pid).strip()}
        except OSError:
            continue
    return None


def dial(agent, request):
    """Operation dial: {"targets": [[address, port], …], "limit": s} → one word each: ok, refused, timed_out, …"""
    left = {}
    words = [None] * len(request["targets"])
    end = time.monotonic() + request["limit"]
    for index, (address, port) in enumerate(request["targets"]):
        try:
            family = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)[0][0]
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            left[index] = (sock, (address, port))
        except OSError as error:
            words[index] = _dial_word(getattr(error, "errno", 0))

    def poll(now):
        for index, (sock, target) in list(left.items()):
            word = _dial_word(sock.connect_ex(target))
            if word is None and now > end:
                word = "timed_out"
            if word is not None:
                words[index] = word
                sock.close()
                del left[index]
        if not left:
            agent.polls.remove(poll)
            agent.answer(request, words=words)

    agent.polls.append(poll)
    for sock, target in left.values():
        sock.connect_ex(target)
    # Neighbours answer within a millisecond: waiting here saves a turn of the loop.
    select.select([], [sock for sock, _ in left.values()], [], 0.02)
    poll(time.monotonic())


def _dial_word(code):
    if code in (0, errno.EISCONN):
        return "ok"
    if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK):
        return None
    return {
        errno.ECONNREFUSED: "refused",
        errno.ETIMEDOUT: "timed_out",
        errno.EHOSTUNREACH: "no_route",
        errno.ENETUNREACH: "no_route",
    }.get(code, "error %s" % errno.errorcode.get(code, code))


def install(agent):
    """Register the operations of this part."""
    agent.ops.update(look=look, listen=listen, unlisten=unlisten, dial=dial)
