"""The targets ssh, systemd and container by their real readers, and what each launch path gets.

The readers are sshd with PAM (ssh, scp, sftp, rsync), cron, systemd's own manager in its test mode,
and podman.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent.pam import parse_environment
from tests.support import readers
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults.files import inside

pytestmark = pytest.mark.hosts
TRAINER = "trainer"


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Lab:
    """Four nodes without GPUs and a user for jobs."""
    for host in lab4.hosts:
        faults.add_user(host, TRAINER)
    return lab4


def shadows(lab: Lab) -> list[str]:
    inventory = lab.inventory(job_user=TRAINER)
    answer = clusterprep(lab, "check", "--only", "env.shadow", inventory=inventory)
    return [str(finding["seen"]) for finding in answer.findings("env.shadow")]


def test_what_only_root_can_read_is_seen_where_root_reads_it(lab: Lab) -> None:
    """sshd's PAM reads /etc/environment as root, and systemd its units."""
    host = lab.host("n3")
    environment = faults.written(host, "/etc/environment", "NCCL_DEBUG=INFO\n", 0o600)
    unit = faults.written(
        host,
        "/etc/systemd/system/train.service",
        "[Service]\nEnvironment=NCCL_DEBUG=TRACE\n",
        0o600,
    )
    booted = faults.written(host, "/run/systemd/system/.there", "")
    with faults.together(environment, unit, booted):
        seen = shadows(lab)
    assert any("NCCL_DEBUG=INFO from /etc/environment line 1" in text for text in seen), seen
    assert any("NCCL_DEBUG=TRACE from /etc/systemd/system" in text for text in seen), seen


def test_a_session_without_pam_gets_nothing_of_its_file(lab: Lab) -> None:
    """Where sshd does not use PAM, /etc/environment is no source of variables."""
    host = lab.host("n3")
    line = "session required pam_env.so\n"
    no_pam = faults.changed(host, "/etc/pam.d/sshd", line, "")
    environment = faults.written(host, "/etc/environment", "NCCL_DEBUG=INFO\n")
    with faults.together(no_pam, environment):
        (seen,) = shadows(lab)
    assert seen == "NCCL_DEBUG=INFO from /etc/environment line 1 (cron)"


# ---------------------------------------------------------------- every target by its real reader

UNIT = "/etc/systemd/system/train@.service"
PODMAN = (
    "podman --storage-driver vfs run --rm --cgroups disabled --network host "
    "--ulimit nofile=1024:20000 --ulimit nproc=1000:1000 "
)
# An image of env(1) alone, which needs no registry.
IMAGE = """
mount -t tmpfs none /sys/fs/cgroup && mkdir /opt/image && cd /opt/image &&
cp --parents /usr/bin/env $(ldd /usr/bin/env | grep -o '/[^ ]*') . &&
tar -c . | podman --storage-driver vfs import - env 2>/dev/null
"""
SIGNS = "=a:b,c%d@e+f*[g]?{h}^!~i-größe"  # what every target holds
TARGETS = ["ssh", "systemd", "container"]
FOLDERS = (
    "/etc/containers/containers.conf.d",
    "/etc/enroot",
    f"{UNIT}.d",
)
PATHS = (
    "/etc/environment",
    f"{UNIT}.d/zz-clusterprep.conf",
    "/etc/containers/containers.conf.d/zz-clusterprep.conf",
    "/etc/enroot/environ.d/zz-clusterprep.env",
)


@pytest.fixture(scope="module")
def begun(lab: Lab) -> Lab:
    """Hosts that begin differently: n2 has all files of its own, n3 none, n4 lacks folders too."""
    for host in lab.hosts:
        host.write(UNIT, "[Service]\nExecStart=/bin/true\n")
    host = lab.host("n2")
    for number, path in enumerate(PATHS):
        text = "# mine" if number else "A=1\nNCCL_DEBUG=TRACE\nB='b'"
        host.write(path, text, (0o600, 0o640, 0o644, 0o644)[number])
        host.run(["chown", f"{TRAINER}:", path])
    lab.host("n3").run(["rm", "-f", "/etc/environment"])
    lab.host("n4").run(["rm", "-rf", "/etc/containers/containers.conf.d", "/etc/environment"])
    return lab


def inventory_of(lab: Lab, **more: Any) -> Path:
    settings = {
        "job_user": TRAINER,
        "env_targets": TARGETS,
        "env_units": ["train@.service"],
        "env": {"NCCL_DEBUG": "WARN", "TORCH_X": SIGNS},
        **more,
    }
    return lab.inventory(**settings)


def apply(lab: Lab, command: str = "apply", **more: Any) -> Answer:
    words = ["--no-verify"] if command == "apply" else []
    inventory = inventory_of(lab, **more)
    return clusterprep(lab, command, *words, "--only", "ssh.,env.", inventory=inventory)


def states(host: Host) -> dict[str, tuple[int, int, bytes] | None]:
    """Mode, owner and bytes of what the targets own, None for what is not there."""
    found: dict[str, tuple[int, int, bytes] | None] = {}
    for path in (*PATHS, *FOLDERS):
        place = inside(host, path)
        if not place.exists():
            found[path] = None
            continue
        state = place.stat()
        content = place.read_bytes() if place.is_file() else b""
        found[path] = (state.st_mode, state.st_uid, content)
    return found


def ssh(lab: Lab, program: str, *words: str | Path) -> str:
    options = ["-i", lab.key, "-o", f"UserKnownHostsFile={lab.known_hosts}"]
    return lab.controller.run([program, *options, *words], check=True).stdout


def cron(host: Host) -> dict[str, str]:
    """What a job of the job's user gets, started as cron starts jobs when it comes up."""
    host.write("/etc/cron.d/lab", f"@reboot {TRAINER} env -0 > /home/{TRAINER}/cron.env\n")
    # The job starts at once, and cron looks at its tables again only at the next full minute.
    script = (
        f"cd /; cron -f & for i in $(seq 100); do sleep 0.05; "
        f"test -s /home/{TRAINER}/cron.env && break; done; kill $!"
    )
    host.run(["sh", "-c", script])
    return readers.variables(host.read(f"/home/{TRAINER}/cron.env"))


def manager(host: Host, unit: str) -> dict[str, str]:
    """What systemd's own manager has for a unit.

    It loads all units and starts none, which it does for users alone.
    """
    script = (
        "mount -t cgroup2 none /sys/fs/cgroup && "
        f"mkdir -p /run/systemd && chown {TRAINER} /run/systemd && "
        f"runuser -u {TRAINER} -- /lib/systemd/systemd --test --system --unit={unit}; "
        "umount /sys/fs/cgroup; rm -rf /run/systemd"
    )
    text = host.run(["unshare", "--mount", "sh", "-c", script]).stdout
    _, _, dump = text.partition(f"-> Unit {unit}:")
    lines = dump.partition("-> Unit ")[0].splitlines()
    rows = [line.lstrip("\t") for line in lines]
    start = "Environment: "
    return dict(row[len(start) :].split("=", 1) for row in rows if row.startswith(start))


def podman(host: Host) -> dict[str, str]:
    """What a container gets that podman starts."""
    host.run(["sh", "-c", IMAGE])
    return readers.variables(host.run(["sh", "-c", f"{PODMAN} env /usr/bin/env -0"]).stdout)


def test_every_reader_gets_every_value_and_rollback_leaves_no_trace(
    begun: Lab, tmp_path: Path
) -> None:
    lab = begun
    before = {host.name: states(host) for host in lab.hosts}
    done = apply(lab)
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report["findings"]
    paths = {row["path"]: row for row in done.report["env_paths"]}
    for path in ("ssh command", "login shell", "cron", "podman"):
        assert "TORCH_X" in paths[path]["reaches"], path
        assert "add" not in paths[path], path
    assert len([change for change in done.report["changes"] if "n2" in change["nodes"]]) == 4
    host = lab.host("n2")
    wanted = {"NCCL_DEBUG": "WARN", "TORCH_X": SIGNS}
    command = readers.variables(ssh(lab, "ssh", f"root@{host.address}", "env -0"))
    assert command.items() >= {**wanted, "A": "1", "B": "b"}.items()
    copies_still_work(lab, host, tmp_path)
    assert cron(host).items() >= wanted.items()
    assert manager(host, "train@a.service").items() >= wanted.items()
    assert podman(host).items() >= {**wanted, "container": "podman"}.items()
    enroot = host.read("/etc/enroot/environ.d/zz-clusterprep.env")
    assert f"\nTORCH_X={SIGNS}\n" in enroot
    undone = clusterprep(lab, "rollback")
    assert (undone.code, undone.outcomes()) == (0, {"undone"})
    assert {host.name: states(host) for host in lab.hosts} == before


def test_units_and_containers_get_what_only_escapes_can_hold(begun: Lab) -> None:
    held = {
        "TORCH_A": "50%n %% $HOME #;",
        "TORCH_B": 'say "hi" it\'s',
        "TORCH_C": "C:\\new\\table \\",
        "TORCH_D": "  a  b ",
        "TORCH_E": "",
    }
    targets = ["systemd", "container"]
    done = apply(begun, env={**held, "NCCL_DEBUG": "WARN"}, env_targets=targets)
    assert done.outcomes() == {"done"}, done.report
    host = begun.host("n1")
    assert manager(host, "train@a.service").items() >= held.items()
    assert podman(host).items() >= held.items()
    assert clusterprep(begun, "rollback").code == 0


def copies_still_work(lab: Lab, host: Host, folder: Path) -> None:
    """scp in both protocols, sftp and rsync move bytes as they are."""
    source, back = folder / "source", folder / "back"
    source.write_bytes(bytes(range(256)) * 1000)
    there = f"root@{host.address}"
    remote = "/root/copied"
    ssh(lab, "scp", "-q", source, f"{there}:{remote}")
    ssh(lab, "scp", "-q", "-O", f"{there}:{remote}", back)
    assert back.read_bytes() == source.read_bytes()
    batch = folder / "batch"
    batch.write_text(f"get {remote} {back}.sftp\n")
    ssh(lab, "sftp", "-q", "-b", batch, there)
    assert Path(f"{back}.sftp").read_bytes() == source.read_bytes()
    shell = f"ssh -i {lab.key} -o UserKnownHostsFile={lab.known_hosts}"
    words = ["rsync", "-a", "-e", shell, f"{there}:{remote}", f"{back}.rsync"]
    lab.controller.run(words, check=True)
    assert Path(f"{back}.rsync").read_bytes() == source.read_bytes()


def test_a_value_that_a_reader_would_change_is_refused_before_a_write(begun: Lab) -> None:
    before = {host.name: states(host) for host in begun.hosts}
    refused = apply(begun, env={"TORCH_X": "a#b"})
    assert refused.code == 2
    assert "PAM, systemd and shells do not all read # (character 2) in ssh" in str(refused.report)
    assert {host.name: states(host) for host in begun.hosts} == before


def test_a_list_of_podman_that_would_be_displaced_stops_the_plan(begun: Lab) -> None:
    site = "[containers]\nenv = [\n  # site\n  'SITE=1',\n]\n"
    with faults.written(begun.host("n3"), "/etc/containers/containers.conf", site):
        planned = apply(begun, "plan")
    assert planned.code == 1
    (row,) = [row for row in planned.report["changes"] if row["nodes"] == ["n3"]]
    assert "/etc/containers/containers.conf line 4 sets env" in str(row)


def test_the_plan_says_which_sshd_would_not_read_it(begun: Lab) -> None:
    host = begun.host("n4")
    with faults.changed(host, "/etc/ssh/sshd_config", "UsePAM yes", "UsePAM no"):
        planned = apply(begun, "plan")
    rows = [row for row in planned.report["env_paths"] if row["path"] == "ssh command"]
    lacking = [row for row in rows if row.get("add")]
    assert [row["nodes"] for row in lacking] == [["n4"]]
    assert lacking[0]["add"].startswith("UsePAM is not yes in /etc/ssh/sshd_config: ")


ODD = """A=1
B=x \\

# a comment does not end the line
  C=3
D=blanks  \t
E="it's"
F='q"
G="x" y
H="x"\t
I=a#b
J="a#b"
K='
L=
export M=1
export  N=1
 O = 1
P-Q=1
\tR=a b
S=gone
S
É=1
T=größe
U=\\"""


def test_the_file_of_pam_is_read_as_pam_reads_it(lab: Lab) -> None:
    host = lab.host("n1")
    with faults.written(host, "/etc/environment", ODD):
        found = readers.variables(host.run(["su", TRAINER, "-c", "exec env -0"]).stdout)
    expected = {name: value for name, value in found.items() if len(name) == 1 and name != "_"}
    assert parse_environment(ODD) == expected
    assert len(expected) == 14


def test_what_the_node_s_own_files_give_to_cron_and_podman(lab: Lab) -> None:
    host = lab.host("n1")
    crontab = faults.written(
        host, f"/var/spool/cron/crontabs/{TRAINER}", "# x\nNCCL_DEBUG = 'INFO'\n", 0o600
    )
    conf = "[engine]\n[containers]\nlog_size_max = 1\nenv = ['X=1', \"NCCL_DEBUG=TRACE\"]\n"
    own = faults.written(host, f"/home/{TRAINER}/.config/containers/containers.conf", conf)
    with faults.together(crontab, own):
        seen = shadows(lab)
    assert f"NCCL_DEBUG=TRACE from /home/{TRAINER}/.config/containers/containers.conf line 4 " in (
        "".join(seen)
    )
    assert f"NCCL_DEBUG=INFO from /var/spool/cron/crontabs/{TRAINER} line 2 (cron)" in seen
