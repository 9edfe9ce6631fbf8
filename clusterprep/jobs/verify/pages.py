"""The pages of the checks that only a trial can judge, for `explain` and the list of checks."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from clusterprep.remedies import Remedy, shell_line


class TrialCheckPage(Struct, frozen=True):
    """What a check of the trial is for; blame.py gives its verdict."""

    name: str
    severity: Literal["error", "warning"]
    title: str
    why: str
    how: str
    remedy: Remedy
    follows: tuple[str, ...] = ()  # as of a Check


REMEDY_OF_LINKS = shell_line(
    "ip -s link; ethtool -S IFACE   # errors and drops of the nodes named; "
    "then cable and switch port"
)

_PAGES = (
    TrialCheckPage(
        name="eth.errors",
        severity="warning",
        title="Errors of network interfaces under load",
        why=(
            "A bad cable or transceiver shows when data passes: frames with errors are sent again, "
            "and a carrier that is lost for a moment ends connections."
        ),
        how=(
            "rx_errors, tx_errors, rx_crc_errors, tx_carrier_errors and carrier_down_count of each "
            "interface in /sys/class/net, before and after the ranks: none of them grows."
        ),
        remedy=shell_line(
            "ethtool -S IFACE | grep -i err; ethtool -m IFACE   # cable, transceiver, switch port"
        ),
    ),
    TrialCheckPage(
        name="nccl.allgather",
        severity="error",
        title="Pieces of all ranks, gathered",
        why=(
            "An all-gather that mixes up pieces or changes them spoils sharded weights when they "
            "are put together or saved."
        ),
        how=(
            "Every rank gives a piece that depends on its number and on the place of each "
            "element, and compares the pieces of all ranks; a rank whose piece all others find "
            "wrong is named. With --incident-sizes also as many elements as in a job that is "
            "known to have hung while saving, or as many as fit into memory and time limit."
        ),
        remedy=shell_line(
            "clusterprep verify INVENTORY --limit HALF   # halve the nodes until the wrong one is "
            "left"
        ),
    ),
    TrialCheckPage(
        name="nccl.broadcast",
        severity="error",
        title="What one rank sends to all",
        why=(
            "Jobs begin with a broadcast of the weights: when it changes them, ranks train "
            "different models."
        ),
        how=(
            "Each repetition sends from another rank, and every rank compares every element with "
            "what that rank gives. With --incident-sizes also as many elements as in a job that "
            "is known to have hung before its first step."
        ),
        remedy=shell_line(
            "clusterprep verify INVENTORY --limit HALF   # halve the nodes until the wrong one is "
            "left"
        ),
    ),
    TrialCheckPage(
        name="nccl.busbw_multi",
        severity="error",
        title="The speed of the all-reduce",
        why="A slow link, interface or GPU slows every step of every rank, and no error says so.",
        how=(
            "Bus bandwidth as nccl-tests defines it, of the largest all-reduce (over NCCL 1 GiB, "
            "or what fits into half of the free memory; else 64 MiB; or what `verify: {sizes: …}` "
            "says), by the slowest rank's median, against the first of these that there is: "
            "`verify: {min_busbw: …}`; the run that `verify --baseline` recorded; over NCCL, from "
            "1 GiB or a second on, a model of the hardware (number and rate of RDMA ports, NVLink, "
            "NVLS or ring, PCIe, sockets), which knows only what was published of such machines; "
            "the median of at least three earlier runs of these nodes with this size, where slow "
            "runs are not remembered; over gloo the links of the nodes against each other. Under "
            "half of what is normal it is an error, under four fifths a warning. gloo varies by a "
            "factor of three with what else the processors do, so there it fails only under a "
            "fifth of the baseline or of the slowest earlier run, and a node whose links are under "
            "half of its peers' is an error once group tests confirm it, or further measurements "
            "where there are no group tests. A size that would take more than 20 times what most "
            "links need, and more than 5 s, is cut short. Without any yardstick the speed over "
            "NCCL is unknown, and over gloo it is skipped."
        ),
        remedy=shell_line(
            "clusterprep verify INVENTORY --limit HALF   # halve the nodes until the slow one is "
            "left"
        ),
        follows=(
            "net.tcp_bw",
            "nccl.busbw_node",
            "nccl.transport",
            "rdma.gdr_effective",
            "ib.rate",
            "eth.mtu",
        ),
    ),
    TrialCheckPage(
        name="nccl.busbw_node",
        severity="warning",
        title="The speed within each node",
        why=(
            "A GPU, NVLink or PCIe slot that is slow slows the whole job, and among many nodes the "
            "network hides which one it is."
        ),
        how=(
            "Over NCCL, once the trial over all nodes has finished: an all-reduce of 1 GiB, or "
            "what fits into half of the free memory, between the ranks of each node alone, on all "
            "nodes at once. It fails under four fifths of the first of these: the run that "
            "`verify --baseline` recorded, the hardware model (NVLink in a ring or added up in the "
            "switch: 235 GB/s on eight A100, 473 on H100, 835 on B200), or nodes of the same kind, "
            "four at least. `require: {nccl.busbw_node: 400}` declares GB/s. Without any of them "
            "it is unknown. Over gloo only nodes that require it are measured."
        ),
        remedy=shell_line(
            "clusterprep check INVENTORY --only gpu.,nvl.,pcie.   # clocks, links and slots of the "
            "nodes named"
        ),
        follows=("nvl.state", "gpu.fabricmanager", "gpu.throttle_hw", "pcie.width", "pcie.gen"),
    ),
    TrialCheckPage(
        name="nccl.correct",
        severity="error",
        title="Sums that are exact",
        why=(
            "A faulty link, driver or memory that changes data lets a training diverge, and no "
            "error says so."
        ),
        how=(
            "Every rank contributes whole numbers that depend on rank, element and repetition, "
            "small enough for every sum to be exact in float32, bfloat16 and int32, and compares "
            "every element of all_reduce, reduce_scatter and all_to_all. The difference tells "
            "whose share is missing or there twice; where it does not, each rank gives its share "
            "alone once more. What the backend does not know is left out, and the report says so."
        ),
        remedy=shell_line(
            "clusterprep verify INVENTORY --limit HALF   # halve the nodes until the wrong one is "
            "left"
        ),
    ),
    TrialCheckPage(
        name="nccl.hang",
        severity="error",
        title="Every rank finishes",
        why=(
            "One rank that is missing lets all others wait until the time-out of a job that costs "
            "by the minute."
        ),
        how=(
            "An all-reduce over all ranks in the job's interpreter, as the job's user, with the "
            "environment that apply writes. Ends, signals and stopped or stuck processes, as the "
            "kernel tells them, name the culprit; where all only wait, TCP connections of the "
            "ranks that get no answer do."
        ),
        remedy=shell_line(
            "clusterprep check INVENTORY   # firewalls, interfaces, names; verify names the node "
            "or rank at fault"
        ),
        follows=("net.ports", "eth.path_mtu", "eth.mtu", "gpu.lost", "torch.version"),
    ),
    TrialCheckPage(
        name="nccl.init_time",
        severity="warning",
        title="Time until ranks can work",
        why=(
            "Minutes before the first step mean a slow file system, a name service that does not "
            "answer or blocked ports, and every restart of the job pays for them."
        ),
        how=(
            "From the start of the ranks until all of them have imported torch, met, and finished "
            "a first small collective: less than 60 s, or what `require: {nccl.init_time: 90s}` "
            "says. The stages tell which part took how long."
        ),
        remedy=shell_line(
            "time python -c 'import torch'   # as the job's user, on the nodes that were ready last"
        ),
        follows=("name.resolve",),
    ),
    TrialCheckPage(
        name="nccl.nvls",
        severity="warning",
        title="NVLink SHARP in use",
        why=(
            "Switches that add up halve what an all-reduce moves: 480 instead of 365 GB/s on eight "
            "H100. NCCL goes on without them, and only its log says so."
        ),
        how=(
            "Where NCCL runs the all-reduce, on nodes whose GPUs have it (compute capability 9.0 "
            "and later, joined by NVSwitches, three ranks at least): each rank's lines of "
            "NCCL_DEBUG=INFO say that NVLS multicast is available, how many NVLS channels there "
            "are, and why NCCL goes on without. With NCCL_NVLS_ENABLE=0, or an NCCL_ALGO without "
            "NVLS, it is skipped, and so is a virtual machine that was given none."
        ),
        remedy=shell_line(
            "systemctl status nvidia-fabricmanager   # on the "
            "nodes named; its version must be the driver's, and a reboot sets the fabric up anew"
        ),
        follows=("gpu.fabricmanager", "nvl.state"),
    ),
    TrialCheckPage(
        name="nccl.straggler",
        severity="warning",
        title="A rank that all others wait for",
        why=(
            "The slowest rank sets the pace of the job, and every rank's own times look alike "
            "because all wait for it."
        ),
        how=(
            "What each rank needs between collectives, to fill and to compare its buffer, at the "
            "largest size; of all repetitions the quickest counts. A straggler has a robust "
            "z-score over 4, takes more than four times the median, and 0.5 s more than it (20 ms "
            "on GPUs). Among fewer than four ranks nothing is judged."
        ),
        remedy=shell_line(
            "clusterprep check INVENTORY   # clocks, temperature, throttling; then top on the "
            "nodes named"
        ),
        follows=("gpu.throttle_hw", "gpu.temp", "gpu.clocks"),
    ),
    TrialCheckPage(
        name="nccl.transport",
        severity="warning",
        title="Transports between ranks",
        why=(
            "NCCL falls back without an error: sockets instead of RDMA are 20 to 150 times "
            "slower, and a missing HCA takes its share of the bandwidth."
        ),
        how=(
            "Where NCCL runs the all-reduce: interface, devices, and the transport of every pair "
            "of ranks that connect, as NCCL_DEBUG=INFO tells them on each rank (subsystems INIT, "
            "ENV, NET, BOOTSTRAP), against NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_IB_DISABLE and "
            "NCCL_NET as the ranks were given them. Sockets fail only where RDMA was written. "
            "NVLink that joins nodes (P2P/MNNVL) counts as a connection between them. GPUDirect "
            "RDMA and NVLS are told here and judged by rdma.gdr_effective and nccl.nvls. A rank "
            "that said nothing is unknown."
        ),
        remedy=shell_line("clusterprep check INVENTORY --only ib.,roce.,rdma.,env.,nccl."),
    ),
    TrialCheckPage(
        name="net.tcp_bw",
        severity="error",
        title="Links between nodes",
        why=(
            "A link that is slow, loses packets or lost its way makes the whole job slow or hangs "
            "it. An all-reduce that passes has not used every link, and one that fails accuses "
            "all nodes."
        ),
        how=(
            "After the all-reduce pairs of nodes exchange 200 small messages and 4 MiB each way "
            "over TCP, in rounds in which no node is twice: all pairs up to 64 nodes, 64 partners "
            "for each beyond that; and before it each with eight others at most. Bad is a "
            "direction at less than a fifth of what most nodes reach, two segments of the small "
            "messages that the kernel had to send again, a second to connect, or no connection; "
            "whatever looks bad is measured up to twice more, and what is blocked is dialled from "
            "both ends. A node is named where at least "
            "two of its pairs are bad, and half; other pairs are links. It is the network of "
            "sockets: RDMA is not measured by it."
        ),
        remedy=REMEDY_OF_LINKS,
        follows=("eth.speed", "eth.mtu", "eth.path_mtu", "eth.errors", "irq.balance"),
    ),
    TrialCheckPage(
        name="rdma.gdr_effective",
        severity="warning",
        title="GPUDirect RDMA in use",
        why=(
            "Without it all data between nodes pass through the host's memory, at half of the "
            "speed or less, and NCCL says nothing of it but in its log."
        ),
        how=(
            "Where NCCL runs the all-reduce over several nodes: what ranks receive over RDMA, as "
            "NCCL_DEBUG=INFO tells it («via NET/IB/2/GDRDMA»), against the PCI tree. It fails for "
            "ranks whose GPU has a card of the training under its switch and receives without "
            "GDRDMA. Skipped where no GPU has such a card, where NCCL_NET_GDR_LEVEL switches it "
            "off, where sockets or NVLink carry the data, and for GeForce cards."
        ),
        remedy=shell_line(
            "clusterprep check INVENTORY --only rdma.,pcie.acs,pcie.iommu   # the module "
            "nvidia_peermem or DMA-BUF, ACS and IOMMU of the nodes named"
        ),
        follows=("rdma.peermem", "pcie.acs", "pcie.iommu"),
    ),
    TrialCheckPage(
        name="rank.consistency",
        severity="warning",
        title="The same on all ranks",
        why=(
            "Ranks that run other packages or read other data fall out of step and hang in a "
            "collective an hour later."
        ),
        how=(
            "Every rank tells its interpreter, the versions of all packages on its path, the "
            "variables of NCCL, torch, CUDA and their like that are not as they were given to it, "
            "and the SHA-256 of each file in `verify: {same_files: […]}`. They are compared "
            "without a collective, so also where none works."
        ),
        remedy=shell_line(
            "python -m pip list   # with the job's python, on the nodes named and on another; "
            "then install what differs"
        ),
    ),
)
PAGES = {page.name: page for page in _PAGES}
