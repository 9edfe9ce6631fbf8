"""Runtimes that cannot be entered, and what is said of those that can."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.runtime import Complaint, Setup
from clusterprep.model import Runtime
from tests.support.fleet import absent, findings, fleet, told

ENTERED = Setup(python="/opt/venv/bin/python3", prefix="/opt/venv")
VENV = Runtime(venv="/opt/venv")


def failure(reason: str, why: str) -> Setup:
    return Setup(reason, why)


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        pytest.param(None, "skip not_applicable", id="on-the-node"),
        pytest.param(ENTERED, "pass", id="entered"),
        pytest.param(failure("no_module", "module load x fails"), "fail error", id="no-module"),
        pytest.param(
            Setup(complaints=(Complaint("source /opt/a", 1, "no such file"),)),
            "fail warning",
            id="goes-on-after-an-error",
        ),
        pytest.param(Setup(lowered={"memlock": ("unlimited", "64")}), "fail warning", id="limit"),
        pytest.param(Setup(prefix="/usr", environment="/opt/venv"), "fail error", id="outside"),
        pytest.param(absent("denied"), "unknown error denied", id="not-asked-as-the-user"),
    ],
)
def test_runtimes_are_entered(setup: Any, expected: str) -> None:
    seen = fleet(each={"runtime": VENV}, n1={"rt.setup": setup})
    assert told(seen, "rt.engine") == {"n1": expected}


@pytest.mark.parametrize(
    ("runtime", "reason", "why", "remedy"),
    [
        pytest.param(
            Runtime(modules=("gcc", "cuda/12.4")),
            "no_module",
            "module load cuda/12.4 fails: Unable to locate a modulefile for 'cuda/12.4'",
            "module spider cuda/12.4 2>&1 || module avail cuda/12.4   # as train, in a login shell",
            id="module",
        ),
        pytest.param(
            Runtime(modules=("gcc", "cuda/12.4")),
            "no_module",
            "a login shell has no command module (Lmod, environment-modules)",
            "ls /etc/profile.d   # as train, in a login shell: «type module» has to find Lmod or "
            "environment-modules, from a package or a shared file system",
            id="no-modules-at-all",
        ),
        pytest.param(
            Runtime(conda="train"),
            "no_environment",
            "no conda environment is called train in /home/train/.conda/envs",
            "conda env list   # as train; then set conda: to the path of the environment",
            id="conda",
        ),
        pytest.param(
            Runtime(venv="/opt/a b"),
            "no_python",
            "there is no python3 in /opt/a b/bin",
            "ls -l '/opt/a b/bin/'   # make it anew with the Python that is there: "
            "python3 -m venv --clear",
            id="venv-without-python",
        ),
        pytest.param(
            Runtime(venv="/opt/venv"),
            "no_environment",
            "there is no folder /opt/venv",
            "ls -l /opt/venv/pyvenv.cfg   # mount the file system that has it, or correct venv:",
            id="no-venv",
        ),
        pytest.param(
            Runtime(activate="/sw/env.sh"),
            "no_file",
            "there is no file /sw/env.sh",
            "ls -l /sw/env.sh   # as train: mount its file system, or correct activate:",
            id="no-file",
        ),
    ],
)
def test_the_remedy_names_what_is_missing(
    runtime: Runtime, reason: str, why: str, remedy: str
) -> None:
    each = {"runtime": runtime, "job_user": "train"}
    (finding,) = findings(fleet(each=each, n1={"rt.setup": Setup(reason, why)}), "rt.engine")
    assert finding.message == f"the job's runtime cannot be entered: {why}"
    cure = finding.remedy
    shown = f"{cure}   # {cure.note}" if cure.note else str(cure)
    assert (finding.seen, shown) == (reason, remedy)


def test_a_hanging_step_is_told() -> None:
    why = "source /sw/env.sh did not end within 30 s"
    each = {"runtime": Runtime(activate="/sw/env.sh"), "job_user": "train"}
    (finding,) = findings(fleet(each=each, n1={"rt.setup": Setup("hung", why)}), "rt.engine")
    assert str(finding.remedy) == f"do the same in a shell of train on the node: {why}"


def test_an_interpreter_that_is_none_of_the_environment_is_named() -> None:
    setup = Setup(python="/usr/bin/python3", prefix="/usr", environment="/opt/venv")
    each = {"runtime": VENV, "python": "/usr/bin/python3"}
    (finding,) = findings(fleet(each=each, n1={"rt.setup": setup}), "rt.engine")
    assert finding.message == (
        "/usr/bin/python3 is no interpreter of /opt/venv, whose packages it misses"
    )
