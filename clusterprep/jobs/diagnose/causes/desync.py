"""Causes of ranks that are not in the same place of the program, or too late."""

from __future__ import annotations

from clusterprep.jobs.diagnose import clues, collectives
from clusterprep.jobs.diagnose.model import Cause, Sign, Weight
from clusterprep.jobs.diagnose.stuck import detect_timeouts
from clusterprep.jobs.diagnose.trouble import NETWORK_NEEDLES
from clusterprep.remedies import sentence, shell_line

# A rank that ended, or packets that do not arrive, make the others wait until a limit fires.
_EXPLAINED_BY = frozenset(
    {
        "program",
        "rank_gpu_oom",
        "host_oom_kill",
        "shm_too_small",
        "fd_limit",
        "memlock_limit",
        "gpu_hardware_fault",
        "invalid_device_ordinal",
        "duplicate_gpu",
        "fabric_manager_down",
        "ib_fabric_unreachable",
        "roce_gid_index",
        "mtu_mismatch",
        "rail_cross_nic",
        "rdma_device_not_in_container",
        "efa_provider",
        "firewall_blocked_port",
        "virtual_interface_selected",
        "container_bridge_network",
        "loopback_hostname_resolution",
        "socket_ifname_not_found",
        "world_size_mismatch",
        "env_or_version_mismatch",
    }
)

UNEVEN = Cause(
    "rank_desync_uneven_data",
    "fatal",
    title="Ranks with different numbers of steps",
    message=(
        "Ranks run different numbers of steps: some entered a collective that others never reach."
    ),
    looks=(
        "A collective that times out late in a run, on some ranks and not on others, or with "
        "sequence numbers that differ."
    ),
    unlike=(
        "Different kinds of collectives at one place are the program's order: "
        "rank_desync_control_flow. A time-out at the first barrier is slow work."
    ),
    remedy=sentence(
        "One explicit seed for every generator (torch, NumPy, random), drop_last=True or DDP's "
        "join(); compare the number of samples of all ranks"
    ),
    check="rank.consistency",
    finds="other packages, settings or declared files on a rank",
    signs=(
        Sign(
            "exhausted inputs",
            r"detected at least one rank that exhausted inputs",
            "[rank0]: RuntimeError: Detected at least one rank that exhausted inputs. Throwing "
            "across all ranks.",
        ),
    ),
    detect=detect_timeouts,
    needles=(
        *collectives.NEEDLES,
        *clues.WORK_NEEDLES,
        *clues.DATA_NEEDLES,
        *clues.CALL_NEEDLES,
        *NETWORK_NEEDLES,
        "detected mismatch between collectives",
        "ncclunique",
        "waitforinput",
        "timed out waiting",
        "application timeout",
        "[pg ",
    ),
    yields_to=_EXPLAINED_BY,
    doubt=(
        "Ranks waited in a collective until the limit fired. A rank that has fewer steps than the "
        "others makes them wait like that; so do one that crashed, hangs or is slow, and data "
        "that does not arrive."
    ),
)
FLOW = Cause(
    "rank_desync_control_flow",
    "fatal",
    title="Ranks in different places of the program",
    message=(
        "Ranks take different ways through the program, so that they meet in different collectives."
    ),
    doubt=(
        "Ranks are in different places of the program. Whether some take another way through it, "
        "or are slow or stuck before the place where the others wait, is not told."
    ),
    looks=(
        "Different operations at one sequence number, «Detected mismatch between collectives», a "
        "rank that never joins."
    ),
    unlike=(
        "One operation with different sizes is collective_mismatch; different numbers of steps are "
        "rank_desync_uneven_data."
    ),
    remedy=shell_line(
        "TORCH_DISTRIBUTED_DEBUG=DETAIL   # on all ranks, with a short run: it names the first "
        "collective that differs"
    ),
    check="rank.consistency",
    finds="other packages, settings or declared files on a rank",
    yields_to=_EXPLAINED_BY,
    signs=(
        Sign(
            "are the lagging ranks",
            r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout",
            "- To our best knowledge, ranks [2, 5] are the lagging ranks that caused this "
            "timeout. They never joined any collectives",
            Weight.LIKELY,
            "ranks {ranks}",
            note="they joined no collective at all",
        ),
        Sign(
            "missing ranks:",
            r"^\s*missing ranks: \{(?P<ranks>[\d, ]+)\}",
            "missing ranks: {3}",
            Weight.LIKELY,
            "ranks {ranks}",
            note="the flight recorder has no record of this collective from them",
        ),
        Sign(
            "[missing ranks: ",
            r"\[missing ranks: (?P<ranks>\d[\d, ]*)\]",
            "Stalled ops: HorovodAllreduce_grad_0 [missing ranks: 3]",
            Weight.LIKELY,
            "ranks {ranks}",
            note="Horovod waits for those ranks",
        ),
        Sign(
            "broadcasted by subset of ranks",
            r"tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
            "[31.0: W stall_inspector.cc:107] One or more tensors were submitted to be reduced, "
            "gathered or broadcasted by subset of ranks and are waiting for remainder of ranks "
            "for more than 60 seconds.",
            Weight.LIKELY,
        ),
        Sign(
            "mismatched ",
            r"Mismatched (?:MPI|collective) operations: One rank did an? \w+, but another rank did",
            "Mismatched MPI operations: One rank did an allreduce, but another rank did an "
            "allgather.",
        ),
        Sign(
            "missing ranks are",
            r"Not all ranks joining collective.{0,300}Missing ranks are \{(?P<ranks>[\d, ]+)\}",
            "Not all ranks joining collective for group 0:default_pg collective nccl:all_reduce "
            "Missing ranks are {3}",
            Weight.LIKELY,
            "ranks {ranks}",
            note="the flight recorder has no record of this collective from them",
        ),
        Sign(
            "but didn't join collective",
            r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join "
            r"collective",
            "  - [2] finished collective #4, but didn't join collective #5 (count from 1)",
            Weight.LIKELY,
            "ranks {ranks}",
            note="collective #{last} is the last one that they joined",
        ),
        Sign(
            "joined but didn't finish collective",
            r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<seq>\d+)",
            "   - [0, 1] joined but didn't finish collective #4 (count from 1)",
            Weight.SYMPTOM,
            note="ranks {ranks} wait in collective #{seq}",
        ),
        Sign(
            "but didnt join",
            r"\[(?P<ranks>[\d, ]+)\] finished collective seq: (?P<last>\d+), but didnt join",
            " -[2] finished collective seq: 4, but didnt join collective seq: 5",
            Weight.LIKELY,
            "ranks {ranks}",
            note="collective #{last} is the last one that they joined",
        ),
        Sign(
            "mismatch between collectives",
            r"Detected mismatch between collectives on ranks",
            "RuntimeError: Detected mismatch between collectives on ranks.",
            Weight.LIKELY,
        ),
        Sign(
            "record from remote rank",
            r"Notify register has not received the Notify record from remote rank: "
            r"\[(?P<number>\d+)\]",
            "EI0002: [PID: 2969] The wait execution of the Notify register times out. Reason: The "
            "Notify register has not received the Notify record from remote rank: [24].",
            Weight.SYMPTOM,
            "rank {number}",
            note="its log is needed; HCCL_EXEC_TIMEOUT sets how long the others wait",
        ),
        Sign(
            "hccl fftsplus task timeout",
            r"hccl fftsplus task timeout occurred",
            "EI9999: The error from device(chipId:3, dieId:0), serial number is 9, hccl fftsplus "
            "task timeout occurred during task execution, timeout:30min(default).",
            Weight.SYMPTOM,
            note="HCCL_EXEC_TIMEOUT sets how long ranks wait for each other",
        ),
        Sign(
            "failed to pass monitoredbarrier",
            r"(?:Ranks?|ranks?) (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier",
            "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms",
            Weight.LIKELY,
            "ranks {ranks}",
            note="the log of these ranks is needed: they did not come to the barrier in time",
        ),
        Sign(
            "reached monitoredbarrier",
            r"successfully reached monitoredBarrier, but received errors while waiting (?:for"
            r"|to) send/recv (?:from|to) rank (?P<faulty>\d+)",
            "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors "
            "while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
            Weight.SYMPTOM,
            "rank {faulty}",
        ),
        Sign(
            " hangs: ",
            r"first failure: rank (?P<number>\d+) on \S+ hangs: it is at (?P<frame>.+), and ranks? "
            r"(?P<others>[\d, -]+) (?:are|is) elsewhere",
            "clusterprep launch: first failure: rank 2 on n2 hangs: it is at train.py line 9 in "
            "main, and ranks 0-1,3 are elsewhere",
            Weight.LIKELY,
            "rank {number}",
            note="rank {number} was at {frame} when the others waited for it",
        ),
        Sign(
            "finished reduction in the prior iteration",
            r"Expected to have finished reduction in the prior iteration",
            "RuntimeError: Expected to have finished reduction in the prior iteration before "
            "starting a new one.",
            Weight.SYMPTOM,
            note=(
                "parameters of the model got no gradient in this step, for which DDP has "
                "find_unused_parameters=True"
            ),
        ),
        Sign(
            "without a matching",
            r"Trying to (?:send|recv) (?:to|from) self without a matching",
            "n1:1:2 [0] enqueue.cc:1160 NCCL WARN Trying to send to self without a matching recv",
            Weight.LIKELY,
        ),
        Sign(
            "not in a group call",
            r"ncclGroupEnd: not in a group call",
            "n1:1:2 [0] group.cc:776 NCCL WARN ncclGroupEnd: not in a group call.",
            Weight.LIKELY,
        ),
    ),
)
SIZES = Cause(
    "collective_mismatch",
    "fatal",
    title="One collective, different tensors",
    message="Ranks entered the same collective with tensors of different shape, size or type.",
    doubt=(
        "Ranks may have entered the same collective with tensors of different shape, size or type, "
        "or different collectives."
    ),
    looks=(
        "One operation and sequence number with different NumelIn, «Tensor shapes» that differ, "
        "DDP models that are not alike."
    ),
    unlike=(
        "NCCL's «collective mismatch error» between nodes comes from settings or versions: "
        "env_or_version_mismatch."
    ),
    remedy=sentence(
        "Print the tensor's shape and dtype on all ranks before that call; the same code and "
        "checkpoint on all nodes"
    ),
    check="rank.consistency",
    finds="other packages, settings or declared files on a rank",
    yields_to=frozenset({"program"}),
    signs=(
        Sign(
            "collective mismatch around rank",
            r"collective mismatch around rank (?P<number>\d+)",
            "n1:1:2 [0] init.cc:900 NCCL WARN Your program may be hanging, this may be caused by "
            "a collective mismatch around rank 3. Please check your collective calls at and "
            "around this rank.",
            Weight.LIKELY,
            culprit="rank {number}",
            note="NCCL suspects a mismatch around rank {number}, and has not seen it",
        ),
        Sign(
            "mismatched collective detected",
            r"Mismatched collective detected, please check your collective calls at and around "
            r"rank (?P<number>\d+)",
            "n1:1:2 [0] init.cc:900 NCCL WARN Mismatched collective detected, please check your "
            "collective calls at and around rank 3.",
            culprit="rank {number}",
        ),
        Sign(
            "ddp expects same model",
            # A rank without any parameters is none: the exchange of the numbers failed.
            r"DDP expects same model across all ranks, but Rank (?P<number>\d+) has"
            r"(?!.* inconsistent 0 params)",
            "RuntimeError: DDP expects same model across all ranks, but Rank 3 has 165 params, "
            "while rank 0 has inconsistent 166 params.",
            culprit="rank {number}",
        ),
        Sign(
            "appears not to match",
            r"params\[\d+\] in this process.{0,80}appears not to match",
            "RuntimeError: [3]: params[0] in this process with sizes [4, 2] appears not to match "
            "sizes of the same param in process 0.",
        ),
        Sign(
            "message truncated",
            r"NET/Socket : (?:peer (?P<peer>[\w.:%-]+?)(?:<\d+>)? )?message truncated",
            "n1:1:2 [0] NCCL WARN NET/Socket : peer 10.9.0.7<40001> message truncated : receiving "
            "4096 bytes instead of 1024",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "got completion",
            r"Got completion.*(?:error (?:9|10|11)\b|status=(?:\w+\()?(?:9|10|11)\b|IBV_WC_REM_"
            r"(?:INV_REQ|ACCESS|OP)_ERR)",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with "
            "status=IBV_WC_REM_INV_REQ_ERR(9) opcode=0",
            Weight.SYMPTOM,
        ),
        Sign(
            "mismatch",
            r"(?:gloo|all_?reduce|all_?gather|broadcast|reduce_scatter).{0,80}(?:size|shape|dtype|"
            r"numel).{0,20}mismatch",
            "RuntimeError: [gloo] allreduce: tensor size mismatch",
            Weight.LIKELY,
        ),
        Sign(
            "mismatched ",
            r"Mismatched (?:\w+ )?(?:tensor (?:shapes|sizes)|data types|CPU/GPU device selection"
            r"|root ranks): One ",
            "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [4], but another "
            "rank sent a tensor of shape [8].",
        ),
        Sign(
            "cannot apply desired operation",
            r"Cannot apply desired operation due to shape mismatches",
            "accelerate.utils.operations.DistributedOperationException: Cannot apply desired "
            "operation due to shape mismatches. All shapes across devices must be valid.",
        ),
        Sign(
            "op.preamble.length",
            r"op\.preamble\.length <= op\.nbytes",
            "terminate called after throwing an instance of 'gloo::EnforceNotMet' [enforce fail "
            "at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
        ),
    ),
)
SLOW = Cause(
    "slow_work_exceeds_timeout",
    "fatal",
    title="Work that takes longer than the limit",
    message=(
        "One rank was busy with preparation (tokenizing, loading, saving) for longer than the "
        "others may wait."
    ),
    looks=(
        "A barrier or the first collective times out while one rank prepares data or writes a "
        "checkpoint."
    ),
    doubt=(
        "Ranks waited until the limit fired. Work of one rank that takes longer (tokenizing, "
        "loading, saving) looks like that; so do a rank that crashed, hangs or took another way, "
        "and data that does not arrive."
    ),
    unlike="A time-out late in a run, with ranks that differ, is rank_desync_uneven_data.",
    remedy=sentence(
        "init_process_group(timeout=timedelta(hours=2)), or do that work before "
        "init_process_group, once, and load it after"
    ),
    check=None,
    yields_to=_EXPLAINED_BY,
    signs=(
        Sign(
            " hangs: ",
            r"first failure: rank (?P<number>\d+) on \S+ hangs: (?P<why>it is stopped|a debugger "
            r"holds it|it is stuck in the kernel)",
            "clusterprep launch: first failure: rank 2 on n2 hangs: it is stopped (state T), for "
            "example by SIGSTOP",
            Weight.LIKELY,
            "rank {number}",
            note="launch saw of rank {number}: {why}",
        ),
        Sign(
            "watchdog got stuck",
            r"watchdog got stuck for (?P<seconds>\d+) seconds",
            "[rank1]:[F304 12:00:00.000000000 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank "
            "1] Process group watchdog got stuck for 480 seconds without making progress in "
            "monitoring enqueued collectives.",
            Weight.SYMPTOM,
            note="a call into CUDA or NCCL has not come back for {seconds} s",
        ),
        Sign(
            "watchdog hang",
            r"watchdog hang",
            "[rank1]: [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL's watchdog hang",
            Weight.SYMPTOM,
        ),
        Sign(
            "heartbeat monitor timed out",
            r"Heartbeat monitor timed out",
            "[rank1]:[F304 12:00:00.000000000 ProcessGroupNCCL.cpp:1177] [PG 0 Rank 1] Heartbeat "
            "monitor timed out! Process will be terminated after dumping debug info.",
            Weight.SYMPTOM,
        ),
        Sign(
            "main_process_first",
            r"(?:with |in )\S*main_process_first\b",
            "    with training_args.main_process_first(desc='dataset map'):  # examples/s",
            Weight.SYMPTOM,
            "rank 0",
        ),
        Sign(
            "watchdog timeout (self",
            r"watchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+)",
            "[2026-01-29 13:12:37 PP1 TP1] Scheduler watchdog timeout (self.watchdog_timeout=300, "
            "self.soft=False)",
            Weight.SYMPTOM,
            note="a scheduler of SGLang made no progress for {seconds} s",
        ),
        Sign(
            "wait_for_everyone",
            r"\bwait_for_everyone\(",
            "    accelerator.wait_for_everyone()",
            Weight.SYMPTOM,
        ),
    ),
)
