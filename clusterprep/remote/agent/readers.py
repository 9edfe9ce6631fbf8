"""What can be read on a node: raw evidence that travels home; only what must be computed here is computed here."""

import binascii
import errno
import os
import resource
import select
import struct

from clusterprep.remote.agent.light import loads, socket

MAX_TEXT = 256 << 10  # bytes of one file or of a command's output that travel home


class NoAnswer(Exception):
    """A read that has no value: a reason of the contract, and what was seen."""

    def __init__(self, reason, why=""):
        Exception.__init__(self, reason)
        self.reason, self.why = reason, why


def read_file(path):
    """Text of a file, at most MAX_TEXT bytes."""
    with open(path, "rb") as source:
        data = source.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise NoAnswer("truncated", "%s is larger than %d bytes" % (path, MAX_TEXT))
    return data.decode("utf-8", "replace")


def paths(pattern):
    """The paths that match a pattern in which `*` may stand for whole names, sorted."""
    found = ["/"]
    for part in pattern.strip("/").split("/"):
        found = [
            os.path.join(folder, name)
            for folder in found
            for name in (names(folder) if part == "*" else [part])
        ]
    return [path for path in found if os.path.exists(path)]


def names(folder):
    """What a folder holds, sorted; nothing where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_files(*patterns):
    """Text of every file that matches the patterns, by path; one that cannot be read is left out."""
    found = {}
    for pattern in patterns:
        for path in paths(pattern)[:4096]:
            try:
                found[path] = read_file(path).strip()
            except (OSError, NoAnswer):
                continue
    return found


def encoded(data):
    """Bytes as base64 text."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def read_resolve(*names):
    """The IPv4 and IPv6 addresses of each name, as this node's own resolver answers; None where it has none."""
    answers = {}
    for name in names:
        try:
            # As bytes, for text would import the codec of international names, which takes longer than all else here.
            infos = socket.getaddrinfo(name.encode("utf-8"), None, 0, socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.args[0] not in (
                socket.EAI_NONAME,
                getattr(socket, "EAI_NODATA", socket.EAI_NONAME),
            ):
                raise NoAnswer("timed_out", "%s: %s" % (name, error))
            answers[name] = None
        else:
            answers[name] = sorted(set(info[4][0] for info in infos))
    return answers


def read_own_name():
    """The addresses of this node's own host name, which is what gloo publishes when no interface is set."""
    return read_resolve(socket.gethostname())[socket.gethostname()]


def read_pci(vendor):
    """The PCI functions of one vendor: address, class, NUMA node, and the first word that the device itself answers.

    Vendor and class are what the kernel saw when the device was found; a device that is gone answers all ones.
    """
    found = []
    for folder in paths("/sys/bus/pci/devices/*"):
        try:
            if read_file(folder + "/vendor").strip() != vendor:
                continue
            row = {"pci": os.path.basename(folder), "class": read_file(folder + "/class").strip()}
        except OSError:
            continue
        for key, name, count in (("numa", "numa_node", 16), ("config", "config", 4)):
            try:
                with open(folder + "/" + name, "rb") as source:
                    data = source.read(count)
                row[key] = (
                    binascii.hexlify(data).decode("ascii")
                    if name == "config"
                    else data.decode("ascii").strip()
                )
            except OSError:
                row[key] = None
        found.append(row)
    return found


def read_interfaces():
    """Every network interface: what /sys says of it and its addresses from the kernel's own table."""
    addresses = _addresses()
    found = []
    for name in names("/sys/class/net"):
        folder = "/sys/class/net/%s/" % name
        row = {
            "name": name,
            "physical": os.path.exists(folder + "device"),
            "bridge": os.path.exists(folder + "bridge"),
        }
        row["master"] = (
            os.path.basename(os.readlink(folder + "master"))
            if os.path.exists(folder + "master")
            else None
        )
        for key in (
            "mtu",
            "operstate",
            "type",
            "flags",
            "speed",
            "ifindex",
            "carrier",
            "duplex",
            "carrier_changes",
        ):
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


def is_own(user):
    """Whether this process is that user's already."""
    import pwd

    return user in (None, pwd.getpwuid(os.geteuid()).pw_name)


LIMITS = {  # by the words of /proc/self/limits, for shells differ in the letters of ulimit
    "memlock": "Max locked memory",
    "nofile": "Max open files",
    "stack": "Max stack size",
    "nproc": "Max processes",
}


def read_limits(user):
    """Soft limits of this session, or of a fresh session of `user` when the agent runs as somebody else.

    Bytes, and numbers for open files and processes; None without limit.
    """
    if is_own(user):
        soft = dict(
            (name, resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[0])
            for name in LIMITS
        )
        found = dict(
            (name, None if limit == resource.RLIM_INFINITY else limit)
            for name, limit in soft.items()
        )
        return dict(found, by="this session")
    lines = run(["su", "-s", "/bin/sh", user, "-c", "cat /proc/self/limits"])["out"].split("\n")
    soft = dict(
        (name, line[len(words) :].split()[0])
        for name, words in LIMITS.items()
        for line in lines
        if line.startswith(words)
    )
    if len(soft) != len(LIMITS):
        raise NoAnswer("denied", "a session of %s could not be opened" % user)
    found = dict((name, None if text == "unlimited" else int(text)) for name, text in soft.items())
    return dict(found, by="su %s" % user)


def read_command(*argv):
    """Exit code and output of a fixed command, in the C locale."""
    return run(list(argv))


def read_job_python(python, user, script):
    """What `script` prints as JSON when the job's interpreter runs it as the job's user (None: who logged in).

    Nobody else's interpreter is run by root: what it imports may be that user's to write.
    """
    user = user or os.environ.get("SUDO_USER")
    if user and os.geteuid() != 0 and not is_own(user):
        raise NoAnswer("denied", "%s cannot be run as %s" % (python, user))
    if not os.path.exists(python):
        raise NoAnswer("missing_tool", "%s does not exist" % python)
    result = run([python, "-c", script], user=user)
    if result["code"] != 0:
        raise NoAnswer(
            "garbled", "%s ended with %s: %s" % (python, result["code"], result["err"][-500:])
        )
    return loads(
        result["out"].strip().split("\n")[-1]
    )  # whatever its start-up files print comes before


def has_library(name):
    """Whether the loader would find a library, without loading it."""
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            if name in cache.read():
                return True
    except OSError:
        pass
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":") + [
        "/usr/lib",
        "/usr/lib64",
        "/lib64",
    ]
    folders += ["/usr/lib/" + name for name in names("/usr/lib") if name.endswith("-linux-gnu")]
    return any(os.path.exists(os.path.join(folder, name.decode())) for folder in folders if folder)


READERS = {
    "file": read_file,
    "files": read_files,
    "resolve": read_resolve,
    "own_name": read_own_name,
    "pci": read_pci,
    "interfaces": read_interfaces,
    "limits": read_limits,
    "command": read_command,
    "alone": read_command,  # in a child of its own, for one that may take its time
    "job_python": read_job_python,
}
# Reads that share a child: the kernel's own tables and /etc, the resolver, quick tools. The others each have their own.
LANES = dict.fromkeys(("file", "files", "pci", "interfaces"), "files")
LANES.update(dict.fromkeys(("resolve", "own_name"), "names"), command="tools", limits="tools")
# Reads that cannot wait for anything where this says so, and then need no child: kind -> predicate over the arguments.
INSTANT = {"limits": is_own}


def offer(readers, lane=None, instant=None):
    """Add the readers of another module: in a lane that they share, or each in a child of its own."""
    READERS.update(readers)
    LANES.update(dict.fromkeys(readers, lane) if lane else {})
    INSTANT.update(dict.fromkeys(readers, instant) if instant else {})


# ---------------------------------------------------------------- commands


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


# Where system tools are, also for a session whose PATH leaves these folders out, as those of ordinary users do.
FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def executable(name, folders):
    """The first file of that name that may be run."""
    for folder in folders:
        path = os.path.join(folder, name)  # a whole path stays as it is
        if os.access(path, os.X_OK):
            return path
    raise NoAnswer("missing_tool", "%s is not there" % name)


def run(argv, user=None):
    """Run a command to its end in the C locale; its process group dies with the lane that runs it."""
    folders = [folder for folder in os.environ.get("PATH", "").split(":") if folder]
    folders += [folder for folder in FOLDERS if folder not in folders]
    program = executable(argv[0], folders)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(user)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(out_write, 1)
            os.dup2(err_write, 2)
            os.execve(
                program, argv, dict(os.environ, PATH=":".join(folders), LC_ALL="C", LANGUAGE="C")
            )
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
