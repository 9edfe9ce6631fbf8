"""Containers: the engines' command lines, and what their messages mean.

An image is never fetched. The container is removed when its process ends, and its process ends when
the standard input of the engine's client closes: the client of an engine with a daemon does not
take its container with it when it is killed.
"""

import binascii
import os
import re

DAEMONS = ("docker", "podman")  # engines that make namespaces of their own and name containers
# Runs in the container, as the parent of the command that follows: if standard input ends, so do
# the command and, where this is the first process of the container, all that it has started.
RUNS_INSIDE = b"clusterprep-entered\n"  # what it prints first, on standard error
LEASH = (
    "'clusterprep-inside'\n"
    "import os,subprocess,sys,threading\n"
    "os.write(2,b'clusterprep-entered\\n')\n"
    "try:\n"
    " child=subprocess.Popen(sys.argv[1:],stdin=subprocess.DEVNULL)\n"
    "except OSError as error:\n"
    " sys.exit('%s: %s'%(sys.argv[1],error.strerror))\n"
    "def watch():\n"
    " while os.read(0,4096): pass\n"
    " child.kill()\n"
    " os._exit(137)\n"
    "threading.Thread(target=watch,daemon=True).start()\n"
    "code=child.wait()\n"
    "os._exit(code if code>=0 else 128-code)\n"
)
# Options of a job's command line that this program decides itself: the terminal, the background,
# the name and the end of the container. One in the background would not end with its client.
SWITCHES = ("-t", "--tty", "-i", "--interactive", "-d", "--detach", "--rm")
WITH_VALUE = ("--name", "--cidfile", "--pull", "-a", "--attach", "--restart")
PLAIN_LETTERS = frozenset("ditPq")  # of docker and podman, without a value: others may follow them
# (reason, pattern in what an engine printed), the first that matches counts. The texts are those of
# moby, of the docker client, podman, crun, runc, apptainer, enroot and pyxis.
PROBLEMS = (
    ("denied", r"permission denied while trying to connect to the docker"),
    ("denied", r"got permission denied.*docker|dial unix .*: connect: permission denied"),
    ("no_daemon", r"cannot connect to (the docker daemon|podman)|is the docker daemon running"),
    ("no_daemon", r"error during connect|dial unix .*(no such file|connection refused)"),
    ("denied", r"failed to create user namespace|cannot clone: operation not permitted"),
    ("denied", r"cannot set up namespace using|newuidmap|no subuid ranges|user namespaces? .*dis"),
    ("denied", r"cannot find uid/gid for user"),
    ("denied", r"could not use .*setuid|must be owned by root|requires? root priv"),
    ("no_gpus", r"could not select device driver|nvidia-container-cli: |unresolvable cdi devices"),
    ("no_gpus", r"failed to (find|inject|initialize).*(nvidia|cdi|nvml)|could not find.*nvidia"),
    ("no_gpus", r"stat nvidia\.com/gpu|exec: \S*nvidia-container-cli"),
    ("no_gpus", r"98-nvidia\.sh exited|unknown or invalid runtime name: nvidia"),
    ("bad_options", r"unknown (shorthand )?flag|invalid (argument|option|reference|value)"),
    ("bad_options", r"flag provided but not defined|unrecognized option|conflicting options"),
    ("bad_options", r"no such device|error gathering device information|setrlimit"),
    ("bad_options", r"destination .* doesn't exist in container|failed to mount: "),
    ("bad_options", r"bind source path does not exist|statfs .*no such file|not a tty"),
    ("bad_options", r"cannot (set|be used|use) .*|mount source .*doesn't exist|must be the same"),
    ("no_image", r"no such image|image not known|unable to find image|short-name.*not resolve"),
    ("no_image", r"manifest unknown|pull access denied|image .*not found|could not open image"),
    ("no_image", r"failed to import docker image|no such file or directory: .*\.(sqsh|sif)"),
    ("no_image", r"no such container|container with name .* does not exist|image or container"),
    ("no_image", r"(no such file or directory|not found|invalid image).*\.(sqsh|sif|simg)"),
    ("no_image", r"\.(sqsh|sif|simg)\S*:? .*(no such file|not found|invalid)"),
    ("no_python", r"executable file .*not found|failed to execute|exec: .*no such file"),
    ("no_python", r"exec failed.*no such file|stat .*: no such file or directory"),
    ("no_space", r"no space left on device|disk quota exceeded"),
    ("denied", r"permission denied|operation not permitted"),
)
# Exit codes by which engines say that nothing ran: 125 to 127 of docker and podman, 255 of
# apptainer, 1 of enroot, whose messages begin as below.
OWN_CODES = {"docker": (125, 126, 127), "podman": (125, 126, 127), "apptainer": (255,)}
OWN_LINES = re.compile(
    r"^(docker: |Error: |Error response from daemon|FATAL:|ERROR +:|\[ERROR\]|enroot-"
    r"|slurmstepd\S* error: pyxis|unable to upgrade)",
    re.M,
)
LONGEST = 500  # characters of an engine's message that are reported
# Characters of a message that are looked at, its end: the time of patterns grows by the square of
# what an image prints, and the agent gives no sign of life meanwhile.
MOST_SEARCHED = 4096


def new_name():
    """Return a name that no other container has."""
    return "clusterprep-" + binascii.hexlify(os.urandom(6)).decode("ascii")


def command(container, argv, handed=(), values=None, name=None):
    """Return the command line of the engine that runs `argv` in a new container.

    The variables named in `handed` are taken from the client's environment, so that their values do
    not show in a list of processes. `values` has those that may show.
    """
    engine = container["engine"]
    if engine not in DAEMONS:
        return other_command(container, argv, handed, values)
    line = [engine, "run", "--rm", "--interactive", "--pull=never"]
    line += ["--name", name or new_name()]
    line += job_options(container["options"])
    for variable in handed:
        line += ["--env", variable]
    for variable, value in sorted((values or {}).items()):
        line += ["--env", "%s=%s" % (variable, value)]
    return line + [container["image"]] + list(argv)


def for_others(container, argv, handed):
    """Return a command line that a person or a scheduler starts in the place of `command`.

    The container ends as its engine has it, and an image may be fetched.
    """
    engine = container["engine"]
    if engine not in DAEMONS:
        return other_command(container, argv, handed, None)
    line = [engine, "run", "--rm"] + job_options(container["options"])
    for variable in handed:
        line += ["--env", variable]
    return line + [container["image"]] + list(argv)


def other_command(container, argv, handed, values):
    """Return the command line of an engine without containers that outlive their process."""
    options, image = list(container["options"]), container["image"]
    for variable, value in sorted((values or {}).items()):
        options += ["--env", "%s=%s" % (variable, value)]
    if container["engine"] == "enroot":
        for variable in handed:
            options += ["--env", variable]
        return ["enroot", "start"] + options + [image] + list(argv)
    return ["apptainer", "exec"] + options + [image] + list(argv)


def client_environment(container, env, handed):
    """Return the environment of the engine's client: apptainer takes variables by a prefix."""
    if container["engine"] != "apptainer":
        return env
    given = dict(("APPTAINERENV_" + name, env[name]) for name in handed if name in env)
    return dict(env, **given)


def job_options(options):
    """Return the options of the job's launcher without those that are decided here.

    >>> job_options(["-itv", "/data:/data", "--detach=true", "--name", "job"])
    ['-v', '/data:/data']
    """
    kept = []
    skips = False
    for word in options:
        if skips:
            skips = False
            continue
        for option in _spelled_out(word):
            name, sign, _ = option.partition("=")
            if name in WITH_VALUE:
                skips = not sign
            elif name not in SWITCHES and not option.startswith("-a"):
                kept.append(option)
    return kept


def _spelled_out(word):
    """Yield each of the short options that one word holds: -it is -i and -t."""
    while word[:1] == "-" and word[1:2] in PLAIN_LETTERS and word[2:] and word[2] != "=":
        yield word[:2]
        word = "-" + word[2:]
    yield word


def leashed(argv):
    """Return `argv`, a Python command, under a parent that ends it when standard input closes."""
    return [argv[0], "-c", LEASH] + list(argv)


def problem(container, code, text):
    """Return (reason, why) if the engine did not start the command in a container, else None.

    `code` is the exit code of the engine's client, `text` what it printed on its standard error.
    Reasons: denied, no_daemon, no_gpus, bad_options, no_image, no_python, no_space, not_started.
    """
    if code == 0:
        return None
    engine = container["engine"]
    text = text[-MOST_SEARCHED:]
    is_own = code in OWN_CODES.get(engine, ()) or OWN_LINES.search(text) is not None
    if not is_own:
        return None
    message = last_message(text) or "%s ended with %s" % (engine, code)
    for reason, pattern in PROBLEMS:
        if re.search(pattern, text, re.I | re.S):
            return reason, message
    return "not_started", message


def last_message(text):
    """Return the line in which an engine says what is wrong."""
    text = text.replace(RUNS_INSIDE.decode("ascii"), "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if OWN_LINES.match(line)]
    return (said or lines or [""])[-1][:LONGEST]
