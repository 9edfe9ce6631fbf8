"""A value planted where it wins over what apply writes is found there, with file and line.

Bad profiles are found too.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.support.command import clusterprep
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts
TRAINER = "trainer"
HOME = f"/home/{TRAINER}"
SKEL = "# ~/.bashrc\ncase $- in\n    *i*) ;;\n      *) return;;\nesac\n"


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Lab:
    """Four nodes without GPUs. The job's user has the start-up files of Debian."""
    for host in lab4.hosts:
        faults.add_user(host, TRAINER)
    return lab4


def check(lab: Lab, user: str | None = TRAINER) -> dict[str, list[dict[str, object]]]:
    """Failures and what is not known, by check."""
    answer = clusterprep(lab, "check", "--only", "env.", inventory=lab.inventory(job_user=user))
    found: dict[str, list[dict[str, object]]] = {}
    for finding in answer.report["findings"]:
        if finding["verdict"] in ("fail", "unknown"):
            found.setdefault(finding["check"], []).append(finding)
    return found


PLACES = {
    # place: file, its text, the line, launch path
    "bashrc": (f"{HOME}/.bashrc", SKEL + "export NCCL_DEBUG=INFO\n", 6, "login shell"),
    "bashrc-top": (f"{HOME}/.bashrc", "export NCCL_DEBUG=INFO\n" + SKEL, 1, "ssh command"),
    "profile": (f"{HOME}/.profile", "\n\nNCCL_DEBUG='INFO'; export NCCL_DEBUG\n", 3, "login shell"),
    "etc-environment": ("/etc/environment", '# x\nNCCL_DEBUG="INFO"\n', 2, "ssh command"),
    "later-profile.d": (
        "/etc/profile.d/zz-site.sh",
        "#\nexport NCCL_DEBUG=INFO\n",
        2,
        "login shell",
    ),
    "users-nccl.conf": (f"{HOME}/.nccl.conf", "# mine\nNCCL_DEBUG=INFO\n", 2, "nccl"),
    "drop-in": (
        "/etc/systemd/system/train.service.d/nccl.conf",
        "[Service]\nEnvironment=NCCL_DEBUG=INFO\n",
        2,
        "systemd",
    ),
    "slurmd": (
        "/etc/systemd/system/slurmd.service.d/env.conf",
        "[Service]\nEnvironment=NCCL_DEBUG=INFO\n",
        2,
        "slurm",
    ),
    "task-prolog": (
        "/etc/slurm/prolog.sh",
        '#!/bin/sh\necho "export NCCL_DEBUG=INFO"\n',
        2,
        "slurm",
    ),
    "environment-file": ("/opt/job.env", "# mine\nNCCL_DEBUG=INFO\n", 2, "systemd"),
}
BESIDE = {  # what makes the place count
    "systemd": {"/run/systemd/system/.there": ""},
    "slurm": {
        "/etc/systemd/system/slurmd.service": "[Service]\nExecStart=/bin/true\n",
        "/etc/slurm/slurm.conf": "SlurmctldHost=n1\nTaskProlog=/etc/slurm/prolog.sh\n",
    },
}


@pytest.mark.parametrize("name", PLACES)
def test_a_planted_value_is_found_with_file_and_line(lab: Lab, name: str) -> None:
    path, text, line, launch = PLACES[name]
    host = lab.host("n3")
    beside = {path: text, **BESIDE.get(launch, {})}
    if name == "environment-file":
        unit = "[Service]\nEnvironment=NCCL_DEBUG=TRACE\nEnvironmentFile=-/opt/job.env\n"
        beside["/etc/systemd/system/train.service"] = unit
    with faults.together(
        *(faults.written(host, place, content) for place, content in beside.items())
    ):
        (found,) = check(lab)["env.shadow"]
    assert found["nodes"] == ["n3"]
    assert f"NCCL_DEBUG=INFO from {path} line {line}" in str(found["seen"])
    assert launch in str(found["seen"])
    assert path in str(found["remedy"])


def test_a_named_conf_file_is_found(lab: Lab) -> None:
    host = lab.host("n2")
    profile = faults.written(host, f"{HOME}/.profile", "export NCCL_CONF_FILE=/opt/site.conf\n")
    with faults.together(profile, faults.written(host, "/opt/site.conf", "NCCL_DEBUG=INFO\n")):
        (found,) = check(lab)["env.shadow"]
    assert (found["nodes"], found["verdict"]) == (["n2"], "fail")
    assert "/opt/site.conf line 1" in str(found["seen"])


def test_what_apply_wrote_itself_is_no_shadow_and_what_overrides_it_is(lab: Lab) -> None:
    inventory = lab.inventory(job_user=TRAINER)
    answer = clusterprep(lab, "apply", "--no-verify", "--only", "env.", inventory=inventory)
    assert answer.findings("env.shadow") == []
    rows = {row["path"]: row for row in answer.report["env_paths"]}
    assert "NCCL_DEBUG" in rows["login shell"]["reaches"]
    assert "target ssh" in rows["ssh command"]["add"]
    with faults.written(lab.host("n4"), "/etc/profile.d/zz-site.sh", "export NCCL_DEBUG=INFO\n"):
        (found,) = check(lab)["env.shadow"]
    assert found["nodes"] == ["n4"]
    assert check(lab) == {}


def test_slurms_tasks_have_what_our_prolog_prints(lab: Lab) -> None:
    """As slurm.conf names it; until then the report says that it has to."""
    inventory = lab.inventory(job_user=TRAINER, env_targets=["slurm-task-prolog"])
    conf = "/etc/slurm/slurm.conf"
    with contextlib.ExitStack() as undo:
        for host in lab.hosts:
            for place, text in BESIDE["slurm"].items():
                undo.enter_context(faults.written(host, place, text))
        answer = clusterprep(lab, "apply", "--no-verify", "--only", "env.", inventory=inventory)
        rows = {row["path"]: row for row in answer.report["env_paths"]}
        assert (rows["slurm"]["reaches"], len(rows["slurm"]["nodes"])) == ([], 4)
        assert "TaskProlog=/etc/clusterprep/task_prolog.sh" in rows["slurm"]["add"]
        for host in lab.hosts:
            undo.enter_context(
                faults.written(host, conf, "TaskProlog=/etc/clusterprep/task_prolog.sh\n")
            )
        answer = clusterprep(lab, "check", "--only", "env.", inventory=inventory)
        rows = {row["path"]: row for row in answer.report["env_paths"]}
        assert set(rows["slurm"]["reaches"]) >= {
            "NCCL_DEBUG",
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
        }
        assert "add" not in rows["slurm"] or not rows["slurm"]["add"]
        assert answer.findings("env.shadow") == []
        assert clusterprep(lab, "rollback", inventory=inventory).code == 0


def test_what_the_job_cannot_read_is_written_and_not_done(lab: Lab) -> None:
    """apply leaves the mode of a file as it is, says who cannot read it, and exits 1."""
    host, conf = lab.host("n2"), "/etc/nccl.conf"
    inventory = lab.inventory(job_user=TRAINER, env_targets=["nccl.conf", "slurm-task-prolog"])
    words = ["--no-verify", "--only", "ssh."]
    clusterprep(lab, "rollback", "--force", inventory=inventory)
    with faults.written(host, conf, "# site\n", 0o600):
        answer = clusterprep(lab, "apply", *words, inventory=inventory)
        assert answer.code == 1
        (failed,) = [f for f in answer.findings("env.readable") if f["verdict"] == "fail"]
        assert (failed["nodes"], failed["severity"]) == (["n2"], "error")
        assert f"{TRAINER} cannot read {conf}" in failed["message"]
        assert failed["seen"] == f"{conf} 0600 root:root"
        assert failed["remedy"] == f"chmod 0644 {conf}"
        assert "# BEGIN clusterprep" in host.read(conf)
        assert inside(host, conf).stat().st_mode & 0o777 == 0o600
        (row,) = [
            r for r in answer.report["env_paths"] if r["path"] == "nccl" and "n2" in r["nodes"]
        ]
        assert (row["nodes"], row["reaches"]) == (["n2"], [])
        assert row["add"] == f"{conf} has to be readable for {TRAINER}, see env.readable"
        host.run(["sh", "-c", failed["remedy"]])
        cured = clusterprep(lab, "apply", *words, inventory=inventory)
        assert cured.code == 0
        assert clusterprep(lab, "rollback", "--force", inventory=inventory).code == 0


def test_new_files_can_be_read_whatever_the_umask(lab: Lab) -> None:
    """pam_umask(8) gives sessions the umask of a hardened site."""
    host = lab.host("n3")
    inventory = lab.inventory(job_user=TRAINER, env_targets=["env-file", "slurm-task-prolog"])
    with faults.written(host, "/root/.bashrc", "umask 077\n"):
        answer = clusterprep(lab, "apply", "--no-verify", "--only", "ssh.", inventory=inventory)
    assert (answer.code, answer.outcomes()) == (0, {"done"})
    modes = [
        inside(host, path).stat().st_mode & 0o777
        for path in (
            "/etc/clusterprep",
            "/etc/clusterprep/nccl.env",
            "/etc/clusterprep/task_prolog.sh",
        )
    ]
    assert modes == [0o755, 0o644, 0o755]
    assert clusterprep(lab, "rollback", inventory=inventory).code == 0


def test_healthy_nodes_without_gpus_pass_every_check(lab: Lab) -> None:
    answer = clusterprep(lab, "check", "--only", "env.", inventory=lab.inventory(job_user=TRAINER))
    assert answer.code == 0
    passed = {
        f["check"]
        for f in answer.report["findings"]
        if f["verdict"] == "pass" and len(f["nodes"]) == 4
    }
    assert passed >= {
        "env.shadow",
        "env.nccl_uniform",
        "env.nccl_hca_exists",
        "env.cuda_visible",
        "env.ld_path",
        "env.readable",
    }


# ---------------------------------------------------------------- start-up files that misbehave


def _bashrc(host: Host, text: str) -> Fault:
    return faults.written(host, f"{HOME}/.bashrc", text)


def test_a_bashrc_that_hangs_costs_its_limit_and_is_named(lab: Lab) -> None:
    with _bashrc(lab.host("n2"), "# mine\nsleep 977\n"):
        began = time.monotonic()
        found = check(lab)
        assert time.monotonic() - began < 20
    assert {check: [f["nodes"] for f in rows] for check, rows in found.items()}["env.shadow"] == [
        ["n2"]
    ]
    (shadow,) = found["env.shadow"]
    assert (shadow["verdict"], shadow["reason"]) == ("unknown", "hung")
    assert f"{HOME}/.bashrc line 2" in str(shadow["message"])
    assert lab.host("n2").processes("sleep 977") == []


def test_a_profile_that_prints_junk_is_survived(lab: Lab) -> None:
    junk = "head -c 300000 /dev/urandom; echo NCCL_DEBUG=FAKE; printf '\\0NCCL_DEBUG=FAKE\\0'\n"
    text = junk + "trap 'echo NCCL_DEBUG=FAKE' EXIT\nexport NCCL_DEBUG=INFO\n"
    with faults.written(lab.host("n1"), f"{HOME}/.profile", text):
        (found,) = check(lab)["env.shadow"]
    assert f"NCCL_DEBUG=INFO from {HOME}/.profile line 3" in str(found["seen"])


def test_a_profile_that_ends_the_shell_is_not_known_and_named(lab: Lab) -> None:
    with faults.written(lab.host("n1"), f"{HOME}/.profile", "\nexit 3\n"):
        found = check(lab)
    (shadow,) = found["env.shadow"]
    assert (shadow["verdict"], shadow["nodes"]) == ("unknown", ["n1"])
    assert f"{HOME}/.profile line 2" in str(shadow["message"])


def test_profiles_run_as_the_user_alone(lab: Lab) -> None:
    host = lab.host("n1")
    with faults.written(host, f"{HOME}/.profile", "id -un >> /tmp/who\n"):
        check(lab)
    assert set(host.read("/tmp/who").split()) == {TRAINER}


def test_secrets_stay_where_they_are(lab: Lab) -> None:
    with faults.written(
        lab.host("n1"),
        f"{HOME}/.profile",
        "export NCCL_DEBUG=INFO NCCL_API_KEY=h1dden TOKEN=h1dden\n",
    ):
        answer = clusterprep(
            lab, "check", "--only", "env.", inventory=lab.inventory(job_user=TRAINER)
        )
    assert "NCCL_DEBUG" in str(answer.report)
    assert "h1dden" not in str(answer.report)


def test_the_login_user_is_asked_too(lab: Lab) -> None:
    """Without job_user the session itself is the ssh command, so values need no second shell."""
    with faults.session_environment(lab.host("n3"), {"NCCL_DEBUG": "INFO"}):
        (found,) = check(lab, user=None)["env.shadow"]
    assert found["nodes"] == ["n3"]
    assert "ssh command" in str(found["seen"])
    with faults.written(lab.host("n3"), "/root/.bashrc", "export NCCL_DEBUG=INFO\n"):
        (found,) = check(lab, user=None)["env.shadow"]
    assert "/root/.bashrc line 1 (ssh command)" in str(found["seen"])
