"""How a process is started where the job runs: in its container, conda environment or modules.

A runtime travels as JSON: {"container": {"engine", "image", "options"}} or {"modules": [name],
"activate": file, "conda": name or path, "venv": folder}, with keys only for what is declared.
"""

import os
import select
import time

from clusterprep.remote.agent.containers import (
    RUNS_INSIDE,
    client_environment,
    command,
    leashed,
    problem,
)
from clusterprep.remote.agent.environment import libraries
from clusterprep.remote.agent.launched import LETTERS, kept, lines_of, text_of
from clusterprep.remote.agent.light import loads, signal
from clusterprep.remote.agent.readers import (
    LIMITS,
    MAX_TEXT,
    NoAnswer,
    in_c_locale,
    matching_paths,
    offer,
    printed_json,
    read_file,
    read_job_python,
    search_path,
    start,
    user_of_job,
)
from clusterprep.remote.agent.shells import account, as_user, identity

SETUP_LIMIT = 30.0  # seconds until a runtime is entered; module files lie on network file systems
STEPS = "CLUSTERPREP_STEPS"  # set for a shell that is to tell what it does
STEP = "clusterprep-step: "  # such a line on the standard error says what is done next
DONE = "clusterprep-done: "  # and this one with which exit code that ended
ENTERED = STEP + "entered"
NOT_ENTERED = "clusterprep-runtime: "  # behind it stand a reason, a colon and what is wrong
MOST_TEXT = 300  # characters of what a step printed that are told
# What stands in a variable that is given to a runtime only to see whether it stays.
PROBE = "clusterprep-probe"


def enter(runtime, argv, env, handed=()):
    """Return argv and environment of a host process that runs `argv` inside a runtime.

    `runtime` None is the host: both are returned as they are. `env` is the environment of the host
    process. The variables named in `handed` have their values of `env` inside, whatever a container
    hands on and a shell sets.
    """
    if runtime is None:
        return argv, env
    if "container" in runtime:
        return enter_container(runtime["container"], argv, env, handed)
    return enter_shell(runtime, argv, env, handed)


def run_inside(runtime, argv, user=None, env=None, limit=None, setup_limit=SETUP_LIMIT):
    """Run a command inside a runtime as `user`; return {"code", "out", "err"}, as `run` does.

    `env` is the environment outside, by default that of this process. Raises NoAnswer if the
    runtime could not be entered within `setup_limit` seconds, or if the command then takes more
    than `limit`.
    """
    if env is None:
        env = in_c_locale(search_path())
        if user and os.geteuid() == 0:
            env.update(identity_of(user))
    env = dict(env, **{STEPS: "1"})
    host_argv, host_env = enter(runtime, argv, env)
    with held() as stdin:
        result = _watched(runtime, host_argv, user, host_env, limit, setup_limit, stdin)
    raise_if_not_entered(runtime, result["code"], result["err"])
    if max(len(result["out"]), len(result["err"])) > MAX_TEXT:
        raise NoAnswer("truncated", "%s prints more than %d bytes" % (argv[0], MAX_TEXT))
    return result


class held(object):  # noqa: N801 - used as a function
    """A standard input that gives nothing and ends with this process, by whatever it ends.

    A container that is entered ends with its standard input. Shells read nothing of it.
    """

    def __enter__(self):
        self._read, self._write = os.pipe()
        return self._read

    def __exit__(self, *error):
        os.close(self._read)
        os.close(self._write)


def identity_of(user):
    """Return the variables that name a user."""
    import pwd

    entry = pwd.getpwnam(user)
    return {
        "HOME": entry.pw_dir,
        "USER": user,
        "LOGNAME": user,
        "SHELL": entry.pw_shell or "/bin/sh",
    }


def _watched(runtime, argv, user, env, limit, setup_limit, stdin):
    """Run what `enter` returned; kill it if the runtime is not entered in time.

    Returns {"code", "out", "err"}.
    """
    pid, out_fd, err_fd = start(argv, user, env, stdin)
    texts = {out_fd: b"", err_fd: b""}
    still_open = [out_fd, err_fd]
    is_inside = False
    end = time.monotonic() + setup_limit
    while still_open:
        ready, _, _ = select.select(still_open, [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise _late(is_inside, texts[err_fd], limit if is_inside else setup_limit)
        for fd in ready:
            data = os.read(fd, 1 << 16)
            texts[fd] = (texts[fd] + data)[: MAX_TEXT + 1]
            if not data:
                still_open.remove(fd)
                os.close(fd)
        if not is_inside and has_entered(runtime, texts[err_fd]):
            is_inside = True
            end = time.monotonic() + (1e9 if limit is None else limit)
    status = os.waitpid(pid, 0)[1]
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    return {
        "code": code,
        "out": texts[out_fd].decode("utf-8", "replace"),
        "err": texts[err_fd].decode("utf-8", "replace"),
    }


def _late(is_inside, err, limit):
    """Return the NoAnswer of a command that was killed after `limit` seconds."""
    text = err.decode("utf-8", "replace")
    if is_inside:
        return NoAnswer(
            "timed_out", "no end within %g s: %s" % (limit, printed_last(text)[-MOST_TEXT:])
        )
    return NoAnswer("hung", "%s did not end within %g s" % (last_step(text), limit))


def has_entered(runtime, err):
    """Return whether a process that `enter` made tells that it is inside by now; `err` is bytes."""
    if "container" in runtime:
        return has_entered_container(err)
    return ENTERED.encode("ascii") in err


def raise_if_not_entered(runtime, code, text):
    """Raise NoAnswer if a process that `enter` made ended because the runtime was not entered.

    `code` is its exit code, `text` what it printed on its standard error.
    """
    if "container" in runtime:
        problem = problem_of_container(runtime["container"], code, text)
    else:
        problem = problem_of_shell(code, text)
    if problem is not None:
        raise NoAnswer(*problem)


def read_python_inside(python, user, script, runtime=None):
    """Return what `script` prints, as `read_job_python` does; `runtime` is a text of JSON."""
    if runtime is None:
        return read_job_python(python, user, script)
    argv = [python, "-c", script]
    result = run_inside(loads(runtime), argv, user_of_job(python, user))
    result["err"] = printed_last(result["err"])
    return printed_json(python, result)


# ---------------------------------------------------------------- shells

# The shell gets what is declared as positional parameters: the number of variables that are handed
# on and their names, then the words of each part below that is in use, then the command. They are
# taken off the shell's own parameters at once, for sourced files would see them. The values that
# are handed on stand in the environment alone, where other users cannot read them.
HEAD = r"""
__clusterprep_fail() {
  printf "\nclusterprep-runtime: %s: %s\n" "$1" "$2" >&2
  exit 120
}
__clusterprep_step() {
  if [ -n "$CLUSTERPREP_STEPS" ]; then printf "\nclusterprep-step: %s\n" "$1" >&2; fi
}
__clusterprep_done() {
  if [ -n "$CLUSTERPREP_STEPS" ]; then printf "\nclusterprep-done: %s\n" "$1" >&2; fi
  set +aeu
}
__clusterprep_take() {
  __clusterprep_word=${__clusterprep_words[0]}
  __clusterprep_words=("${__clusterprep_words[@]:1}")
}
__clusterprep_absent() {
  __clusterprep_word=${2%/*}
  while [ -n "$__clusterprep_word" ] && [ ! -e "$__clusterprep_word" ]; do
    __clusterprep_word=${__clusterprep_word%/*}
  done
  if [ -d "$__clusterprep_word" ] && [ ! -x "$__clusterprep_word" ]; then
    __clusterprep_fail denied "$2 is in $__clusterprep_word, which cannot be entered"
  fi
  __clusterprep_fail "$1" "there is no $3 $2"
}
__clusterprep_words=("$@")
set --
__clusterprep_folder=$PWD
__clusterprep_prefix=
declare -A __clusterprep_kept=()
__clusterprep_take
for ((__clusterprep_n = __clusterprep_word; __clusterprep_n > 0; __clusterprep_n--)); do
  __clusterprep_take
  __clusterprep_kept[$__clusterprep_word]=${!__clusterprep_word}
done
"""
# Lmod and environment-modules define `module` in login shells; where a site has them elsewhere,
# MODULESHOME and LMOD_PKG name the place.
MODULES = r"""
for __clusterprep_word in /etc/profile.d/{modules,lmod,z00_lmod}.sh \
  "$MODULESHOME/init/bash" "$LMOD_PKG/init/bash" \
  /usr/share/{lmod/lmod,modules,Modules}/init/bash; do
  if [ "$(type -t module)" = function ]; then break; fi
  if [ -r "$__clusterprep_word" ]; then . "$__clusterprep_word"; fi
done
if [ "$(type -t module)" != function ]; then
  __clusterprep_fail no_module "a login shell has no command module (Lmod, environment-modules)"
fi
__clusterprep_take
for ((__clusterprep_n = __clusterprep_word; __clusterprep_n > 0; __clusterprep_n--)); do
  __clusterprep_take
  __clusterprep_step "module load $__clusterprep_word"
  if ! module load "$__clusterprep_word" </dev/null; then
    __clusterprep_fail no_module "module load $__clusterprep_word fails"
  fi
  __clusterprep_done 0
done
"""
ACTIVATE = r"""
__clusterprep_take
__clusterprep_step "source $__clusterprep_word"
if [ ! -e "$__clusterprep_word" ]; then
  __clusterprep_absent no_file "$__clusterprep_word" file
elif [ ! -r "$__clusterprep_word" ] || [ -d "$__clusterprep_word" ]; then
  __clusterprep_fail denied "$__clusterprep_word cannot be read"
fi
. "$__clusterprep_word"
__clusterprep_done $?
"""
# What `conda activate` does, without conda: activate.py and base/context.py of conda 4.8 to 25. A
# name is looked for in the folders of environments of the user's own conda; where none is set up,
# in those of all that are at the usual places, and then it has to be there once.
CONDA_NAME = r"""
__clusterprep_roots() {
  if [ -n "$CONDA_EXE" ]; then printf "%s\n" "${CONDA_EXE%/*/*}"; return; fi
  if [ -n "$MAMBA_ROOT_PREFIX" ]; then printf "%s\n" "$MAMBA_ROOT_PREFIX"; return; fi
  __clusterprep_found=$(sed -n \
    -e "s:^__conda_setup=.*'\(/[^']*\)/bin/conda'.*:\1:p" \
    -e "s:^export MAMBA_ROOT_PREFIX='\(/[^']*\)'.*:\1:p" \
    ~/.bashrc ~/.bash_profile ~/.profile 2>/dev/null)
  if [ -n "$__clusterprep_found" ]; then printf "%s\n" "$__clusterprep_found"; return; fi
  for __clusterprep_root in ~/{mini,ana}conda3 ~/mini{forge3,conda,forge} ~/mambaforge \
    ~/micromamba ~/anaconda /opt/conda /opt/{mini,ana}conda3 /opt/mini{forge3,forge,conda} \
    /opt/mambaforge /opt/micromamba /usr/local/{mini,ana}conda3 /usr/local/{miniforge3,conda}; do
    if [ -d "$__clusterprep_root/conda-meta" ] || [ -d "$__clusterprep_root/envs" ]; then
      printf "%s\n" "$__clusterprep_root"
    fi
  done
}
__clusterprep_envs() {
  if [ -n "${CONDA_ENVS_DIRS:-$CONDA_ENVS_PATH}" ]; then
    tr : "\n" <<<"${CONDA_ENVS_DIRS:-$CONDA_ENVS_PATH}"
  fi
  sed -n -e '/^envs_dirs:/,/^[^ #-]/{s:^ *- *["'\'']\{0,1\}\([^"'\'']*\).*:\1:p}' \
    ~/.condarc ~/.config/conda/.condarc /etc/conda/.condarc 2>/dev/null |
    while IFS= read -r __clusterprep_line; do printf "%s\n" "${__clusterprep_line/#\~/$HOME}"; done
  __clusterprep_roots | while IFS= read -r __clusterprep_root; do
    if [ -w "$__clusterprep_root/conda-meta/history" ]; then
      printf "%s\n" "$__clusterprep_root/envs" ~/.conda/envs
    else
      printf "%s\n" ~/.conda/envs "$__clusterprep_root/envs"
    fi
  done
  printf "%s\n" ~/.conda/envs
}
__clusterprep_locate() {
  if [ "$1" = base ]; then __clusterprep_roots; return; fi
  __clusterprep_envs | while IFS= read -r __clusterprep_envs_dir; do
    if [ -d "$__clusterprep_envs_dir/$1" ]; then printf "%s\n" "$__clusterprep_envs_dir/$1"; fi
  done
}
__clusterprep_take
__clusterprep_name=$__clusterprep_word
__clusterprep_step "conda activate $__clusterprep_name"
__clusterprep_found=$(__clusterprep_locate "$__clusterprep_name" | awk "!seen[\$0]++")
__clusterprep_prefix=${__clusterprep_found%%$'\n'*}
if [ -z "$__clusterprep_prefix" ]; then
  __clusterprep_fail no_environment "no conda environment is called $__clusterprep_name in $(
    __clusterprep_envs | awk "!seen[\$0]++" | paste -sd " ")"
elif [ "$__clusterprep_found" != "$__clusterprep_prefix" ]; then
  if [ "$(__clusterprep_roots | wc -l)" -gt 1 ]; then
    __clusterprep_fail no_environment "several conda environments are called $__clusterprep_name: $(
      paste -sd " " <<<"$__clusterprep_found")"
  fi
  printf "conda takes the first of several environments that are called %s: %s\n" \
    "$__clusterprep_name" "$(paste -sd " " <<<"$__clusterprep_found")" >&2
  __clusterprep_done 1
  __clusterprep_step "conda activate $__clusterprep_prefix"
fi
"""
CONDA_PATH = r"""
__clusterprep_take
__clusterprep_prefix=$__clusterprep_word
__clusterprep_name=$__clusterprep_word
__clusterprep_step "conda activate $__clusterprep_prefix"
if [ ! -d "$__clusterprep_prefix" ]; then
  __clusterprep_absent no_environment "$__clusterprep_prefix" folder
fi
"""
CONDA = r"""
if [ ! -d "$__clusterprep_prefix/conda-meta" ]; then
  __clusterprep_fail no_environment \
    "$__clusterprep_prefix is no conda environment: it has no conda-meta"
fi
if [ -n "$CONDA_PREFIX" ] && [ "$CONDA_PREFIX" != "$__clusterprep_prefix" ]; then
  for __clusterprep_word in "$CONDA_PREFIX"/etc/conda/deactivate.d/*.sh; do
    if [ -r "$__clusterprep_word" ]; then . "$__clusterprep_word"; fi
  done
  __clusterprep_word=:$PATH:
  __clusterprep_word=${__clusterprep_word//:"$CONDA_PREFIX/bin":/:}
  __clusterprep_word=${__clusterprep_word#:}
  PATH=${__clusterprep_word%:}
fi
export PATH="$__clusterprep_prefix/bin:$PATH"
export CONDA_PREFIX="$__clusterprep_prefix" CONDA_SHLVL=1 CONDA_DEFAULT_ENV="$__clusterprep_name"
export CONDA_PROMPT_MODIFIER="($__clusterprep_name) "
for __clusterprep_word in "$CONDA_PREFIX"/{etc/conda/env_vars.d/*.json,conda-meta/state}; do
  if [ -r "$__clusterprep_word" ]; then
    while IFS= read -r -d "" __clusterprep_line; do
      case $__clusterprep_line in
        *"=***unset***") unset "${__clusterprep_line%%=*}" ;;
        *) export "$__clusterprep_line" ;;
      esac
    done < <("$CONDA_PREFIX/bin/python" -IS -c 'import json, sys
rows = json.load(open(sys.argv[1]))
rows = rows.get("env_vars", {}) if sys.argv[1].endswith("/state") else rows
sys.stdout.write("".join("%s=%s\0" % row for row in rows.items()))' "$__clusterprep_word")
  fi
done
__clusterprep_done 0
for __clusterprep_file in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
  if [ -r "$__clusterprep_file" ]; then
    __clusterprep_step "source $__clusterprep_file"
    . "$__clusterprep_file"
    __clusterprep_done $?
  fi
done
"""
VENV = r"""
__clusterprep_take
__clusterprep_prefix=$__clusterprep_word
__clusterprep_step "source $__clusterprep_prefix/bin/activate"
if [ ! -d "$__clusterprep_prefix" ]; then
  __clusterprep_absent no_environment "$__clusterprep_prefix" folder
elif [ ! -r "$__clusterprep_prefix/bin/activate" ]; then
  __clusterprep_fail no_environment \
    "$__clusterprep_prefix is no virtual environment: it has no bin/activate"
fi
. "$__clusterprep_prefix/bin/activate"
__clusterprep_code=$?
if [ ! "$VIRTUAL_ENV" -ef "$__clusterprep_prefix" ]; then
  __clusterprep_fail no_environment \
    "$__clusterprep_prefix was moved: its bin/activate is that of $VIRTUAL_ENV"
fi
__clusterprep_done $__clusterprep_code
"""
# The job's interpreter is that of the environment: without one, a shell would find the system's.
TAIL = r"""
for __clusterprep_word in "${!__clusterprep_kept[@]}"; do
  export "$__clusterprep_word=${__clusterprep_kept[$__clusterprep_word]}"
done
cd -- "$__clusterprep_folder" 2>/dev/null
__clusterprep_word=${__clusterprep_words[0]}
__clusterprep_file=$(type -P -- "$__clusterprep_word")
__clusterprep_own=$__clusterprep_prefix/bin/$__clusterprep_word
if [ -n "$__clusterprep_prefix" ] && [ "$__clusterprep_word" = python3 ] &&
  [ ! "${__clusterprep_file%/*}" -ef "$__clusterprep_prefix/bin" ]; then
  if [ -L "$__clusterprep_own" ] && [ ! -e "$__clusterprep_own" ]; then
    __clusterprep_fail no_python "the Python that $__clusterprep_prefix was made from is gone: $(
      readlink -m "$__clusterprep_own")"
  elif [ ! -x "$__clusterprep_own" ]; then
    __clusterprep_fail no_python "there is no python3 in $__clusterprep_prefix/bin"
  fi
  __clusterprep_fail no_python "python3 is $__clusterprep_file and not $__clusterprep_own: see PATH"
elif [ -z "$__clusterprep_file" ]; then
  __clusterprep_fail no_python "$__clusterprep_word is not there"
fi
__clusterprep_step entered
unset CLUSTERPREP_STEPS
exec -- "${__clusterprep_words[@]}"
"""


def enter_shell(runtime, argv, env, handed=()):
    """Return argv and environment of a shell that sets up what is declared, and becomes `argv`.

    Modules and names of conda environments depend on the user's start-up files, so there it is a
    login shell.
    """
    names = [name for name in handed if name in env]
    words = [str(len(names))] + names
    parts = [HEAD]
    modules = runtime.get("modules", [])
    if modules:
        parts.append(MODULES)
        words += [str(len(modules))] + modules
    if "activate" in runtime:
        parts.append(ACTIVATE)
        words.append(runtime["activate"])
    conda = runtime.get("conda", "")
    if conda:
        parts += [CONDA_PATH if conda.startswith("/") else CONDA_NAME, CONDA]
        words.append(conda)
    if "venv" in runtime:
        parts.append(VENV)
        words.append(runtime["venv"])
    parts.append(TAIL)
    is_login = bool(modules) or (conda and not conda.startswith("/"))
    shell = ["bash", "-l", "-c"] if is_login else ["bash", "-c"]
    return shell + ["".join(parts), "clusterprep-runtime"] + words + argv, env


def problem_of_shell(code, text):
    """Return (reason, why) if a shell of `enter_shell` could not set up the runtime, else None.

    `text` is what it printed with STEPS in its environment.
    """
    before, mark, behind = text.partition(NOT_ENTERED)
    if mark:
        reason, _, why = behind.split("\n")[0].partition(": ")
        printed = printed_last(before)[:MOST_TEXT]
        return reason, "%s: %s" % (why, printed) if printed else why
    if ENTERED in text:
        return None
    why = "%s ended the shell with code %d" % (last_step(text), code)
    printed = printed_last(text)[:MOST_TEXT]
    return "failed", "%s: %s" % (why, printed) if printed else why


def last_step(text):
    """Return what a shell did last, by what it told on its standard error."""
    steps = [line[len(STEP) :] for line in text.split("\n") if line.startswith(STEP)]
    return steps[-1] if steps else "a start-up file of the login shell"


def printed_last(text):
    """Return what was printed since the last line of our own, in one line."""
    lines = []
    for line in text.split("\n"):
        if line.startswith((STEP, DONE)):
            lines = []
        elif line.strip():
            lines.append(line.strip())
    return " ".join(lines)


def complaints(text):
    """Return [[step, exit code, what it printed]] of the steps that did not end with 0."""
    rows = []
    step = ""
    printed = []
    for line in text.split("\n"):
        if line.startswith(STEP):
            step = line[len(STEP) :]
            printed = []
        elif line.startswith(DONE):
            if line != DONE + "0":
                rows.append([step, int(line[len(DONE) :]), " ".join(printed)[:MOST_TEXT]])
        elif line.strip():
            printed.append(line.strip())
    return rows


# Runs in the job's interpreter.
REPORT = r"""
import json, os, sys
limits = open("/proc/self/limits").read()
print(json.dumps({
    "python": sys.executable, "prefix": sys.prefix, "env": dict(os.environ), "limits": limits,
}))
"""


def read_shell_runtime(python, user, runtime, probed):
    """Return what a runtime of shells gives the job: never absent for what is wrong with it.

    {"failed": [reason, why]} if it cannot be entered, else {"python": path, "prefix",
    "environment": the declared conda or virtual environment if that interpreter is none of it,
    "env": {variable: value} of those that matter, "unset": the names of `probed` that are gone,
    "lowered": {limit: [before, inside]} of soft limits, "complaints": as `complaints`, "files":
    [[path, [[line, text]]]] of what the shell sourced, "modules": {path of a module's file: names
    of variables in it}, "libraries": as read_environment}. `probed` are names of variables that are
    given to it to see whether they stay.
    """
    entry, _ = account(user_of_job(python, user), False)
    told = as_user(entry, lambda: look_inside(entry, python, loads(runtime), probed))
    if "truncated" in told:
        raise NoAnswer("truncated", told["truncated"])
    return told


def look_inside(entry, python, runtime, probed):
    """Return what `read_shell_runtime` does; this process is one of the user."""
    env = dict(identity(entry), LANG="C.UTF-8")
    for name in probed:
        env[name] = PROBE
    try:
        result = run_inside(runtime, [python, "-c", REPORT], None, env)
        printed = printed_json(python, dict(result, err=printed_last(result["err"])))
    except NoAnswer as no:
        if no.reason == "truncated":
            return {"truncated": no.why}
        return {"failed": [no.reason, no.why]}
    inside = printed["env"]
    stays = dict((name, value) for name, value in kept(inside).items() if value != PROBE)
    return {
        "python": printed["python"],
        "prefix": printed["prefix"],
        "environment": _environment_outside(runtime, inside, printed["prefix"]),
        "env": stays,
        "unset": sorted(name for name in probed if name not in inside),
        "lowered": _lowered(soft_limits(read_file("/proc/self/limits")), printed["limits"]),
        "complaints": complaints(result["err"]),
        "files": _sourced(runtime, inside),
        "modules": _module_files(inside, stays),
        "libraries": libraries([stays]),
    }


def soft_limits(text):
    """Return {name: soft limit as text} of /proc/PID/limits, by the names of LIMITS."""
    limits = {}
    for line in text.split("\n"):
        for name, label in LIMITS.items():
            if line.startswith(label):
                limits[name] = line[len(label) :].split()[0]
    return limits


def _lowered(before, text):
    """Return {name: [before, inside]} of the limits that are lower inside."""
    inside = soft_limits(text)
    lowered = {}
    for name, limit in before.items():
        now = inside.get(name, limit)
        if now in (limit, "unlimited"):
            continue
        if limit == "unlimited" or int(now) < int(limit):
            lowered[name] = [limit, now]
    return lowered


def _environment_outside(runtime, inside, prefix):
    """Return the declared environment if the interpreter of `prefix` is none of it, else ""."""
    declared = ""
    if "venv" in runtime:
        declared = runtime["venv"]
    elif "conda" in runtime:
        declared = inside.get("CONDA_PREFIX", "")
    return "" if os.path.realpath(prefix) == os.path.realpath(declared or prefix) else declared


def _sourced(runtime, inside):
    """Return the lines that set what matters of the files that the shell sourced by name."""
    paths = []
    if "activate" in runtime:
        paths.append(runtime["activate"])
    if "conda" in runtime:
        paths += matching_paths(inside.get("CONDA_PREFIX", "/") + "/etc/conda/activate.d/*")
    if "venv" in runtime:
        paths.append(runtime["venv"] + "/bin/activate")
    rows = []
    for path in paths:
        lines = lines_of(text_of(path) or "")
        if lines:
            rows.append([path, lines])
    return rows


def _module_files(inside, variables):
    """Return {path: names} of the files of loaded modules that name one of these variables."""
    found = {}
    for path in inside.get("_LMFILES_", "").split(":"):
        text = text_of(path) or "" if path else ""
        words = set("".join(letter if letter in LETTERS else " " for letter in text).split())
        names = sorted(words.intersection(variables))
        if names:
            found[path] = names
    return found


# ---------------------------------------------------------------- containers


def enter_container(container, argv, env, handed):
    """Return argv and environment of the engine that runs `argv` in a new container.

    `argv` runs Python. The container ends when the engine's standard input does, see `held`.
    """
    folder = "/run/user/%d" % os.geteuid()
    if env.get("USER"):
        import pwd

        folder = "/run/user/%d" % pwd.getpwnam(env["USER"]).pw_uid
    if os.path.isdir(folder):
        env = dict(env, XDG_RUNTIME_DIR=folder)  # where an engine without root keeps its state
    argv = command(container, leashed(argv), handed)
    return argv, client_environment(container, env, handed)


def has_entered_container(err):
    """Return whether the engine's standard error tells that `argv` runs by now."""
    return RUNS_INSIDE in err


def problem_of_container(container, code, text):
    """Return (reason, why) if the engine did not start `argv` in a container, else None."""
    return problem(container, code, text)


def install(agent):
    """Register the readers of this part."""
    offer({"job_python": read_python_inside, "shell_runtime": read_shell_runtime})
