"""Causes of processes that do not meet: wrong place, missing processes, a wrong number of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from clusterprep.jobs.diagnose import launch_lines
from clusterprep.jobs.diagnose.dialled import NEEDLES, THIS_HOST, Dialled, dialled
from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.jobs.diagnose.trouble import no_connection
from clusterprep.remedies import sentence, shell_line

_IGNORED_SETTING = re.compile(
    r"generated a random run_id|master_addr is only used for static", re.IGNORECASE
)
_FAILED = re.compile(
    r"Rendezvous(?:Timeout|Connection|Closed)Error|rendezvous.{0,40}timed.?out", re.IGNORECASE
)
_STARTED = re.compile(
    r"Initializing (?P<tasks>\d+) distributed tasks|\bnproc_per_node *[:=] *(?P<nproc>\d+)"
    r"|nproc_per_node=auto, sett?ing to (?P<auto>\d+)|local_world_size=(?P<local>\d+)",
    re.IGNORECASE,
)
_LOCAL_RANKS = re.compile(r"local_ranks=\[(?P<ranks>[\d, ]+)\]")
_INVALID = re.compile(r"Invalid rank requested : (?P<rank>-?\d+)/(?P<world>\d+)", re.IGNORECASE)
_COUNTED = re.compile(r"world_size=(?P<world>\d+), worker_count=(?P<count>\d+)", re.IGNORECASE)


_ENDPOINT = re.compile(
    r"\brdzv[_-]endpoint['\"]?\s*[:=, ]\s*['\"]?(?P<endpoint>[\w.\[\]-]+(?::\d+)?)", re.IGNORECASE
)
_AT_BARRIER = re.compile(
    r"store based barrier .*?rank: (?P<rank>\d+),.*?key: (?P<key>\S+) \(world_size=(?P<world>\d+), "
    r"worker_count=(?P<count>\d+)",
    re.IGNORECASE,
)
_GCS = re.compile(r"Failed to connect to GCS at address (?P<peer>[\w.\[\]-]+:\d+)", re.IGNORECASE)
_MOST_MISSING = 64  # ranks; of more it matters little which they are
_MANY_ATTEMPTS = 3  # of Ray, each of which takes five seconds
_ENDED = "the rendezvous had worked and was closed or lost; the node that left first knows why"
_NAME_OF_DIGITS = re.compile(r"\((?P<name>\d+), ?\d+\)")
# What addresses are that no host can have, by their kind.
_IMPOSSIBLE = {
    "netmask": "{address} is a netmask",
    "broadcast": "{address} is the address of all hosts and of none",
    "multicast": "{address} is an address of multicast, which no single host has",
    "number": "a name of digits alone is read as a number: {address} is no address of a host",
}


def detect_misplaced(log: LogFile) -> Iterator[Evidence]:
    """Yield a rendezvous that fails, impossible addresses, and nodes that contradict each other."""
    yield from _impossible_addresses(log)
    if no_connection(log):
        yield from launch_lines.contradictions(log)
    yield from _failed_rendezvous(log)


def _impossible_addresses(log: LogFile) -> Iterator[Evidence]:
    """Yield connections to addresses that cannot be those of a host, and to port 0."""
    name = _name_of_digits(log)
    for target in dialled(log):
        template = _IMPOSSIBLE.get(target.kind)
        if template:
            note = template.format(address=target.address)
            address = name if name and target.kind == "number" else target.address
            culprits: Culprits = (("address", address),)
            yield Evidence("rendezvous_misconfigured", target.line, Weight.PLAIN, culprits, note)
        elif _is_port_zero(target):
            culprits = (("address", f"{target.address}:0"),)
            note = "0 is no port that a server can have"
            weight = Weight.PLAIN
            if THIS_HOST.fullmatch(target.address):
                note = "torchrun --standalone writes port 0 for any port; the store was not opened"
                weight = Weight.SYMPTOM
            yield Evidence("rendezvous_misconfigured", target.line, weight, culprits, note)


def _name_of_digits(log: LogFile) -> str:
    """Return the name of digits alone that c10d was given as the master's, or an empty text."""
    for line in log.lines_with("network address of (", "to connect to ("):
        match = _NAME_OF_DIGITS.search(line.message)
        if match:
            return match["name"]
    return ""


def _is_port_zero(target: Dialled) -> bool:
    """Return whether c10d was to connect to port 0. NCCL writes <0> where it does not matter."""
    return target.port == "0" and "client socket" in target.line.message


def _endpoint(log: LogFile) -> Culprits:
    """Return the endpoint that torchrun was given, if all that the log tells are the same."""
    endpoints: set[str] = set()
    for line in log.lines_with("rdzv_endpoint", "rdzv-endpoint"):
        match = _ENDPOINT.search(line.message)
        if match:
            endpoints.add(match["endpoint"])
    return (("address", endpoints.pop()),) if len(endpoints) == 1 else ()


def _failed_rendezvous(log: LogFile) -> Iterator[Evidence]:
    """Yield a rendezvous that fails, and settings that torchrun says it ignores.

    After a worker failed, the rendezvous fails as a consequence. One that was closed, or whose
    store was lost while it was in use, ended on another node, whose log tells why.
    """
    if log.lines_with("failed (exitcode", "childfailederror"):
        return
    was_in_use = bool(log.lines_with("_call_store", "num_nodes_waiting"))
    for line in log.lines_with(
        "rendezvousconnectionerror", "c10d store has failed", "rendezvousclosederror"
    ):
        message = line.message.lower()
        if "graceful" in message or "failed to shutdown" in message:
            continue
        if was_in_use or "rendezvousclosederror" in message:
            yield Evidence("rendezvous_misconfigured", line, Weight.SYMPTOM, note=_ENDED)
        else:
            yield Evidence("rendezvous_misconfigured", line, Weight.LIKELY, _endpoint(log))
    if not any(_FAILED.search(line.message) for line in log.lines_with("rendezvous")):
        return
    for line in log.lines_with("run_id", "master_addr"):
        if _IGNORED_SETTING.search(line.message):
            yield Evidence("rendezvous_misconfigured", line, Weight.PLAIN)


def detect_wrong_numbers(log: LogFile) -> Iterator[Evidence]:
    """Yield ranks outside their world, and numbers of processes that do not fit together."""
    for line in log.lines_with("invalid rank requested"):
        match = _INVALID.search(line.message)
        if match:
            kind = f"rank {{}} (world size {match['world']})"
            culprits = ((kind, match["rank"]),)
            yield Evidence("world_size_mismatch", line, Weight.PLAIN, culprits)
    for line in log.lines_with("store based barrier"):
        match = _COUNTED.search(line.message)
        if match is None:
            continue
        count = int(match["count"])
        world = int(match["world"])
        if count > world:
            note = f"{match['count']} came where {match['world']} were expected"
            yield Evidence("world_size_mismatch", line, Weight.LIKELY, note=note)
    yield from _different_numbers(log)


def _different_numbers(log: LogFile) -> Iterator[Evidence]:
    """Yield how many processes each host started, if not all started the same number."""
    started = _started_by_host(log)
    counts: Counter[int] = Counter()
    parts: list[str] = []
    for host, (number, _) in started.items():
        counts[number] += 1
        parts.append(f"{host} started {number}")
    if len(counts) < 2:
        return
    usual, votes = counts.most_common(1)[0]
    has_majority = votes * 2 > len(started)
    note = ", ".join(parts)
    for host, (number, line) in started.items():
        culprits: Culprits = ()
        if has_majority and number != usual:
            culprits = (("host", host),)
        yield Evidence(
            "world_size_mismatch",
            line,
            Weight.PLAIN,
            culprits,
            note=note,
        )


def _started_by_host(log: LogFile) -> dict[str, tuple[int, LogLine]]:
    """Return how many processes each host started, and the first line that says so.

    Where a line has no host its file stands for it.
    """
    started: dict[str, tuple[int, LogLine]] = {}
    for line in log.lines_with(
        "distributed tasks", "nproc_per_node", "local_world_size", "local_ranks="
    ):
        number = _number_started(line.message)
        if number is not None:
            host = line.host or line.file
            started.setdefault(host, (number, line))
    return started


def detect_absent(log: LogFile) -> Iterator[Evidence]:
    """Yield ranks that did not come to a barrier, and a head of Ray that does not answer."""
    yield from _missing_at_barrier(log)
    yield from _silent_head(log)


def _missing_at_barrier(log: LogFile) -> Iterator[Evidence]:
    """Yield the ranks that a store based barrier waits for, if all that came say so."""
    lines: dict[str, list[tuple[LogLine, re.Match[str]]]] = {}  # by key of the barrier
    for line in log.lines_with("store based barrier"):
        match = _AT_BARRIER.search(line.message)
        if match:
            lines.setdefault(match["key"], []).append((line, match))
    for waits in lines.values():
        came = {int(match["rank"]) for _, match in waits}
        count = max(int(match["count"]) for _, match in waits)
        _, last = waits[-1]
        world = int(last["world"])
        all_say_so = len(came) == count
        if not all_say_so or not 0 < world - count <= _MOST_MISSING:
            continue
        missing = sorted(set(range(world)) - came)
        culprits: Culprits = tuple(("rank", str(rank)) for rank in missing)
        for line, _ in waits:
            timed_out = "timed out" in line.message.lower()
            weight = Weight.LIKELY if timed_out else Weight.SYMPTOM
            yield Evidence("rendezvous_incomplete", line, weight, culprits)


def _silent_head(log: LogFile) -> Iterator[Evidence]:
    """Yield attempts of Ray to reach its head, if it gave up or made many."""
    attempts: list[tuple[LogLine, str]] = []
    for line in log.lines_with("failed to connect to gcs"):
        match = _GCS.search(line.message)
        if match:
            attempts.append((line, match["peer"]))
    gave_up = log.lines_with("for gcs to become available", "unable to connect to gcs")
    if not gave_up and len(attempts) < _MANY_ATTEMPTS:
        return
    weight = Weight.LIKELY if gave_up else Weight.SYMPTOM
    for line, peer in attempts:
        culprits: Culprits = (("address", peer),)
        note = "Ray's head node did not answer at that address"
        yield Evidence("rendezvous_incomplete", line, weight, culprits, note)


def _number_started(message: str) -> int | None:
    """Return how many processes a message says were started on its host."""
    if match := _STARTED.search(message):
        numbers = [number for number in match.groups() if number]
        return int(numbers[0])
    if match := _LOCAL_RANKS.search(message):
        ranks = match["ranks"].split(",")
        return len(ranks)
    return None


MISCONFIGURED = Cause(
    "rendezvous_misconfigured",
    "fatal",
    title="They look for each other in different places",
    message=(
        "Processes were given a wrong or incomplete rendezvous: endpoint, master address, id or "
        "node rank."
    ),
    looks=(
        "Missing MASTER_ADDR or RANK, a run id drawn at random, «The connection to the C10d store "
        "has failed», a leftover NCCL_COMM_ID."
    ),
    unlike=(
        "With right settings and a node that never came the limit of the join fires: "
        "rendezvous_incomplete."
    ),
    remedy=shell_line(
        "torchrun --nnodes N --node-rank I --master-addr FIRST --master-port 29500 …   # the same "
        "on every node but for I; or the same --rdzv-id and --rdzv-endpoint"
    ),
    check="launch.ranks",
    finds="ranks and addresses that an earlier job left",
    signs=(
        Sign(
            "expected, but not set",
            r"environment variable (?P<name>\w+) expected, but not set",
            "ValueError: Error initializing torch.distributed using env:// rendezvous: "
            "environment variable MASTER_ADDR expected, but not set",
            note="{name} is missing",
        ),
        Sign(
            "keyerror: '",
            r"KeyError: '(?P<name>RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
            "KeyError: 'LOCAL_RANK'",
            note="{name} is missing",
        ),
        Sign(
            "nccl_comm_id",
            r"invalid NCCL_COMM_ID|ncclCommGetUniqueId should not be called when NCCL_COMM_ID",
            "n1:1:2 [0] bootstrap.cc:114 NCCL WARN Invalid NCCL_COMM_ID, please use format: "
            "<ipv4>:<port>",
            culprit="host {host}",
            note="NCCL_COMM_ID is what does not fit",
        ),
        Sign(
            "interface found",
            r"no usable listening interface found|No interface found in the same subnet as remote "
            r"address",
            "n1:1:2 [0] bootstrap.cc:120 NCCL WARN NET/Socket : No usable listening interface "
            "found",
            culprit="host {host}",
            note="NCCL_COMM_ID is what does not fit",
            weight=Weight.LIKELY,
        ),
        Sign(
            "bind ",
            r"Call to bind failed ?: Cannot assign requested address",
            "n1:213:213 [0] include/socket.h:333 NCCL WARN Call to bind failed : Cannot assign "
            "requested address",
            Weight.LIKELY,
            "host {host}",
            note="this host was to listen on an address of another host, as with NCCL_COMM_ID",
        ),
        Sign(
            "errno: 13",
            r"server socket has failed to bind to \S*?:(?P<port>\d+) \(errno: 13 ",
            "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:80 (errno: 13 "
            "- Permission denied).",
            Weight.LIKELY,
            "port {port}",
            note="ports below 1024 are for root alone",
        ),
        Sign(
            "port must be 0-65535",
            r"OverflowError: .*port must be 0-65535",
            "OverflowError: bind(): port must be 0-65535.",
            note="the port that was given is larger than any",
        ),
        Sign(
            "eaddrnotavail",
            r"failed to listen on any local network address.*EADDRNOTAVAIL",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29500, useIpv6: false, code: -99, name: EADDRNOTAVAIL, "
            "message: address not available",
            Weight.LIKELY,
            "host {host}",
            note="the address of the store is of another host than the one that was to open it",
        ),
        Sign(
            "should have a unique ip address",
            r"Every node should have a unique IP address",
            "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids "
            "['a', 'b'] and 3 unique IP addresses",
            note=(
                "vLLM and Ray know the nodes by different addresses; VLLM_HOST_IP on each node, "
                "and the same one for `ray start --node-ip-address`"
            ),
        ),
        Sign(
            "fulfill resource request",
            r"No available node types can fulfill resource request .*'node:(?P<node>[\d.]+)'",
            "Error: No available node types can fulfill resource request {'GPU': 1.0, "
            "'node:10.9.0.1': 0.001}.",
            Weight.SYMPTOM,
            "address {node}",
            note="Ray may know that node by another address, or has no GPU left on it",
        ),
        Sign(
            "etcd",
            r"EtcdConnectionFailed|EtcdException: No more machines in the cluster",
            "etcd.EtcdException: No more machines in the cluster",
            Weight.LIKELY,
            note="etcd does not answer at the endpoint of the rendezvous",
        ),
        Sign(
            "http proxy returned",
            r"HTTP proxy returned response code (?P<code>\d+)",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:3128: HTTP "
            "proxy returned response code 403",
            Weight.LIKELY,
            note=(
                "connections between the hosts went through a proxy; no_proxy should name the hosts"
            ),
        ),
        Sign(
            "has already checked in",
            r"rank (?P<number>\d+) of \d+ ranks has already checked in",
            "n1:1:2 [0] bootstrap.cc:348 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already "
            "checked in",
            Weight.LIKELY,
            "rank {number}",
        ),
        Sign(
            "rendezvous",
            r"(?:ValueError|RuntimeError).*rendezvous (?:endpoint|handler|backend)",
            "ValueError: The port number of the rendezvous endpoint '10.9.0.1:abc' must be an "
            "integer",
        ),
        Sign(
            "rdzv_endpoint",
            r"(?:ValueError|RuntimeError).*rdzv_endpoint",
            "ValueError: rdzv_endpoint must be HOST:PORT",
        ),
    ),
    doubt=(
        "The rendezvous failed. Its endpoint, master address, id or node rank may be wrong, or the "
        "process that should open it was not there."
    ),
    detect=detect_misplaced,
    needles=(
        *NEEDLES,
        *launch_lines.NEEDLES,
        "network address of (",
        "rdzv-endpoint",
        "_call_store",
        "num_nodes_waiting",
        "generated a random run_id",
        "master_addr is only used",
        "rendezvous",
        "c10d store has failed",
    ),
)
INCOMPLETE = Cause(
    "rendezvous_incomplete",
    "fatal",
    title="A process did not come",
    message="The rendezvous waited for processes that never came, or came too late.",
    looks=(
        "«Timed out after N seconds waiting for clients. n/m clients joined», "
        "RendezvousTimeoutError, a key of the store that never appears."
    ),
    unlike=(
        "Where a node cannot reach the master's port the reason is the network or a wrong address; "
        "look at that node's log. A process that the launcher or the scheduler could not start is "
        "processes_not_started."
    ),
    remedy=sentence(
        "Start the job on all nodes within the limit, with the same --nnodes; the missing node's "
        "own log says why it did not come"
    ),
    check="launch.nproc",
    finds="nodes that start another number of processes",
    signs=(
        Sign(
            "barrier timed out",
            r"DEADLINE_EXCEEDED: Barrier timed out",
            "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: start. Timed out "
            "task names:",
            Weight.LIKELY,
        ),
        Sign(
            "/replica:0/task:",
            r"^/job:\w+/replica:\d+/task:(?P<task>\d+)$",
            "/job:jax_worker/replica:0/task:3",
            Weight.LIKELY,
            "ranks {task}",
            note="these tasks of JAX are missing",
        ),
        Sign(
            "cluster registration failed",
            r"Stopping coordination service as cluster registration failed",
            "Stopping coordination service as cluster registration failed. This may be due to 1) "
            "some tasks",
            Weight.LIKELY,
        ),
        Sign(
            "timed out waiting for",
            r"Timed out waiting for (?:tasks|processes|hosts|\S+) to (?:start|register"
            r"|be ready)\. Please check",
            "Exception: Timed out waiting for tasks to start. Please check connectivity between "
            "servers.",
            Weight.LIKELY,
        ),
        Sign(
            "any network address of",
            r"failed to connect to any network address of \((?P<peer>[^,]+), ?(?P<port>\d+)\).*"
            r"errno: 111 ",
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
            "network address of (n1, 29500). The client socket has failed to connect to n1:29500 "
            "(errno: 111 - Connection refused).",
            Weight.LIKELY,
            "address {peer}:{port}",
            note=(
                "{peer} refused: it is there, and no process listens on port {port}, so the master "
                "has not started, has ended, or has another address or port"
            ),
        ),
        Sign(
            "connect to all addresses",
            r"failed to connect to all addresses.{0,200}?ipv[46]:"
            r"(?P<peer>[\w.:\[\]%-]{1,60}?:\d+): "
            r".{0,80}?Connection refused",
            "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: "
            "ipv4:10.9.0.1:13305: Failed to connect to remote host: Connection refused",
            Weight.SYMPTOM,
            "address {peer}",
            note="the coordinator has not started there, or it ended before",
        ),
        Sign(
            "connect to gcs at",
            r"Unable to connect to GCS at (?P<peer>[\w.\[\]-]+:\d+)",
            "Unable to connect to GCS at 10.9.0.1:6379. Check that (1) Ray GCS with matching "
            "version started successfully at the specified address",
            Weight.LIKELY,
            "address {peer}",
            note="Ray's head node does not answer at that address",
        ),
        Sign(
            "for gcs to become available",
            r"Timed out while waiting for GCS to become available",
            "Timed out while waiting for GCS to become available.",
            Weight.LIKELY,
            note="Ray's head node does not answer",
        ),
        Sign(
            "on any of the following addresses",
            r"unable to connect to the .{0,80} on any of the following addresses",
            "Horovod was unable to connect to the driver service on any of the following "
            "addresses: {}",
            Weight.LIKELY,
        ),
        Sign(
            " seconds waiting for ",
            r"timed out after (?P<seconds>\d+) seconds waiting for (?:clients|workers)\. "
            r"(?P<joined>\d+)/(?P<wanted>\d+)",
            "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. "
            "3/4 clients joined.",
            Weight.LIKELY,
            note="{joined} of {wanted} came",
        ),
        Sign(
            " seconds waiting for ",
            r"timed out after (?P<seconds>\d+) seconds waiting for (?:clients|workers)(?!\. \d)",
            "RuntimeError: Timed out after 1801 seconds waiting for clients",
            Weight.LIKELY,
        ),
        Sign(
            "rendezvous",
            r"RendezvousTimeoutError|rendezvous (?:has )?timed out"
            r"|Timed out waiting for.{0,40}rendezvous",
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
            Weight.LIKELY,
        ),
        Sign(
            "store based barrier",
            r"Timed out.*store based barrier.{0,120}world_size=(?P<world>\d+), worker_count="
            r"(?P<count>\d+)",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: "
            "2, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)",
            Weight.LIKELY,
            note="{count} of {world} came",
        ),
        Sign(
            "waiting in store based barrier",
            r"Waiting in store based barrier.{0,120}world_size=(?P<world>\d+), worker_count="
            r"(?P<count>\d+)",
            "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize "
            "process group for rank: 5, key: store_based_barrier_key:1 (world_size=8, "
            "worker_count=7, timeout=0:30:00)",
            Weight.SYMPTOM,
            note="{count} of {world} came",
        ),
        Sign(
            "wait timeout after",
            r"wait timeout after \d+ms, keys: (?P<keys>\S+)",
            "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: "
            "/default_pg/0//cuda//1",
            Weight.SYMPTOM,
        ),
        Sign(
            "ncclunique",
            r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<root>\d+)\].{0,160}(?:wait timeout"
            r"|socket timeout|timed out|timeout waiting for key)",
            "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from "
            "[0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout "
            "after 600000ms",
            Weight.LIKELY,
            "rank {root}",
        ),
        Sign(
            "timeout waiting for key",
            r"(?<!got error: )Timeout waiting for key: \S+",
            "RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
            Weight.SYMPTOM,
        ),
        Sign(
            "waitforinput",
            r"waitForInput: socket .{0,160} timed out after \d+ms",
            "[rank1]:[W304 14:34:56.854597329 socket.cpp:489] [c10d] waitForInput: socket "
            "SocketImpl(fd=79, addr=[n1]:41170, remote=[n1]:29500) timed out after 1800000ms",
            Weight.SYMPTOM,
        ),
        Sign(
            "socket timeout",
            r"(?:RuntimeError|DistStoreError|DistNetworkError|error): Socket Timeout",
            "RuntimeError: Socket Timeout",
            Weight.SYMPTOM,
        ),
    ),
    doubt="Processes that the job needs did not come, or came too late.",
    detect=detect_absent,
    needles=("failed to connect to gcs", "store based barrier"),
    yields_to=frozenset(
        {
            "rendezvous_misconfigured",
            "world_size_mismatch",
            "firewall_blocked_port",
            "slow_work_exceeds_timeout",
        }
    ),
)
WORLD = Cause(
    "world_size_mismatch",
    "fatal",
    title="Another number of processes than was said",
    message=(
        "The number of processes that were started and the declared world size, or the ranks that "
        "they hold, differ."
    ),
    looks=(
        "«Invalid rank requested», ranks told the root different sizes, nodes that start "
        "different numbers."
    ),
    unlike="With the right number of which one is missing: rendezvous_incomplete.",
    remedy=sentence(
        "NPROC_PER_NODE and CUDA_VISIBLE_DEVICES explicit and equal on all nodes: clusterprep "
        "check --only launch.,env."
    ),
    check="launch.nproc",
    finds="nodes that start another number of processes",
    signs=(
        Sign(
            "from procs",
            r"mismatch in (?:info|rank count) from procs",
            "n1:1:2 [0] bootstrap.cc:335 NCCL WARN Bootstrap Root : mismatch in info from procs, "
            "nranks 8 vs 16",
            note="the ranks of one communicator were told different sizes",
        ),
        Sign(
            "is out of range",
            r"localId \d+ is out of range",
            "n1:1:2 [0] bootstrap.cc:343 NCCL WARN Bootstrap Root : localId 9 is out of range",
            Weight.LIKELY,
        ),
        Sign(
            "improper usage of ncclcomminitrank",
            r"improper usage of ncclCommInitRank",
            "n1:1:2 [0] init.cc:2480 NCCL WARN improper usage of ncclCommInitRank: nId = 1, "
            "nranks=0",
        ),
        Sign(
            "invalid rank",
            r"(?:ValueError|RuntimeError|AssertionError).{0,40}invalid rank (?P<number>\d+),? "
            r"(?:rank should be in|for world)",
            "ValueError: Invalid rank 8, rank should be in the interval [0, 7]",
            culprit="rank {number}",
        ),
        Sign(
            "world size",
            r"(?:AssertionError|ValueError|RuntimeError).*world size.*(?:not (?:equal|divisible"
            r"|match)|does not match|must be|mismatch)",
            "AssertionError: world size (6) is not divisible by tensor parallel size (4)",
            Weight.LIKELY,
        ),
        Sign(
            "world_size",
            r"(?:AssertionError|ValueError|RuntimeError).*world_size.*(?:not (?:equal|divisible"
            r"|match)|does not match|must be|mismatch)",
            "RuntimeError: world_size (6) is not divisible by tensor_model_parallel_size (4)",
            Weight.LIKELY,
        ),
        Sign(
            "the new group's ",
            r"the new group's (?:world size should be less or equal|rank should be within)",
            "RuntimeError: the new group's world size should be less or equal to the world size "
            "set by init_process_group",
        ),
        Sign(
            "not enough slots",
            r"There are not enough slots available",
            "There are not enough slots available in the system to satisfy the 16 slots that were "
            "requested",
            Weight.LIKELY,
        ),
        Sign(
            "you set",
            r"You set `?(?:--ntasks|devices|num_nodes|--gpus|SLURM).{0,120}(?:but|does not match)",
            "ValueError: You set `devices=8` in Lightning, but the number of tasks of SLURM does "
            "not match",
        ),
    ),
    doubt=(
        "The number of processes that were started, or the ranks that they hold, may differ from "
        "what was declared."
    ),
    detect=detect_wrong_numbers,
    needles=(
        "invalid rank requested",
        "store based barrier",
        "distributed tasks",
        "nproc_per_node",
        "local_world_size",
        "local_ranks=",
    ),
)
