"""Readers: functions that return raw evidence from this node, by the name of the kind of read.

The controller parses what is returned here. Only what has to be computed on the node is computed in
this module.
"""

import binascii
import errno
import os
import resource
import select
import struct

from clusterprep.remote.agent.light import loads, socket

MAX_TEXT = 256 << 10  # bytes of one file or of a command's output that are returned
BLOCK = 16 << 10  # bytes that are read at once; most files have less
MAX_FILES = 4096  # files that one pattern may match
MAX_TEXTS = 1 << 20  # characters of all files of one read
# What the firmware of virtual machines calls itself: systemd, src/basic/virt.c, dmi_vendor_table.
GUESTS = (
    "Amazon EC2",
    "Apple Virtualization",
    "BHYVE",
    "Google Compute Engine",
    "KVM",
    "KubeVirt",
    "OpenStack",
    "Parallels",
    "QEMU",
    "VMware",
    "Virtual Machine",
    "VirtualBox",
    "Xen",
)


class NoAnswer(Exception):
    """A read has no value: `reason` is one of the protocol's, `why` has the details."""

    def __init__(self, reason, why=""):
        Exception.__init__(self, reason)
        self.reason, self.why = reason, why


# ---------------------------------------------------------------- files


def read_file(path):
    """Return the text of a file, at most MAX_TEXT bytes."""
    data = read_bytes(path, MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise NoAnswer("truncated", "%s is larger than %d bytes" % (path, MAX_TEXT))
    return data.decode("utf-8", "replace")


def read_bytes(path, most):
    """Return the bytes of a file, of a larger one at least `most`. Raises OSError with the path.

    Without a file object, whose buffer takes longer than a file of /sys.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        # Files of /proc say that they have 0 bytes.
        at_once = min(max(os.fstat(fd).st_size + 1, BLOCK), most)
        data = block = os.read(fd, at_once)
        while block and len(data) < most:
            block = os.read(fd, at_once)
            data += block
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)
    return data


def matching_paths(pattern):
    """Return the existing paths that match a pattern, sorted; `*` stands for one whole name."""
    matches = [""]
    for part in pattern.strip("/").split("/"):
        deeper = []
        for folder in matches:
            children = names_in(folder + "/") if part == "*" else [part]
            deeper += [folder + "/" + child for child in children]
        matches = deeper
    return [path for path in matches if os.path.exists(path)]


def names_in(folder):
    """Return the sorted names in a folder; none if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_files(*patterns):
    """Return the text of every matching file by path, without the files that cannot be read.

    With too many or too long files there is no answer: a part could pass for all of them.
    """
    texts = {}
    size = 0
    for pattern in patterns:
        matches = matching_paths(pattern)
        if len(matches) > MAX_FILES:
            raise NoAnswer("truncated", "more than 4,096 files match %s" % pattern)
        for path in matches:
            try:
                text = read_file(path)
            except OSError:
                continue
            texts[path] = text.strip()
            size += len(texts[path])
            if size > MAX_TEXTS:
                why = "the files of %s have more than %d characters" % (pattern, MAX_TEXTS)
                raise NoAnswer("truncated", why)
    return texts


def encoded(data):
    """Return bytes as base64 text."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


# ---------------------------------------------------------------- names


# What getaddrinfo answers for a name that does not exist, or exists without an address.
NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def read_resolve(*names):
    """Return the addresses of each name as this node resolves it, IPv4 and IPv6; None for none."""
    answers = {}
    for name in names:
        # As bytes: text would import the codec of international names, which takes longer than
        # everything else here.
        encoded_name = os.fsencode(name)
        try:
            infos = socket.getaddrinfo(encoded_name, None, 0, socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.args[0] not in NO_SUCH_NAME:
                raise NoAnswer("timed_out", "%s: %s" % (name, error))
            answers[name] = None
        else:
            addresses = set(info[4][0] for info in infos)
            answers[name] = sorted(addresses)
    return answers


def read_own_name():
    """Return the addresses of this node's host name: gloo publishes them if no interface is set."""
    name = socket.gethostname()
    return read_resolve(name)[name]


# ---------------------------------------------------------------- PCI


def read_pci(vendor):
    """Return address, class, NUMA node and first configuration word of each function of a vendor.

    Vendor and class are what the kernel read when it found the device. The configuration word is
    read from the device now: all ones if it is gone.
    """
    rows = []
    for folder in matching_paths("/sys/bus/pci/devices/*"):
        try:
            if read_file(folder + "/vendor").strip() != vendor:
                continue
            device_class = read_file(folder + "/class").strip()
        except OSError:
            continue
        row = {
            "pci": os.path.basename(folder),
            "class": device_class,
        }
        numa = _first_bytes(folder + "/numa_node", 16)
        config = _first_bytes(folder + "/config", 4)
        row["numa"] = None if numa is None else numa.decode("ascii").strip()
        row["config"] = None if config is None else binascii.hexlify(config).decode("ascii")
        rows.append(row)
    return rows


def _first_bytes(path, count):
    try:
        with open(path, "rb") as source:
            return source.read(count)
    except OSError:
        return None


# ---------------------------------------------------------------- interfaces


INTERFACE_FILES = (
    "mtu",
    "operstate",
    "type",
    "flags",
    "speed",
    "ifindex",
    "carrier",
    "duplex",
    "carrier_changes",
)


def read_interfaces():
    """Return every network interface: its files in /sys, and its addresses from the kernel."""
    addresses = _addresses()
    rows = []
    for name in names_in("/sys/class/net"):
        folder = "/sys/class/net/%s/" % name
        row = {"name": name}
        row["physical"] = os.path.exists(folder + "device")
        row["bridge"] = os.path.exists(folder + "bridge")
        row["master"] = None
        if os.path.exists(folder + "master"):
            row["master"] = os.path.basename(os.readlink(folder + "master"))
        for key in INTERFACE_FILES:
            try:
                row[key] = read_file(folder + key).strip()
            except OSError:  # speed and carrier of an interface that is down answer EINVAL
                row[key] = None
        index = int(row["ifindex"] or 0)
        row["addresses"] = addresses.get(index, [])
        rows.append(row)
    return rows


# linux/netlink.h and linux/rtnetlink.h
NLMSG_ERROR = 2
NLMSG_DONE = 3
RTM_GETADDR = 22
NLM_F_REQUEST_DUMP = 0x301
IFA_ADDRESS = 1
IFA_LOCAL = 2
IFA_F_DADFAILED = 0x08  # another machine has this address of IPv6, so the kernel does not use it
HEADER_BYTES = 16  # struct nlmsghdr
IFADDRMSG_BYTES = 8  # family, prefixlen, flags, scope, index


def _addresses():
    """Return the addresses of all interfaces by the index of the interface."""
    size = HEADER_BYTES + IFADDRMSG_BYTES
    request = struct.pack(
        "=IHHII",
        size,
        RTM_GETADDR,
        NLM_F_REQUEST_DUMP,
        1,
        0,
    )
    request += struct.pack(
        "=BBBBI",
        0,
        0,
        0,
        0,
        0,
    )
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.settimeout(2.0)
    sock.send(request)
    by_index = {}
    while True:
        data = sock.recv(1 << 17)
        while len(data) >= HEADER_BYTES:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (NLMSG_ERROR, NLMSG_DONE):
                sock.close()
                return by_index
            body = data[HEADER_BYTES:length]
            _add_address(body, by_index)
            data = data[_aligned(length) :]


def _aligned(length):
    return (length + 3) & ~3


def _add_address(body, by_index):
    """Add the address of an RTM_NEWADDR message, if it is one of IP."""
    family, prefix, flags, scope, index = struct.unpack_from("=BBBBI", body)
    attributes = _attributes(body)
    raw = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
    if not raw or family not in (socket.AF_INET, socket.AF_INET6):
        return
    row = {"address": socket.inet_ntop(family, raw)}
    row["prefix"] = prefix
    row["scope"] = scope
    if flags & IFA_F_DADFAILED:
        row["duplicate"] = True
    by_index.setdefault(index, []).append(row)


def _attributes(body):
    """Return the attributes of an RTM_NEWADDR message by their numbers."""
    attributes = {}
    start = IFADDRMSG_BYTES
    while start + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, start)
        if length < 4:
            break
        attributes[kind] = body[start + 4 : start + length]
        start += _aligned(length)
    return attributes


# ---------------------------------------------------------------- sessions


def is_guest_by_dmi():
    """Return whether the firmware names a virtual machine; None where it names no machine.

    x86 processors have a flag for that, others have not.
    """
    words = []
    for name in ("sys_vendor", "product_name"):
        try:
            words.append(read_file("/sys/class/dmi/id/" + name).strip())
        except (OSError, NoAnswer):
            continue
    if not any(words):
        return None
    text = " ".join(words)
    if "Amazon EC2" in text and "metal" in text:
        return False
    return any(name in text for name in GUESTS)


def is_own(user):
    """Return whether this process runs as `user` already; also true for None."""
    import pwd

    return user in (None, pwd.getpwuid(os.geteuid()).pw_name)


LIMITS = {  # names as in /proc/self/limits: shells differ in the letters of ulimit
    "memlock": "Max locked memory",
    "nofile": "Max open files",
    "stack": "Max stack size",
    "nproc": "Max processes",
}


def read_limits(user):
    """Return the soft limits of this session, or of a new session of `user` if that is another.

    By the names of LIMITS: in bytes, and in numbers of open files and processes; None means
    unlimited. `by` says whose session it was.
    """
    if is_own(user):
        return _own_limits()
    result = run(["su", "-s", "/bin/sh", user, "-c", "cat /proc/self/limits"])
    limits = {}
    for line in result["out"].split("\n"):
        for name, label in LIMITS.items():
            if line.startswith(label):
                soft = line[len(label) :].split()[0]
                limits[name] = None if soft == "unlimited" else int(soft)
    if len(limits) != len(LIMITS):
        raise NoAnswer("denied", "a session of %s could not be opened" % user)
    limits["by"] = "su %s" % user
    return limits


def _own_limits():
    limits = {}
    for name in LIMITS:
        number = getattr(resource, "RLIMIT_" + name.upper())
        soft = resource.getrlimit(number)[0]
        limits[name] = None if soft == resource.RLIM_INFINITY else soft
    limits["by"] = "this session"
    return limits


# ---------------------------------------------------------------- programs


def read_command(*argv):
    """Return exit code and output of a fixed command in the C locale."""
    return run(list(argv))


NO_PYTHON = "%s does not exist; set `python:` to the job's interpreter"
NO_START = "no_start"  # why there is no answer of an interpreter that is there and does not start
NO_LOADER = "the loader that %s names is not on the node"
OUR_SCRIPT = 'File "<string>"'  # how Python names what stands behind -c
MOST_SAID = 300  # characters of the line in which a loader says what it misses
CLOSED_PYTHON = "%s cannot be reached by this user: a folder on its way is closed"
CLOSED_TO_JOB = "%s runs the ranks, and %s, or a folder on its way, is closed to %s"


def read_job_python(python, user, script):
    """Return what `script` prints as JSON when the job's interpreter runs it as the job's user.

    `user` None stands for the user who logged in. Root never runs it as itself for another user:
    that user may be able to write what the interpreter imports.
    """
    user = user_of_job(python, user)
    require_python(python, user)
    try:
        result = run([python, "-c", script], user=user)
    except NoAnswer as no:
        if no.reason == "missing_tool":
            raise NoAnswer(NO_START, NO_LOADER % python)
        if no.reason == "denied" and may_run_others(user):
            raise closed_to_job(python, user)
        raise
    return printed_json(python, result)


def require_python(python, user):
    """Raise NoAnswer for a missing interpreter of the job, and one where this user may not go.

    `user` is the job's; None stands for this one.
    """
    try:
        os.stat(python)
    except OSError as error:
        if error.errno != errno.EACCES:
            raise NoAnswer("missing_tool", NO_PYTHON % python)
        if is_own(user):
            raise closed_to_job(python, user)
        raise NoAnswer("denied", CLOSED_PYTHON % python)


def may_run_others(user):
    """Return whether any program can be run as the job's user: in some containers root may not."""
    try:
        return run(["true"], user=user)["code"] == 0
    except NoAnswer:
        return False


def closed_to_job(python, user):
    """Return the NoAnswer of an interpreter that the job's user may not run: no rank starts."""
    import pwd

    name = user or pwd.getpwuid(os.geteuid()).pw_name
    return NoAnswer(NO_START, CLOSED_TO_JOB % (name, python, name))


def user_of_job(python, user):
    """Return the user to run the job's interpreter as. Raises NoAnswer if that is not allowed."""
    user = user or os.environ.get("SUDO_USER")
    if user and os.geteuid() != 0 and not is_own(user):
        raise NoAnswer("denied", "%s cannot be run as %s" % (python, user))
    return user


def printed_json(python, result):
    """Return the last line that an interpreter has printed, as JSON; `result` is that of `run`."""
    code = result["code"]
    if code != 0:
        raise failed_python(python, code, result["err"])
    # The start-up files of the interpreter may print lines before the answer.
    lines = result["out"].strip().split("\n")
    return loads(lines[-1])


def failed_python(python, code, err):
    """Return the NoAnswer of an interpreter that ended with another code than 0.

    What our script raises is shown with the script's place. Without that the interpreter never came
    to it: the loader refused it, or it did not find its own modules. A signal tells neither, for
    the script loads libraries that may crash.
    """
    if code < 0 or OUR_SCRIPT in err:
        return NoAnswer("garbled", "%s ended with %s: %s" % (python, code, err[-500:]))
    return NoAnswer(NO_START, said_by_loader(err) or "it ends with code %d" % code)


def said_by_loader(err):
    """Return the line that says why a program does not start; an empty text for none.

    The loader tells of one cause in many lines, and Python prints its paths before the reason.
    """
    lines = [line.strip() for line in err.split("\n") if line.strip()]
    for line in lines:
        if line.startswith("Fatal Python error"):
            return line[:MOST_SAID]
    telling = [line for line in lines if not line.endswith("ignored.")]
    return (telling or lines or [""])[0][:MOST_SAID]


def has_library(name):
    """Return whether the loader would find a library; `name` is bytes. Does not load it."""
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            if name in cache.read():
                return True
    except OSError:
        pass
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += ["/usr/lib", "/usr/lib64", "/lib64"]
    for entry in names_in("/usr/lib"):
        if entry.endswith("-linux-gnu"):
            folders.append("/usr/lib/" + entry)
    for folder in folders:
        if folder and os.path.exists(os.path.join(folder, name.decode())):
            return True
    return False


READERS = {
    "file": read_file,
    "files": read_files,
    "resolve": read_resolve,
    "own_name": read_own_name,
    "pci": read_pci,
    "interfaces": read_interfaces,
    "limits": read_limits,
    "command": read_command,
    "alone": read_command,  # in a child of its own, for a command that may take long
    "job_python": read_job_python,
}
# Kinds of reads that share a lane: the kernel's own tables and /etc, the resolver, quick tools.
# Every other read has a child process of its own.
LANES = dict.fromkeys(("file", "files", "pci", "interfaces"), "files")
LANES.update(dict.fromkeys(("resolve", "own_name"), "names"), command="tools", limits="tools")
# Kind of read -> predicate over its arguments: whether this read cannot wait and needs no child.
INSTANT = {"limits": is_own}


def offer(readers, lane=None, instant=None):
    """Add the readers of another module, in one shared lane or each in a child of its own.

    They replace those that another module has for the same kinds.
    """
    READERS.update(readers)
    for kind in readers:
        LANES.pop(kind, None)
        if lane:
            LANES[kind] = lane
        if instant:
            INSTANT[kind] = instant


# ---------------------------------------------------------------- commands


def become(user):
    """Turn this process into `user`, with groups and home; without root or user, do nothing."""
    import pwd

    if user is None or os.geteuid() != 0:
        return
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


# Folders of system tools. PATH of an ordinary user's session often lacks the sbin folders.
FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Bits of a mode (sys/stat.h): a symbolic link, the sticky bit, who else may write.
LINK, STICKY, GROUP, OTHERS = 0o120000, 0o1000, 0o020, 0o002
# Exit codes of a child that could not start the program, as in a shell; 125 is any other failure.
NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
# (PATH, user) -> folders; root alone changes them
_search_paths = {}  # type: ignore[var-annotated]
# From Python 3.8 on.
SPAWN = getattr(os, "posix_spawn", None)
OPEN_AS = getattr(os, "POSIX_SPAWN_OPEN", None)
COPY_TO = getattr(os, "POSIX_SPAWN_DUP2", None)


def search_path():
    """Return the folders in which tools are looked for, in this order.

    For root the folders of the system come first, and of the session's PATH only those into which
    root alone can put files: where sudo has no `secure_path`, that PATH is the login user's, and
    what the user names `nft` there would run as root.
    """
    key = (os.environ.get("PATH", ""), os.geteuid())
    if key not in _search_paths:
        _search_paths[key] = _found_search_path()
    return list(_search_paths[key])


def _found_search_path():
    of_session = [folder for folder in os.environ.get("PATH", "").split(":") if folder]
    if os.geteuid() == 0:
        others = [folder for folder in of_session if folder not in FOLDERS]
        of_root = [folder for folder in others if is_of_root(folder)]
        folders = list(FOLDERS) + of_root
    else:
        folders = of_session + list(FOLDERS)
    return list(dict.fromkeys(folders))


def is_of_root(folder):
    """Return whether only root can put files into a folder, or another folder into its place."""
    if not folder.startswith("/"):
        return False
    for whole in (folder, os.path.realpath(folder)):
        path = whole
        while True:
            try:
                found = os.lstat(path)
            except OSError:
                return False
            is_link = found.st_mode & LINK == LINK
            # In a folder such as /tmp no user can replace what belongs to root.
            is_sticky = path != whole and found.st_mode & STICKY
            writable = found.st_mode & OTHERS or (found.st_mode & GROUP and found.st_gid != 0)
            if found.st_uid != 0 or (writable and not is_link and not is_sticky):
                return False
            if path == "/":
                break
            path = os.path.dirname(path.rstrip("/")) or "/"
    return True


def executable(name, folders):
    """Return the first executable file of that name; raise NoAnswer if there is none."""
    for folder in folders:
        path = os.path.join(folder, name)  # an absolute path stays as it is
        if os.access(path, os.X_OK):
            return path
    raise NoAnswer("missing_tool", "%s is not there" % name)


def start(argv, user=None, env=None, stdin=None):
    """Start a command in the C locale; return its pid and the pipes of its output and errors.

    The command is in the process group of the lane that runs it, and is killed with it. `env` is
    its whole environment where that is not this process's, `stdin` a descriptor; without it the
    command reads nothing.
    """
    folders = search_path()
    program = executable(argv[0], folders)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = None
    if user is None or os.geteuid() != 0:
        environment = env or in_c_locale(folders)
        pid = spawned(program, argv, environment, stdin, out_write, err_write)
    if pid is None:
        pid = os.fork()
    if pid == 0:
        try:
            become(user)
            os.dup2(os.open("/dev/null", os.O_RDONLY) if stdin is None else stdin, 0)
            os.dup2(out_write, 1)
            os.dup2(err_write, 2)
            os.execve(program, argv, env or in_c_locale(folders))
        except OSError as error:
            os._exit(NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE)
        finally:
            os._exit(NOT_STARTED)
    os.close(out_write)
    os.close(err_write)
    return pid, out_read, err_read


def spawned(program, argv, env, stdin, out, err):
    """Start a program without a copy of this process, which would take a node 1 ms.

    Return its pid; None if that fails, or before Python 3.8, which cannot do it.
    """
    if SPAWN is None:
        return None
    if stdin is None:
        actions = [(OPEN_AS, 0, "/dev/null", os.O_RDONLY, 0)]
    else:
        actions = [(COPY_TO, stdin, 0)]
    actions += [(COPY_TO, out, 1), (COPY_TO, err, 2)]
    try:
        return SPAWN(program, argv, env, file_actions=actions)
    except OSError:  # a copy that fails in the same way tells why
        return None


def in_c_locale(folders):
    """Return the environment of this process in the C locale, with these folders as its PATH."""
    return dict(os.environ, PATH=":".join(folders), LC_ALL="C", LANGUAGE="C")


def run(argv, user=None, env=None, stdin=None):
    """Run a command to its end in the C locale; return {"code", "out", "err"}.

    There is no answer if it prints more than MAX_TEXT bytes.
    """
    pid, out_read, err_read = start(argv, user, env, stdin)
    out, err = _drain(out_read, err_read)
    status = os.waitpid(pid, 0)[1]
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    if code in (NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND) and not out + err:
        reason = "missing_tool" if code == NOT_FOUND else "denied"
        raise NoAnswer(reason, "%s could not be run" % argv[0])
    if max(len(out), len(err)) > MAX_TEXT:
        raise NoAnswer("truncated", "%s prints more than %d bytes" % (argv[0], MAX_TEXT))
    return {
        "code": code,
        "out": out.decode("utf-8", "replace"),
        "err": err.decode("utf-8", "replace"),
    }


def _drain(*fds):
    """Read all pipes to their ends and close them; return the bytes of each.

    Of more than MAX_TEXT bytes one more is returned, for the caller to notice.
    """
    texts = dict((fd, b"") for fd in fds)
    still_open = set(fds)
    while still_open:
        readable, _, _ = select.select(list(still_open), [], [])
        for fd in readable:
            data = os.read(fd, 1 << 16)
            if not data:
                still_open.discard(fd)
                os.close(fd)
            else:
                texts[fd] = (texts[fd] + data)[: MAX_TEXT + 1]
    return [texts[fd] for fd in fds]
