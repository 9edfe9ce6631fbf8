"""Lines of real kernels: which are complaints, for how long, and what silence is worth."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.log import KINDS
from clusterprep.facts.kernel_log import PHRASES, KernelLog, KernelRecord
from clusterprep.model import Absent
from tests.support.fleet import absent, findings, fleet, told
from tests.support.kernel_lines import facts_of, ring_answer

NOW = 30 * 86400.0
LINES = {
    "soft lockup": "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:48213]",
    "hard lockup": "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
    "RCU stall": "rcu: INFO: rcu_sched self-detected stall on CPU",
    "hung task": "INFO: task python3:48213 blocked for more than 120 seconds.",
    "out of memory": "Out of memory: Killed process 48213 (python3) "
    "total-vm:2098304kB, anon-rss:1891232kB",
    "limit of memory": "Memory cgroup out of memory: Killed process 91 (python3) "
    "total-vm:2098304kB, anon-rss:2000000kB",
    "killed for memory": "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, "
    "oom_score_adj=0",
    "machine check": "mce: [Hardware Error]: Machine check events logged",
    "memory error": "Memory failure: 0x1234567: recovery action for dirty LRU page: Recovered",
    "I/O error": "I/O error, dev nvme3n1, sector 1953525040 op 0x0:(READ) "
    "flags 0x80700 phys_seg 1 prio class 2",
    "file system error": "EXT4-fs error (device md0): ext4_find_entry:1658: "
    "inode #2: comm sshd: reading directory",
    "NVMe timeout": "nvme nvme3: I/O 12 QID 3 timeout, aborting",
    "adapter health": "mlx5_core 0000:18:00.0: poll_health:823: "
    "device's health compromised - reached miss count",
    "kernel fault": "BUG: unable to handle page fault for address: ffffb0b2c0a4f000",
}
MORE = [
    ("RCU stall", "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"),
    ("out of memory", "Out of memory: Kill process 912 (python) score 900 or sacrifice child"),
    (
        "out of memory",
        (
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
            "task_memcg=/user.slice,task=python3,pid=4711,uid=1000"
        ),
    ),
    (
        "out of memory",
        "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=job,mems_allowed=0",
    ),
    ("out of memory", "Out of memory (oom_kill_allocating_task): Killed process 4711 (python3)"),
    (
        "limit of memory",
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
            "oom_memcg=/slurm/uid_1000/job_77,task_memcg=/slurm/uid_1000/job_77,task=python3"
        ),
    ),
    (
        "limit of memory",
        "Memory cgroup out of memory: Kill process 912 (python) score 900 or sacrifice child",
    ),
    ("limit of memory", "Task in /slurm/job_7 killed as a result of limit of /slurm/job_7"),
    ("killed for memory", "oom_reaper: reaped process 912 (python), now anon-rss:0kB"),
    (
        "memory error",
        (
            "EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#1 (channel:0 slot:1 "
            "page:0x7740c0 offset:0x0 grain:32)"
        ),
    ),
    ("machine check", "{1}[Hardware Error]: event severity: fatal"),
    ("memory error", "mce: Uncorrected hardware memory error in user-access at 3fff2a8c0"),
    ("I/O error", "blk_update_request: I/O error, dev sda, sector 2048"),
    ("I/O error", "Buffer I/O error on dev dm-0, logical block 0, async page read"),
    ("I/O error", "critical medium error, dev sdb, sector 77"),
    ("file system error", "EXT4-fs (md0): Remounting filesystem read-only"),
    (
        "file system error",
        "XFS (nvme1n1): Metadata corruption detected at xfs_agf_read_verify+0xd1/0x120 [xfs]",
    ),
    (
        "file system error",
        "XFS (sda1): Corruption of in-memory data (0x8) detected at xfs_defer_finish",
    ),
    # Formats of fs/xfs: xfs_buf.c, xfs_fsops.c, xfs_error.c and xfs_log.c; devices are composed.
    (
        "file system error",
        'XFS (nvme2n1): metadata I/O error in "xfs_da_read_buf+0x9e/0xe0 [xfs]" at daddr 0x2 len 8',
    ),
    (
        "file system error",
        "XFS (nvme2n1): Metadata I/O Error (0x4) detected at xfs_trans_read_buf_map+0x1/0x2 [xfs]",
    ),
    ("file system error", "XFS (md0): Metadata CRC error detected at xfs_agf_read_verify+0xd1"),
    ("file system error", "XFS (md0): log I/O error -5"),
    ("file system error", "XFS (md0): I/O Error Detected. Shutting down filesystem"),
    ("file system error", "XFS (md0): Filesystem has been shut down due to log error (0x2)."),
    ("file system error", "XFS (md0): Corruption detected. Unmount and run xfs_repair"),
    ("file system error", "XFS (md0): Internal error xfs_trans_cancel at line 957 of file x.c"),
    ("file system error", "XFS (md0): log mount failed"),
    (
        "NVMe timeout",
        "nvme nvme0: I/O tag 3 (1003) opcode 0x2 (I/O Cmd) QID 17 timeout, reset controller",
    ),
    (
        "NVMe timeout",
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
    ),
    ("kernel fault", "kernel BUG at mm/slub.c:4023!"),
    ("kernel fault", "Oops: 0000 [#1] SMP NOPTI"),
    ("kernel fault", "Internal error: Oops: 0000000096000004 [#1] SMP"),
    (
        "kernel fault",
        (
            "general protection fault, probably for non-canonical address "
            "0xdead000000000122: 0000 [#1] SMP"
        ),
    ),
    ("kernel fault", "BUG: kernel NULL pointer dereference, address: 0000000000000008"),
    ("kernel fault", "Unable to handle kernel paging request at virtual address ffff800012345678"),
    ("kernel fault", "Kernel panic - not syncing: Fatal exception"),
]
HARMLESS = [
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)",
    "systemd[1]: Listening on UE Socket.",
    "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x0",
    "Buffer I/O error on dev loop3, logical block 0",
    "traps: python3[4711] general protection fault ip:7f0 sp:7ff error:0 in libc.so.6",
    "BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 31s!",
    "EXT4-fs (md0): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "{1}[Hardware Error]: event severity: corrected",
    "[Firmware Bug]: TSC_DEADLINE disabled due to Errata",
    "ACPI BIOS Error (bug): Could not resolve symbol",
    "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
]


# The newest is the last.
BESIDE = [
    pytest.param(
        (
            "EXT4-fs error (device dm-17): ext4_journal_check_start:87: comm a: Detected aborted",
            "EXT4-fs (dm-17): Remounting filesystem read-only",
            "EXT4-fs error (device dm-21): ext4_journal_check_start:87: comm b: Detected aborted",
            "EXT4-fs (dm-21): Remounting filesystem read-only",
        ),
        "file system error: 4 times, last 10 min ago, "
        "«EXT4-fs (dm-21): Remounting filesystem read-only»; also dm-17",
        id="two-file-systems",
    ),
    pytest.param(
        (
            "BTRFS info (device sdb1 state E): forced readonly",
            "BTRFS info (device nvme0n1p2: state E): forced readonly",
        ),
        "file system error: 2 times, last 10 min ago, "
        "«BTRFS info (device nvme0n1p2: state E): forced readonly»; also sdb1",
        id="two-of-btrfs",
    ),
    pytest.param(
        (
            "blk_update_request: critical medium error, dev nvme0n1, sector 77 op 0x0:(READ)",
            "critical medium error, dev nvme3n1, sector 78 op 0x0:(READ)",
            "I/O error, dev sdc, sector 4 op 0x0:(READ)",
        ),
        "I/O error: 3 times, last 10 min ago, «I/O error, dev sdc, sector 4 op 0x0:(READ)»; also "
        "nvme3n1, nvme0n1",
        id="three-disks",
    ),
    pytest.param(
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)",
            "EDAC MC1: 2 UE memory scrubbing error on DIMM_B2 or DIMM_B1 (channel:0)",
            "Memory failure: 0x7740c0: recovery action for dirty page: Recovered",
        ),
        "memory error: 2 times, last 10 min ago, «Memory failure: 0x7740c0: recovery action for "
        "dirty page: Recovered»; also DIMM_B2 or DIMM_B1, CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        id="two-dimms",
    ),
    pytest.param(
        (
            "nvme nvme1: I/O 12 QID 3 timeout, aborting",
            "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        ),
        "NVMe timeout: 2 times, last 10 min ago, «nvme nvme0: controller is down; will reset: "
        "CSTS=0xffffffff, PCI_STATUS=0xffff»; also nvme1",
        id="two-nvmes",
    ),
    pytest.param(
        tuple(f"I/O error, dev sd{disk}, sector 4" for disk in "abcdefghijk"),
        "I/O error: 11 times, last 10 min ago, «I/O error, dev sdk, sector 4»; also "
        "sdj, sdi, sdh, sdg, sdf, sde, sdd, sdc and 2 more",
        id="many",
    ),
]
OOM_OF_A_JOB = (
    "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job",
    "Memory cgroup out of memory: Killed process 91 (python3) total-vm:2098304kB",
    "oom_reaper: reaped process 91 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
)
OOM_OF_THE_NODE = (
    "sshd invoked oom-killer: gfp_mask=0x6200ca(GFP_HIGHUSER_MOVABLE), nodemask=(null), order=0",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom",
    "Out of memory: Killed process 92 (python3) total-vm:2098304kB, anon-rss:1891232kB",
    "oom_reaper: reaped process 92 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
)


def log(*records: tuple[str, float], **fields: Any) -> dict[str, Any]:
    """Texts with their age in seconds."""
    found = tuple(
        KernelRecord(n, NOW - age, 3, 1, NOW - age, text)
        for n, (text, age) in enumerate(records, 1)
    )
    return {
        "log.records": KernelLog(
            **{"now": NOW, "first_number": 0, "first_seconds": 0.0, "records": found, **fields}
        )
    }


def test_every_kind_has_a_line_here() -> None:
    assert set(LINES) == {kind.name for kind in KINDS}


@pytest.mark.parametrize(("kind", "text"), [*LINES.items(), *MORE])
def test_a_complaint_is_known_for_what_it_is_and_travels_home(kind: str, text: str) -> None:
    assert [k.name for k in KINDS if k.pattern.search(text)] == [kind]
    assert any(word in text for word in PHRASES)
    seen = fleet(n1=log((text, 60.0)))
    assert told(seen, "log.kernel") == {"n1": "fail warning"}
    (bad,) = findings(seen, "log.kernel")
    assert bad.seen.startswith(f"{kind}: last 60 s ago, «{text[:60]}")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_healthy_machines_say_is_no_complaint(text: str) -> None:
    assert told(fleet(n1=log((text, 60.0))), "log.kernel") == {"n1": "pass"}


@pytest.mark.parametrize("kind", sorted(LINES))
def test_what_is_over_counts_for_a_day_at_most_and_damage_until_the_next_boot(kind: str) -> None:
    stays = kind in {
        "memory error",
        "file system error",
        "adapter health",
        "kernel fault",
    }
    day = 43200.0 if kind == "limit of memory" else 86400.0
    for age, expected in (
        (day - 1, "fail warning"),
        (day + 1, "fail warning" if stays else "pass"),
    ):
        assert told(fleet(n1=log((LINES[kind], age))), "log.kernel") == {"n1": expected}


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        (LINES["I/O error"], "smartctl -a /dev/nvme3n1"),
        (
            "Buffer I/O error on dev dm-0, logical block 0, async page read",
            "smartctl -a /dev/dm-0",
        ),
        (LINES["file system error"], "dmesg | grep md0"),
        (
            "XFS (nvme1n1): Metadata corruption detected at xfs_agf",
            "dmesg | grep nvme1n1",
        ),
        (LINES["NVMe timeout"], "nvme smart-log /dev/nvme3;"),
        (LINES["adapter health"], "mlxfwreset -d 0000:18:00.0 query"),
        ("BTRFS: forced readonly", "dmesg | grep NAME"),
    ],
)
def test_the_remedy_has_the_devices_own_name(text: str, cure: str) -> None:
    assert cure in findings(fleet(n1=log((text, 60.0))), "log.kernel")[0].remedy


def test_an_old_complaint_is_still_said() -> None:
    (good,) = findings(fleet(n1=log((LINES["out of memory"], 21 * 86400.0))), "log.kernel")
    assert good.verdict == "pass"
    assert "last 21 d ago" in good.seen


def test_each_kind_is_one_finding_with_its_count_and_the_age_of_the_newest() -> None:
    facts = log(
        (LINES["hung task"], 600.0),
        (LINES["I/O error"], 30.0),
        (LINES["hung task"].replace("48213", "7"), 61.0),
    )
    found = {
        finding.seen.split(":")[0]: finding for finding in findings(fleet(n1=facts), "log.kernel")
    }
    assert set(found) == {"hung task", "I/O error"}
    assert found["hung task"].seen.startswith("hung task: 2 times, last 61 s ago")


def test_lines_that_begin_alike_count_each() -> None:
    record = KernelRecord(9, NOW - 5, 3, 40, NOW - 900, LINES["I/O error"])
    (bad,) = findings(fleet(n1=log(records=(record,))), "log.kernel")
    assert "40 times" in bad.seen


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        pytest.param((0, 0.0), "pass", id="whole"),
        pytest.param((5000, NOW - 86400.0), "pass", id="a-day"),
        pytest.param((5000, NOW - 86399.0), "unknown warning truncated", id="less"),
    ],
)
def test_silence_is_worth_as_much_as_the_log_goes_back(
    first: tuple[int, float], expected: str
) -> None:
    facts = log(first_number=first[0], first_seconds=first[1])
    assert told(fleet(n1=facts), "log.kernel") == {"n1": expected}


def test_silence_of_a_log_that_lacks_lines_is_no_silence() -> None:
    whole = KernelLog(NOW, 0, 0.0)
    lacking = KernelLog(NOW, 0, 0.0, cut={"I/O error, dev": 900})
    of_others = KernelLog(NOW, 0, 0.0, cut={"NVRM: Xid": 900})
    assert told(fleet(n1={"log.records": of_others}), "log.kernel") == {"n1": "pass"}
    assert told(fleet(n1={"log.records": whole}), "log.kernel") == {"n1": "pass"}
    assert told(fleet(n1={"log.records": lacking}), "log.kernel") == {
        "n1": "unknown warning truncated"
    }


def test_a_node_that_has_just_booted_has_a_whole_log() -> None:
    assert told(fleet(n1={"log.records": KernelLog(120.0, 0, 0.0)}), "log.kernel") == {"n1": "pass"}


def test_a_complaint_counts_however_short_the_log_is() -> None:
    facts = log((LINES["hung task"], 60.0), first_number=9000, first_seconds=NOW - 120)
    assert told(fleet(n1=facts), "log.kernel") == {"n1": "fail warning"}


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "garbled"])
def test_a_log_that_may_not_be_read_is_no_silence(reason: str) -> None:
    assert told(fleet(n1={"log.records": absent(reason)}), "log.kernel") == {
        "n1": f"unknown warning {reason}"
    }


def test_what_an_earlier_boot_complained_of_is_said() -> None:
    before = KernelRecord(0, -3600.0, 3, 1, -3600.0, LINES["kernel fault"])
    seen = fleet(n1={"log.records": KernelLog(7200.0, 0, 0.0, earlier=(before,))})
    (good,) = findings(seen, "log.kernel")
    assert good.verdict == "pass"
    assert good.seen == "before the last boot: kernel fault 3 h ago"


@pytest.mark.parametrize(("lines", "seen"), BESIDE)
def test_all_devices_of_a_kind_are_named(lines: tuple[str, ...], seen: str) -> None:
    """By way of the agent, which puts together what is alike and leaves out no device."""
    (bad,) = findings(fleet(n1=facts_of(ring_answer(*lines))), "log.kernel")
    assert bad.seen == seen


@pytest.mark.parametrize(
    ("lines", "told_as"),
    [
        pytest.param(OOM_OF_A_JOB, ["limit of memory: last"], id="of-a-job"),
        pytest.param(OOM_OF_THE_NODE, ["out of memory: last"], id="of-the-node"),
        pytest.param(
            (*OOM_OF_A_JOB, *OOM_OF_THE_NODE),
            ["out of memory: last", "limit of memory: last"],
            id="of-both",
        ),
        pytest.param(OOM_OF_A_JOB[1:2], ["limit of memory: last"], id="its-first-line-is-enough"),
        pytest.param(OOM_OF_THE_NODE[:1], ["killed for memory: last"], id="without-a-limit"),
    ],
)
def test_a_kill_for_memory_is_told_once_and_by_whose_limit(
    lines: tuple[str, ...], told_as: list[str]
) -> None:
    found = findings(fleet(n1=facts_of(ring_answer(*lines))), "log.kernel")
    assert [
        finding.seen[: len(text)] for finding, text in zip(found, told_as, strict=True)
    ] == told_as


@pytest.mark.parametrize("check", ["log.kernel", "gpu.xid", "gpu.sxid"])
def test_neither_ring_nor_journal_may_be_read(check: str) -> None:
    """As in a container of a job: /dev/kmsg is not there, and the journal is for others."""
    denied = Absent("denied", "only root and the groups adm and systemd-journal may read it")
    for ring in (None, Absent("denied", "/dev/kmsg")):
        seen = told(fleet(n1=facts_of(ring, denied)), check)
        assert [words.split()[0] for words in seen.values()] == ["unknown"]
        assert seen["n1"].endswith(" denied")
