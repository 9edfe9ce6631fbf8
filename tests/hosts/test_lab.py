"""The lab is what it claims to be: separate hosts, faults that come and go, no leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lab import Host, Lab, faults, sweep
from tests.support.lab.fixtures import SharedLab, lab4, make_lab, require_lab, shared_lab
from tests.support.lab.lab import REPOSITORY
from tests.support.lab.layout import Spec, address_of
from tests.support.lab.node import EMPTY
from tests.support.patience import eventually, killed_on_failure

__all__ = ["lab4", "make_lab", "shared_lab"]

BOOT_ID = "/proc/sys/kernel/random/boot_id"

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()
except OSError as error:
    sys.exit(type(error).__name__)
"""


def ssh(lab: Lab, host: Host, *command: str, user: str = "root") -> str:
    done = lab.controller.run(lab.ssh(host, *command, user=user), timeout=60)
    return done.stdout.strip() or done.stderr.strip()


def connect(source: Host, target: Host, port: int = 22, patience: float = 5) -> str:
    """Empty if a connection comes about, else the kind of error."""
    command = [sys.executable, "-c", CONNECT, target.address, str(port), str(patience)]
    return source.run(command, check=False).stderr.strip()


def runs(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


# Hosts


@pytest.mark.hosts
def test_ssh_with_strict_host_keys_reaches_every_host(lab4: Lab) -> None:
    assert [ssh(lab4, host, "hostname") for host in lab4.hosts] == ["n1", "n2", "n3", "n4"]


@pytest.mark.hosts
def test_hosts_reach_each_other(lab4: Lab) -> None:
    first, *others = lab4.hosts
    assert [connect(host, first) for host in others] == ["", "", ""]


@pytest.mark.hosts
def test_hosts_are_separate(lab4: Lab) -> None:
    one, other = lab4.hosts[:2]
    for place in ("/tmp", "/dev/shm", "/run", "/var/tmp", "/etc", "/root"):
        one.write(f"{place}/mark", "one")
        assert other.run(["test", "-e", f"{place}/mark"], check=False).returncode == 1
        assert not Path(place, "mark").exists()
    for file in (
        "/etc/machine-id",
        "/etc/hostname",
        "/proc/sys/kernel/random/boot_id",
        "/etc/hosts",
    ):
        assert (one.read(file) == other.read(file)) == (file == "/etc/hosts")


@pytest.mark.hosts
def test_folders_of_the_machines_owner_are_empty_but_for_what_is_kept(lab4: Lab) -> None:
    kept = [Path(path) for path in Spec.load(lab4.layout.spec).keep]
    for name in EMPTY:
        place = Path("/", name)
        wanted = {path.relative_to(place).parts[0] for path in kept if place in path.parents}
        assert set(lab4.hosts[0].run(["ls", "-A", place]).stdout.split()) == wanted


@pytest.mark.hosts
def test_a_host_has_one_network_and_its_own_processes(lab4: Lab) -> None:
    host = lab4.hosts[0]
    assert sorted(host.run(["ls", "/sys/class/net"]).stdout.split()) == ["eth0", "lo"]
    assert host.processes("^/usr/sbin/sshd|^sshd:")[0] == 1
    assert (
        lab4.controller.run(["ip", "-brief", "-4", "address"]).stdout.split()[-1] == "10.77.0.1/16"
    )


@pytest.mark.hosts
def test_own_name_is_the_address_in_the_lab(lab4: Lab) -> None:
    assert lab4.hosts[2].run(["getent", "hosts", "n3"]).stdout.split()[0] == "10.77.0.4"


@pytest.mark.hosts
def test_the_interpreter_and_the_checkout_are_visible(lab4: Lab) -> None:
    host = lab4.hosts[0]
    assert host.run([sys.executable, "-c", "print(1)"]).stdout == "1\n"
    assert host.run(["test", "-e", __file__], check=False).returncode == 0


@pytest.mark.hosts
def test_the_machine_cannot_be_changed_from_a_host(lab4: Lab) -> None:
    for command in (
        "date -s 2001-01-01",
        "sysctl -w vm.swappiness=1",
        "echo 1 > /sys/kernel/mm/ksm/run",
    ):
        done = lab4.controller.run(lab4.ssh(lab4.hosts[0], command))
        assert done.returncode, command
    assert ssh(lab4, lab4.hosts[0], "sysctl -w net.ipv4.tcp_rmem='4096 131072 99'").startswith(
        "net.ipv4"
    )


@pytest.mark.hosts
def test_a_command_that_hangs_ends_with_its_children(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with pytest.raises(subprocess.TimeoutExpired):
        host.run(["sh", "-c", "sleep 4711; true"], timeout=0.2)
    assert eventually(lambda: not host.processes("sleep 4711"))


@pytest.mark.hosts
def test_inventory_names_all_hosts(lab4: Lab, tmp_path: Path) -> None:
    content = json.loads(
        lab4.inventory(tmp_path / "lab.yaml", cluster="other", python=None).read_text()
    )
    assert content["cluster"] == "other"
    assert content["nodes"] == [{"name": "n[1-4]", "address": "10.77.0.[2-5]"}]
    assert Path(content["ssh"]["identity_file"]).exists()
    assert "python" not in content


def test_address_plan_avoids_the_ends_of_a_block() -> None:
    assert [address_of(i) for i in (1, 250, 251, 501)] == [
        "10.77.0.2",
        "10.77.0.251",
        "10.77.1.2",
        "10.77.2.2",
    ]


# Faults


@pytest.mark.hosts
def test_clock(lab4: Lab) -> None:
    host = lab4.hosts[0]

    def offset() -> float:
        return float(ssh(lab4, host, "date", "+%s.%N")) - time.time()

    with faults.clock(host, 5):
        assert offset() == pytest.approx(5, abs=0.5)
    assert offset() == pytest.approx(0, abs=0.5)
    assert host.run(["ls", "/dev/shm"]).stdout.split() in ([], ["mark"])


@pytest.mark.hosts
def test_old_kernel(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with faults.old_kernel(host):
        assert ssh(lab4, host, "uname -r").startswith("2.6.")
    assert ssh(lab4, host, "uname -r") == os.uname().release


@pytest.mark.hosts
def test_mtu(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with faults.mtu(host, 9000):
        assert ssh(lab4, host, "cat /sys/class/net/eth0/mtu") == "9000"
    assert ssh(lab4, host, "cat /sys/class/net/eth0/mtu") == "1500"


@pytest.mark.hosts
def test_dropped_port(lab4: Lab) -> None:
    one, other = lab4.hosts[:2]
    with faults.drop_port(other, 22):
        assert connect(one, other, patience=0.5) == "TimeoutError"
    with faults.refuse_port(other, 22):
        assert connect(one, other) == "ConnectionRefusedError"
    assert connect(one, other) == ""


@pytest.mark.hosts
def test_dropped_pair_leaves_the_others_alone(lab4: Lab) -> None:
    one, other, third = lab4.hosts[:3]
    with faults.drop_pair(one, other):
        assert (
            connect(one, other, patience=0.5) == connect(other, one, patience=0.5) == "TimeoutError"
        )
        assert connect(one, third) == connect(third, other) == ""


@pytest.mark.hosts
def test_link_down(lab4: Lab) -> None:
    one, other = lab4.hosts[:2]
    with faults.link_down(other):
        assert connect(one, other, patience=0.5) == "TimeoutError"
    assert connect(one, other) == ""


@pytest.mark.hosts
def test_slow_link(lab4: Lab) -> None:
    host, command = lab4.hosts[0], "head -c 500000 /dev/zero | base64"
    with faults.slow(host, "10mbit"):
        before = time.monotonic()
        ssh(lab4, host, command)
        assert time.monotonic() - before > 0.4
    assert "tbf" not in host.run(["tc", "qdisc", "show"]).stdout


@pytest.mark.hosts
def test_more_interfaces(lab4: Lab) -> None:
    one, other = lab4.hosts[:2]
    with faults.docker0(one), faults.second_veth([one, other]):
        shown = one.run(["ip", "-brief", "address"]).stdout
        assert "172.17.0.1/16" in shown
        assert "10.88.0.2/16" in shown
    assert one.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]


@pytest.mark.hosts
def test_packet_loss_is_in_place_and_gone(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with faults.loss(host, 0.25):
        assert "numgen random mod 10000 < 2500 drop" in host.run(["nft", "list", "ruleset"]).stdout
    assert host.run(["nft", "list", "ruleset"]).stdout == ""


@pytest.mark.hosts
def test_names_and_keys(lab4: Lab) -> None:
    host = lab4.hosts[1]
    with faults.loopback_name(host):
        assert host.run(["getent", "hosts", "n2"]).stdout.split()[0] == "127.0.1.1"
    with faults.new_host_key(host):
        assert "Host key verification failed" in ssh(lab4, host, "hostname")
    assert ssh(lab4, host, "hostname") == "n2"


@pytest.mark.hosts
def test_frozen_sshd_lets_connect_and_says_nothing(lab4: Lab) -> None:
    host = lab4.hosts[1]
    with faults.stop_sshd(host):
        assert connect(lab4.hosts[0], host) == ""
        with pytest.raises(subprocess.TimeoutExpired):
            lab4.controller.run(lab4.ssh(host, "true"), timeout=0.5)
    assert ssh(lab4, host, "hostname") == "n2"


@pytest.mark.hosts
def test_occupied_port(lab4: Lab) -> None:
    one, other = lab4.hosts[:2]
    with faults.occupy(one, 29500):
        assert connect(other, one, 29500) == ""
    assert connect(other, one, 29500) == "ConnectionRefusedError"


@pytest.mark.hosts
def test_recorded_devices_and_kernel_files(lab4: Lab) -> None:
    host = lab4.hosts[0]
    state = "/sys/class/infiniband/mlx5_0/ports/1/state"
    speed = "/sys/class/net/eth0/speed"
    with faults.sys_tree(host, {state: "4: ACTIVE\n"}), faults.sys_tree(host, {speed: "200000\n"}):
        assert ssh(lab4, host, f"cat {state} {speed}") == "4: ACTIVE\n200000"
    with (
        faults.sys_tree(host, {state: "4: ACTIVE\n"}),
        faults.own_sysctl(host, "vm.swappiness", "7"),
    ):
        assert ssh(lab4, host, f"cat {state} && ls /sys/class/net") == "4: ACTIVE\neth0\nlo"
        assert ssh(lab4, host, "sysctl -w vm.swappiness=8 && cat /proc/sys/vm/swappiness").endswith(
            "\n8"
        )
    assert not host.run(["ls", "/sys/class"]).stdout.count("infiniband")


@pytest.mark.hosts
def test_gpus_that_are_described(lab4: Lab) -> None:
    host = lab4.hosts[0]
    ask = (
        "python3 -c 'import ctypes; n = ctypes.CDLL(\"libnvidia-ml.so.1\"); print(n.nvmlInit_v2())'"
    )
    with faults.gpus(host, [{"count": 8, "model": "h100"}]):
        assert ssh(lab4, host, ask) == "0"
        assert ssh(
            lab4, host, "ls /dev | grep -c 'nvidia[0-9]'; ls /sys/bus/pci/devices | head -1"
        ).startswith("8\n")
    with faults.gpus(host, [{"count": 8}], init=18, bus=False):
        assert ssh(lab4, host, ask) == "18"
    assert (
        host.run(
            ["sh", "-c", "ls /dev/nvidia* /usr/lib/x86_64-linux-gnu/libnvidia-ml*"], check=False
        ).stdout
        == ""
    )


@pytest.mark.hosts
def test_files_that_cannot_be_written(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with faults.read_only(host, "/etc/profile.d"):
        assert "Read-only" in ssh(lab4, host, "touch /etc/profile.d/x")
    with faults.full(host, "/etc/profile.d"):
        assert "No space" in ssh(lab4, host, "echo 1 > /etc/profile.d/x")
    assert ssh(lab4, host, "touch /etc/profile.d/x && rm /etc/profile.d/x") == ""


@pytest.mark.hosts
def test_hidden_python(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with faults.hide_python(host):
        assert "not found" in ssh(lab4, host, "python3 -V")
    assert ssh(lab4, host, "python3 -V").startswith("Python 3")


@pytest.mark.hosts
def test_ordinary_users(lab4: Lab) -> None:
    host = lab4.hosts[0]
    with (
        faults.add_user(host, "ann", "nopasswd"),
        faults.add_user(host, "bob", "password", "s3cret"),
    ):
        assert ssh(lab4, host, "sudo -n id -u", user="ann") == "0"
        assert "password is required" in ssh(lab4, host, "sudo -n id -u", user="bob")
        assert ssh(lab4, host, "echo s3cret | sudo -S -p '' id -u", user="bob") == "0"
        assert host.run(["id", "-un"], user="ann").stdout == "ann\n"
    assert host.run(["id", "ann"], check=False).returncode == 1


@pytest.mark.hosts
def test_reboot_and_power_off(make_lab: Callable[..., Lab]) -> None:
    one, other = make_lab(2).hosts
    boot = one.read("/proc/sys/kernel/random/boot_id")
    one.write("/etc/kept", "yes")
    faults.reboot(one)
    faults.power_off(other)
    assert one.read("/proc/sys/kernel/random/boot_id") != boot
    assert one.read("/etc/kept") == "yes"
    assert (one.alive(), other.alive()) == (True, False)


@pytest.mark.hosts
def test_time_source(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, chrony=True)
    lab.wait_time_sync()
    host = lab.hosts[0]
    with faults.unsynchronised(host):
        assert "Not synchronised" in host.run(["chronyc", "-c", "tracking"]).stdout
    lab.wait_time_sync()


# Resets

STATE = """
find /tmp /var/tmp /run /dev ! -path '/dev/pts/*' ! -path "$0/*" ! -path "$1/*" ! -name '*.pid' \\
    -printf '%p %M %U %l\\n' | sort
hostname; umask; ulimit -n
ip -brief address show eth0 | sed 's/fe80[^ ]*//'; ip -brief link | cut -d@ -f1
cat /sys/class/net/*/mtu
ip route; ip rule; ip neighbour show nud permanent
tc qdisc show dev eth0; nft list ruleset
sysctl net 2>/dev/null | grep -vE 'random|secret|stable|fib_sync_mem|nf_conntrack_count'
cut -d' ' -f4- /proc/self/mountinfo | sed -E 's/ (shared|master):[0-9]+//; s/rdev=.*//'
seen=$(ps -eo comm=); echo "$seen" | sort -u
"""
CONTROLLER_STATE = (
    "ip -brief -4 address; ip route; ip neighbour show nud permanent; tc qdisc; nft list ruleset"
)
RATE = "rate 10mbit burst 32kbit latency 400ms".split()
DIRT = {
    "file created": "echo 1 > /etc/new",
    "file changed": "echo '# more' >> /etc/passwd",
    "file deleted": "rm /etc/hosts",
    "mode": "chmod 600 /etc/profile",
    "folder replaced": "rm -r /etc/profile.d && mkdir /etc/profile.d",
    "start-up file": "echo 'exit 1' > /root/.bashrc",
    "authorized keys": "rm -r /root/.ssh",
    "scratch": "for d in /tmp /var/tmp /run /dev/shm /srv /home; do touch $d/mark; done",
    "device": "mknod /dev/nvidia0 c 195 0",
    "process": "setsid sleep 4711 > /dev/null 2>&1 &",
    "queue": "tc qdisc add dev eth0 root tbf rate 10mbit burst 32kbit latency 400ms",
    "filter": "nft add table inet t && "
    "nft add chain inet t c '{ type filter hook input priority 0; policy drop; }'",
    "mtu": "ip link set eth0 mtu 9000",
    "address": "ip address add 10.99.0.1/24 dev eth0",
    "link": "ip link add v0 type veth peer name v1",
    "route": "ip route add 10.98.0.0/16 dev eth0",
    "neighbour": "ip neighbour add 10.77.0.99 lladdr 02:00:00:00:00:01 dev eth0",
    "interface down": "ip link set eth0 down",
    "sysctl": "sysctl -qw net.ipv4.ip_local_port_range='40000 40100'",
    "mount": "mount -t tmpfs none /etc/profile.d",
    "read-only": "mount -o remount,ro /",
    "hostname": "hostname other",
    "user": "useradd -m ann",
}


def looked_at(lab: Lab) -> list[list[str]]:
    """Return what each host and the controller show of themselves.

    All of it is the same for a lab that is as new.
    """
    ours = (REPOSITORY, Path(sys.prefix))  # may be below /tmp, and other tests write there
    hosts = [
        files(host) + host.run(["sh", "-c", STATE, *ours]).stdout.splitlines() for host in lab.hosts
    ]
    home = sorted(str(path.relative_to(lab.folder)) for path in lab.home.rglob("*"))
    folder = sorted(path.name for path in lab.folder.iterdir())
    shown = lab.controller.run(["sh", "-c", CONTROLLER_STATE]).stdout
    return [*hosts, home, folder, shown.splitlines()]


def changed(before: list[list[str]], after: list[list[str]]) -> list[str]:
    """Lines that came or went, of all places."""
    return [line for old, new in zip(before, after, strict=True) for line in {*old} ^ {*new}]


def files(host: Host) -> list[str]:
    """What differs from the machine's files, where that is not another thing for each birth.

    Keys, and the id.
    """
    upper, found = host.folder / "upper", []
    for path in sorted(upper.rglob("*")):
        own = path.name == "machine-id" or "key" in path.name
        content = path.read_bytes() if path.is_file() and not own else b""
        found.append(f"{path.relative_to(upper)} {path.lstat().st_mode:o} {content!r}")
    return found


@pytest.mark.hosts
def test_a_reset_takes_back_whatever_was_done_to_a_host(lab4: Lab) -> None:
    lab4.reset()
    born, kinds = looked_at(lab4), list(DIRT)
    for first in range(0, len(kinds), len(lab4.hosts)):
        # One kind on each host, as some take away what the next ones need.
        some = kinds[first : first + len(lab4.hosts)]
        for host, kind in zip(lab4.hosts, some, strict=False):
            host.run(["sh", "-c", DIRT[kind]])
        dirty = looked_at(lab4)
        assert [kind for number, kind in enumerate(some) if dirty[number] == born[number]] == []
        lab4.reset()
        assert changed(born, looked_at(lab4)) == [], some
        assert [ssh(lab4, host, "hostname") for host in lab4.hosts] == ["n1", "n2", "n3", "n4"]


@pytest.mark.hosts
def test_a_reset_takes_back_what_was_done_to_the_controller(lab4: Lab) -> None:
    lab4.reset()
    born = looked_at(lab4)
    (lab4.home / ".bashrc").touch()
    (lab4.home / ".ssh/config").write_text("Host *\n  User nobody\n")
    lab4.inventory()
    lab4.controller.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *RATE], check=True)
    lab4.controller.run(["ip", "address", "add", "10.99.0.9/24", "dev", "eth0"], check=True)
    with killed_on_failure(lab4.controller.popen(["sleep", "4711"])) as left:
        # Until then it may be on its way there, and not yet the controller's.
        assert eventually(
            lambda: Path(f"/proc/{left.pid}/cmdline").read_bytes() == b"sleep\x004711\0"
        )
        lab4.reset()
        assert left.wait() == -signal.SIGKILL
    assert (lab4.home / ".ssh/config").read_text() == ""
    assert changed(born, looked_at(lab4)) == []


@pytest.mark.hosts
def test_a_reset_brings_back_hosts_that_are_down_or_frozen(lab4: Lab) -> None:
    lab4.reset()
    born, boots = looked_at(lab4), [host.read(BOOT_ID) for host in lab4.hosts]
    faults.power_off(lab4.hosts[0])
    faults.freeze(lab4.hosts[1])
    faults.reboot(lab4.hosts[2])
    faults.second_veth(lab4.hosts[2:])
    lab4.reset()
    assert changed(born, looked_at(lab4)) == []
    assert not {host.read(BOOT_ID) for host in lab4.hosts} & set(boots)
    assert [ssh(lab4, host, "hostname") for host in lab4.hosts] == ["n1", "n2", "n3", "n4"]


@pytest.mark.hosts
def test_a_lab_can_be_reset_as_soon_as_it_is_there() -> None:
    require_lab()
    for _ in range(10):
        with Lab(1) as lab:
            lab.reset()


@pytest.mark.hosts
def test_a_lab_that_cannot_be_reset_is_replaced() -> None:
    require_lab()
    shared = SharedLab()
    try:
        first = shared.borrow()
        os.kill(first.supervisor, signal.SIGKILL)
        assert eventually(lambda: not runs(first.hosts[0].pid))
        second = shared.borrow()
        assert second is not first
        assert ssh(second, second.hosts[3], "hostname") == "n4"
        assert shared.borrow() is second
    finally:
        shared.stop()


@pytest.mark.hosts
def test_hosts_do_not_depend_on_what_started_the_tests() -> None:
    require_lab()
    asked = (
        "umask; grep -E '^Sig(Blk|Ign)' /proc/self/status; ulimit -Sn; "
        "ls -A /srv /home /opt /mnt /media; locale"
    )
    script = (
        "import os, sys; from tests.support.lab import Lab\n"
        "with Lab(1) as lab:\n (host,) = lab.hosts\n"
        f" print(host.run(['sh', '-c', {asked!r}]).stdout,"
        f" lab.controller.run(lab.ssh(host, {asked!r})).stdout)"
    )
    plain = [sys.executable, "-c", script]
    odd = "umask 077; ulimit -Sn 256; trap '' HUP INT QUIT USR1; exec \"$@\""
    environment = os.environ | {"LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Kolkata", "LANGUAGE": "de"}
    said = [
        subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
        for argv, env in ((plain, os.environ), (["sh", "-c", odd, "sh", *plain], environment))
    ]
    umask, blocked, ignored = said[0].stdout.splitlines()[:3]
    # Signals 32 and 33 are the C library's own, which no program can set.
    settable = sum(1 << (number - 1) for number in signal.valid_signals())
    masks = [int(line.split(":")[1], 16) & settable for line in (blocked, ignored)]
    assert (umask, masks) == ("0022", [0, 0]), said[0].stderr
    assert said[1].stdout == said[0].stdout, said[1].stderr


# Ends


def everything(lab: Lab) -> list[int]:
    """Processes of a lab, as the machine counts."""
    return [lab.supervisor, *(pid for host in lab.hosts for pid in faults.machine_pids(host))]


def assert_nothing_left(folder: Path, pids: list[int]) -> None:
    assert eventually(lambda: not any(map(runs, pids)))
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    sweep()
    assert not folder.exists()


@pytest.mark.hosts
def test_stop_leaves_nothing(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, chrony=True)
    started = lab.controller.popen(["sleep", "4711"])
    lab.hosts[0].run(["sh", "-c", "setsid sleep 4711 >/dev/null 2>&1 &"])
    folder, pids = lab.folder, everything(lab)
    lab.stop()
    assert not folder.exists()
    assert_nothing_left(folder, [*pids, started.pid])
    assert started.wait() == -signal.SIGKILL


@pytest.mark.hosts
def test_killed_supervisor_leaves_nothing(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, chrony=True)
    folder, pids = lab.folder, everything(lab)
    os.kill(lab.supervisor, signal.SIGKILL)
    assert_nothing_left(folder, pids)


@pytest.mark.hosts
def test_killed_owner_leaves_nothing(make_lab: Callable[..., Lab]) -> None:
    del make_lab  # only for the question whether there can be a lab
    script = (
        "import os; from tests.support.lab import Lab; lab = Lab(2); lab.start(os.getpid());"
        "print(lab.folder, lab.supervisor, *(host.pid for host in lab.hosts), flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    folder, *pids = done.stdout.split()
    assert len(pids) == 3, done.stderr
    assert_nothing_left(Path(folder), [int(pid) for pid in pids])


@pytest.mark.hosts
def test_by_hand(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    del make_lab

    def by_hand(*words: str) -> str:
        # A folder of its own, so that a lab that was started by hand stays.
        env = os.environ | {"CLUSTERPREP_LAB_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "tests.support.lab", *words]
        return subprocess.run(
            command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True
        ).stdout

    try:
        assert "inventory" in by_hand("up", "-n", "1")
        assert "10.77.0.2" in by_hand("status")
        assert by_hand("exec", "n1", "--", "hostname") == "n1\n"
        assert "10.77.0.1/16" in by_hand("exec", "controller", "--", "ip", "-4", "address")
    finally:
        by_hand("down")
    assert list(tmp_path.iterdir()) == []
