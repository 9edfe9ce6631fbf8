"""Runtimes that shells set up: which interpreter is found inside, what is said of wrong ones.

The shells, virtual environments and modules are real. Conda's environments are folders of its
shape: conda-meta, bin, etc/conda. What their activation does was read off conda's own activate.py
and base/context.py.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import inside
from clusterprep.remote.agent.nccl_address import probed
from clusterprep.remote.agent.readers import NoAnswer

HAS_MODULES = (
    subprocess.run(
        ["bash", "-lc", "type -t module"],
        env={"PATH": os.defpath, "HOME": "/"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.strip()
    == b"function"
)
needs_modules = pytest.mark.skipif(
    not HAS_MODULES, reason="neither lmod nor environment-modules is installed here"
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def look(
    home: Path, runtime: Mapping[str, Any], python: str = "python3", *probed: str
) -> dict[str, Any]:
    """What `shell_runtime` answers for a user with that home."""
    own = pwd.getpwuid(os.geteuid())
    entry = pwd.struct_passwd((*own[:5], str(home), "/bin/bash"))
    return inside.look_inside(entry, python, runtime, probed)


def python_at(path: Path) -> None:
    """An interpreter at a place, without packages of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)


def conda_prefix(folder: Path, *, python: bool = True, **scripts: str) -> Path:
    """A folder of the shape of a conda environment; `scripts` are those of activate.d by name."""
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta" / "history").touch()
    activation = folder / "etc" / "conda" / "activate.d"
    activation.mkdir(parents=True)
    for name, text in scripts.items():
        (activation / f"{name}.sh").write_text(text)
    if python:
        for name in ("python", "python3"):
            python_at(folder / "bin" / name)
    return folder


def venv_at(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


# ---------------------------------------------------------------- virtual environments


def test_the_interpreter_of_a_virtual_environment_is_found(home: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "with space")
    told = look(home, {"venv": str(venv)})
    assert (told["python"], told["prefix"]) == (str(venv / "bin" / "python3"), str(venv))
    assert (told["environment"], told["complaints"]) == ("", [])


def test_a_link_may_lead_to_a_virtual_environment(home: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    (tmp_path / "current").symlink_to(venv)
    told = look(home, {"venv": str(tmp_path / "current")})
    assert (told["prefix"], told["environment"]) == (str(venv), "")


def test_the_base_of_a_virtual_environment_is_gone(home: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    python = venv / "bin" / "python3"
    python.unlink()
    python.symlink_to("/opt/python-3.10/bin/python3")
    reason, why = look(home, {"venv": str(venv)})["failed"]
    assert reason == "no_python"
    assert why == f"the Python that {venv} was made from is gone: /opt/python-3.10/bin/python3"


def test_a_virtual_environment_without_python_is_not_that_of_the_system(
    home: Path, tmp_path: Path
) -> None:
    venv = venv_at(tmp_path / "venv")
    (venv / "bin" / "python3").unlink()
    reason, why = look(home, {"venv": str(venv)})["failed"]
    assert (reason, why) == ("no_python", f"there is no python3 in {venv}/bin")


def test_a_virtual_environment_that_was_moved(home: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    moved = tmp_path / "moved"
    shutil.copytree(venv, moved, symlinks=True)
    reason, why = look(home, {"venv": str(moved)})["failed"]
    assert reason == "no_environment"
    assert why == f"{moved} was moved: its bin/activate is that of {venv}"


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        pytest.param("nowhere", "there is no folder {}", id="missing"),
        pytest.param(
            "home", "{} is no virtual environment: it has no bin/activate", id="another-folder"
        ),
    ],
)
def test_no_virtual_environment(home: Path, tmp_path: Path, folder: str, expected: str) -> None:
    place = str(tmp_path / folder)
    told = look(home, {"venv": place})
    assert told == {"failed": ["no_environment", expected.format(place)]}


def test_a_declared_interpreter_that_is_not_there(home: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    told = look(home, {"venv": str(venv)}, "/opt/python9/bin/python3")
    assert told == {"failed": ["no_python", "/opt/python9/bin/python3 is not there"]}


def test_a_declared_interpreter_outside_of_the_environment(home: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    told = look(home, {"venv": str(venv)}, os.path.realpath(sys.executable))
    assert told["environment"] == str(venv)
    assert told["prefix"] != str(venv)


# ---------------------------------------------------------------- conda


def test_a_conda_environment_is_activated_as_conda_does(home: Path, tmp_path: Path) -> None:
    prefix = conda_prefix(
        tmp_path / "train",
        b_second='export ORDER="$ORDER b" NCCL_ALGO="of $CONDA_DEFAULT_ENV"\n',
        a_first='export ORDER=a NCCL_PROTO="$NCCL_DEBUG"\n',
    )
    state = {"env_vars": {"NCCL_DEBUG": "a 'b' $HOME", "NCCL_CROSS_NIC": "***unset***"}}
    (prefix / "conda-meta" / "state").write_text(json.dumps(state))
    package = prefix / "etc" / "conda" / "env_vars.d"
    package.mkdir()
    (package / "torch.json").write_text('{"OMP_NUM_THREADS": "4"}')
    told = look(home, {"conda": str(prefix)}, "python3", "NCCL_CROSS_NIC", "NCCL_IB_HCA")
    assert told["env"] == {
        "NCCL_ALGO": f"of {prefix}",
        "NCCL_DEBUG": "a 'b' $HOME",
        "NCCL_PROTO": "a 'b' $HOME",
        "OMP_NUM_THREADS": "4",
    }
    assert told["unset"] == ["NCCL_CROSS_NIC"]
    assert [path.rpartition("/")[2] for path, _ in told["files"]] == ["a_first.sh", "b_second.sh"]


def test_an_environment_that_a_profile_activates_is_left_first(home: Path, tmp_path: Path) -> None:
    base = conda_prefix(home / "miniconda3")
    conda_prefix(base / "envs" / "train")
    left = base / "etc" / "conda" / "deactivate.d"
    left.mkdir()
    (left / "x.sh").write_text("unset NCCL_ALGO\n")
    (home / ".bash_profile").write_text(
        f"export CONDA_EXE={base}/bin/conda CONDA_PREFIX={base} CONDA_SHLVL=1\n"
        f"export NCCL_ALGO=Ring NCCL_DEBUG=INFO PATH={base}/bin:$PATH\n"
    )
    words, env = inside.enter({"conda": "train"}, ["bash", "-c", "echo $PATH; env"], outside(home))
    lines = subprocess.check_output(words, env=env, text=True).splitlines()
    assert lines[0].split(":")[0] == f"{base}/envs/train/bin"
    assert f"{base}/bin" not in lines[0].split(":")
    assert {"CONDA_DEFAULT_ENV=train", "NCCL_DEBUG=INFO"} <= {*lines}
    assert not any(line.startswith("NCCL_ALGO") for line in lines)


def outside(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "USER": "train"}


CONDA_INIT = """# >>> conda initialize >>>
case $- in *i*) ;; *) return ;; esac
__conda_setup="$('{root}/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
"""


def test_a_name_is_that_of_the_conda_the_user_has_set_up(home: Path) -> None:
    """Two installations have an environment of that name; ~/.bashrc is left early by scripts."""
    for name in ("miniconda3", "miniforge3"):
        root = conda_prefix(home / name)
        conda_prefix(root / "envs" / "train", a=f"export NCCL_DEBUG_FILE={name}\n")
    (home / ".bashrc").write_text(CONDA_INIT.format(root=home / "miniforge3"))
    told = look(home, {"conda": "train"})
    assert told["env"]["NCCL_DEBUG_FILE"] == "miniforge3"
    assert told["complaints"] == []


def test_two_environments_of_one_name_and_no_conda_that_chooses(home: Path) -> None:
    for name in ("miniconda3", "miniforge3"):
        conda_prefix(conda_prefix(home / name) / "envs" / "train")
    reason, why = look(home, {"conda": "train"})["failed"]
    first, second = (home / name / "envs" / "train" for name in ("miniconda3", "miniforge3"))
    assert reason == "no_environment"
    assert why == f"several conda environments are called train: {first} {second}"


def test_conda_takes_the_first_of_its_folders_and_the_others_are_told(home: Path) -> None:
    root = conda_prefix(home / "miniconda3")
    conda_prefix(root / "envs" / "train", a="export NCCL_DEBUG_FILE=root\n")
    conda_prefix(home / ".conda" / "envs" / "train", a="export NCCL_DEBUG_FILE=own\n")
    told = look(home, {"conda": "train"})
    assert told["env"]["NCCL_DEBUG_FILE"] == "root"
    ((step, code, text),) = told["complaints"]
    assert (step, code) == ("conda activate train", 1)
    assert text.endswith(f"called train: {root}/envs/train {home}/.conda/envs/train")


def test_folders_of_environments_are_those_of_condarc_first(home: Path, tmp_path: Path) -> None:
    conda_prefix(conda_prefix(home / "miniconda3") / "envs" / "base2")
    conda_prefix(home / "scratch" / "train", a="export NCCL_DEBUG_FILE=scratch\n")
    (home / ".condarc").write_text(
        "channels:\n  - conda-forge\nenvs_dirs:\n- ~/scratch\n- '/other'\nchangeps1: false\n"
    )
    assert look(home, {"conda": "train"})["env"]["NCCL_DEBUG_FILE"] == "scratch"


def test_no_environment_has_that_name(home: Path) -> None:
    conda_prefix(home / "miniconda3")
    reason, why = look(home, {"conda": "train"})["failed"]
    assert reason == "no_environment"
    assert why == (
        f"no conda environment is called train in {home}/miniconda3/envs {home}/.conda/envs"
    )


def test_the_environment_of_conda_itself_is_called_base(home: Path) -> None:
    conda_prefix(home / "miniconda3", a="export NCCL_DEBUG_FILE=base\n")
    assert look(home, {"conda": "base"})["env"] == {"NCCL_DEBUG_FILE": "base"}


@pytest.mark.parametrize(
    ("make", "reason", "why"),
    [
        pytest.param(
            lambda place: conda_prefix(place, python=False),
            "no_python",
            "there is no python3 in {}/bin",
            id="without-python",
        ),
        pytest.param(
            lambda place: place.mkdir(),
            "no_environment",
            "{} is no conda environment: it has no conda-meta",
            id="another-folder",
        ),
        pytest.param(
            lambda place: None, "no_environment", "there is no folder {}", id="not-mounted"
        ),
    ],
)
def test_no_conda_environment(home: Path, tmp_path: Path, make: Any, reason: str, why: str) -> None:
    place = tmp_path / "prefix"
    make(place)
    told = look(home, {"conda": str(place)})
    assert told == {"failed": [reason, why.format(place)]}


def test_an_activation_script_that_fails_is_told_with_its_words(home: Path, tmp_path: Path) -> None:
    prefix = conda_prefix(tmp_path / "p", a="echo 'libfoo.so: cannot open' >&2\nreturn 3\n")
    told = look(home, {"conda": str(prefix)})
    script = f"{prefix}/etc/conda/activate.d/a.sh"
    assert told["complaints"] == [[f"source {script}", 3, "libfoo.so: cannot open"]]


# ---------------------------------------------------------------- files that are sourced


def activation(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "activate"
    path.write_text(text)
    return {"activate": str(path)}


def test_what_a_file_sets_and_unsets_is_told_with_its_lines(home: Path, tmp_path: Path) -> None:
    text = "export NCCL_IB_HCA=mlx5_9\nunset NCCL_DEBUG\nulimit -n 100\n"
    runtime = activation(tmp_path, text)
    told = look(home, runtime, "python3", "NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_NET")
    assert (told["env"], told["unset"]) == ({"NCCL_IB_HCA": "mlx5_9"}, ["NCCL_DEBUG"])
    assert told["files"] == [[runtime["activate"], [[1, "export NCCL_IB_HCA=mlx5_9"]]]]
    assert told["lowered"]["nofile"][1] == "100"


@pytest.mark.parametrize(
    ("text", "failed", "why"),
    [
        pytest.param("exit 3\n", "failed", "source {} ended the shell with code 3", id="exit"),
        pytest.param(
            "set -e\nfalse\n", "failed", "source {} ended the shell with code 1", id="errexit"
        ),
        pytest.param("kill -9 $$\n", "failed", "source {} ended the shell with code -9", id="kill"),
    ],
)
def test_a_file_that_ends_the_shell(
    home: Path, tmp_path: Path, text: str, failed: str, why: str
) -> None:
    runtime = activation(tmp_path, text)
    assert look(home, runtime) == {"failed": [failed, why.format(runtime["activate"])]}


@pytest.mark.parametrize(
    "text",
    [
        "set -eu\nexport A=1\n",
        "cd /; set -u; trap 'echo bye' EXIT\n",
        'set -- a b c; for word in "$@"; do :; done\n',
        "set -a; X=1\n",
        "shopt -s nullglob failglob; set -f\n",
        "IFS=:\n",
        "echo 'clusterprep-step: not ours'; echo '{\"a\": 1}'\n",
        "true() { return 1; }; alias printf=false\n",
    ],
)
def test_what_a_file_leaves_behind_does_no_harm(home: Path, tmp_path: Path, text: str) -> None:
    told = look(home, activation(tmp_path, text))
    assert "failed" not in told
    assert told["complaints"] == []


def test_a_file_that_goes_on_after_an_error(home: Path, tmp_path: Path) -> None:
    told = look(home, activation(tmp_path, "no_such_command\n"))
    ((_, code, text),) = told["complaints"]
    assert code == 127
    assert text.endswith("no_such_command: command not found")


def test_a_file_that_hangs(home: Path, tmp_path: Path) -> None:
    runtime = activation(tmp_path, "sleep 60\n")
    with pytest.raises(NoAnswer) as no:
        inside.run_inside(runtime, ["true"], None, outside(home), setup_limit=0.5)
    why = f"source {runtime['activate']} did not end within 0.5 s"
    assert (no.value.reason, no.value.why) == ("hung", why)


def test_a_file_that_is_not_there(home: Path) -> None:
    told = look(home, {"activate": "/nowhere/activate"})
    assert told == {"failed": ["no_file", "there is no file /nowhere/activate"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("key", ["activate", "conda", "venv"])
def test_what_lies_in_a_closed_folder_is_not_called_missing(tmp_path: Path, key: str) -> None:
    closed = tmp_path / "closed"
    (closed / "deep").mkdir(parents=True)
    closed.chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # pytest's own are root's alone
    place = f"{closed}/deep/one"
    told = inside.read_shell_runtime("python3", "nobody", json.dumps({key: place}), ())
    assert told == {"failed": ["denied", f"{place} is in {closed}, which cannot be entered"]}


# ---------------------------------------------------------------- what reaches the process


def test_variables_that_are_handed_on_win_and_do_not_show(home: Path, tmp_path: Path) -> None:
    runtime = activation(
        tmp_path, "export NCCL_DEBUG=WARN NCCL_NET=IB; unset WANDB_API_KEY; cd /; PATH=$PATH:/x\n"
    )
    env = dict(outside(home), NCCL_DEBUG="a\nb 'c' $x", WANDB_API_KEY="secret", NCCL_NET="Socket")
    command = ["bash", "-c", 'printf "%s|" "$NCCL_DEBUG" "$WANDB_API_KEY" "$NCCL_NET" "$PATH" "$@"']
    command += ["x", "an argument", ""]
    words, env = inside.enter(runtime, command, env, ["NCCL_DEBUG", "WANDB_API_KEY", "absent"])
    out = subprocess.check_output([*words, os.curdir], env=env, text=True, cwd=tmp_path)
    assert out == "a\nb 'c' $x|secret|IB|/usr/local/bin:/usr/bin:/bin:/x|an argument||.|"
    assert not any("secret" in word for word in words)


def test_the_process_works_where_it_was_started(home: Path, tmp_path: Path) -> None:
    words, env = inside.enter(activation(tmp_path, "cd /usr\n"), ["pwd"], outside(home))
    assert subprocess.check_output(words, env=env, text=True, cwd=tmp_path).strip() == str(tmp_path)


def test_nothing_of_the_inventory_is_text_of_a_shell(home: Path) -> None:
    hostile = "/tmp/$(touch /tmp/owned)'\"; exit 0 #"
    for key in ("activate", "conda", "venv"):
        reason, _ = look(home, {key: hostile})["failed"]
        assert reason in ("no_file", "no_environment")
        words, _ = inside.enter({key: hostile}, ["true"], {})
        assert not any(hostile in word and word != hostile for word in words)
    assert not Path("/tmp/owned").exists()


def test_the_same_shell_becomes_the_process(home: Path, tmp_path: Path) -> None:
    """Ranks are watched and ended by the pid that was started; other descriptors stay open."""
    words, env = inside.enter(
        activation(tmp_path, "true\n"), ["bash", "-c", "echo $$; cat <&9"], outside(home)
    )
    source, sink = os.pipe()
    os.write(sink, b"through")
    os.close(sink)
    with subprocess.Popen(
        ["bash", "-c", f'exec 9<&{source}; exec "$@"', "x", *words],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[source],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == f"{process.pid}\nthrough"
    os.close(source)


# ---------------------------------------------------------------- modules


@pytest.fixture
def modules(home: Path, tmp_path: Path) -> Path:
    """Module files in Tcl, which both implementations read, and a profile that finds them."""
    files = tmp_path / "modulefiles"
    for name, text in {
        "cuda/12.4": "setenv CUDA_HOME /opt/cuda\nprepend-path LD_LIBRARY_PATH /opt/cuda/lib64\n",
        "nccl/2.21": "prereq cuda/12.4\nsetenv NCCL_IB_TIMEOUT 22\nunsetenv NCCL_DEBUG\n",
        "lonely/1": "prereq nowhere/1\n",
        "broken/1": "nosuch command\n",
    }.items():
        (files / name).parent.mkdir(parents=True)
        (files / name).write_text(f"#%Module\n{text}")
    (home / ".bash_profile").write_text(f"module use {files}\nexport NCCL_NET=IB\n")
    return files


@needs_modules
def test_modules_are_loaded_in_their_order(home: Path, modules: Path) -> None:
    told = look(home, {"modules": ["cuda/12.4", "nccl"]}, "python3", "NCCL_DEBUG")
    assert told["env"] == {
        "CUDA_HOME": "/opt/cuda",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_NET": "IB",
    }
    assert told["unset"] == ["NCCL_DEBUG"]
    assert told["modules"] == {
        str(modules / "cuda/12.4"): ["CUDA_HOME", "LD_LIBRARY_PATH"],
        str(modules / "nccl/2.21"): ["NCCL_IB_TIMEOUT"],
    }


@needs_modules
@pytest.mark.parametrize("name", ["cuda/99", "lonely/1", "broken/1"])
def test_a_module_that_cannot_be_loaded_is_named(home: Path, modules: Path, name: str) -> None:
    """One that is not there, one that needs another, and one with an error."""
    reason, why = look(home, {"modules": ["cuda/12.4", name, "nccl"]})["failed"]
    assert reason == "no_module"
    assert why.startswith(f"module load {name} fails: ")
    said = {"cuda/99": "cuda/99", "lonely/1": "nowhere/1", "broken/1": "nosuch"}
    assert said[name] in why


@needs_modules
def test_an_environment_may_follow_modules(home: Path, modules: Path, tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    told = look(home, {"modules": ["cuda"], "venv": str(venv)})
    assert (told["prefix"], told["env"]["CUDA_HOME"]) == (str(venv), "/opt/cuda")


@pytest.mark.skipif(HAS_MODULES, reason="modules are installed here")
def test_there_are_no_modules_at_all(home: Path) -> None:
    told = look(home, {"modules": ["cuda"]})
    why = "a login shell has no command module (Lmod, environment-modules)"
    assert told == {"failed": ["no_module", why]}


# ---------------------------------------------------------------- the reads


def test_the_job_s_interpreter_is_asked_inside(tmp_path: Path) -> None:
    venv = venv_at(tmp_path / "venv")
    runtime = json.dumps({"venv": str(venv)})
    script = "import sys, json; print(json.dumps(sys.prefix))"
    assert inside.read_python_inside("python3", None, script, runtime) == str(venv)
    assert inside.read_python_inside(sys.executable, None, script) == sys.prefix


def test_a_read_that_is_asked_inside_has_the_reason_of_its_runtime() -> None:
    runtime = json.dumps({"venv": "/nowhere"})
    with pytest.raises(NoAnswer) as no:
        inside.read_python_inside("python3", None, "1", runtime)
    assert (no.value.reason, no.value.why) == ("no_environment", "there is no folder /nowhere")


# What nccl_address expects of its script: lines with the nonce, a name and a value in hex.
ADDRESS = """
import os, sys
def tell(name, value):
    print(sys.argv[1], name, value.encode().hex())
print("NCCL's own output", file=sys.stderr)
tell("prefix", sys.prefix)
tell("interface", os.environ.get("NCCL_SOCKET_IFNAME", ""))
tell("end", "1")
"""


def test_nccl_is_asked_inside_in_the_environment_of_each_launch_path(
    home: Path, tmp_path: Path
) -> None:
    venv = venv_at(tmp_path / "venv")
    runtime = activation(tmp_path, 'export NCCL_SOCKET_IFNAME="$NCCL_SOCKET_IFNAME,eth9"\n')
    runtime["venv"] = str(venv)
    env = dict(outside(home), NCCL_SOCKET_IFNAME="eth0")
    answer = probed("python3", ADDRESS, env, runtime)
    assert (answer["prefix"], answer["interface"]) == (str(venv), "eth0,eth9")
    assert "NCCL's own output" in answer["log"]
    with pytest.raises(NoAnswer) as no:
        probed("python3", ADDRESS, env, {"venv": "/nowhere"})
    assert no.value.reason == "no_environment"
