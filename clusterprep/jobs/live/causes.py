"""Why a running job does not go on, as causes of a diagnosis."""

from __future__ import annotations

from clusterprep.jobs.diagnose.model import Cause
from clusterprep.remedies import sentence

STOPPED = Cause(
    "rank_stopped",
    "fatal",
    title="A rank is stopped",
    message="A stopped process does nothing, and all others wait for it.",
    looks="The rank's state is T: a signal such as SIGSTOP or Ctrl-Z, or a debugger, holds it.",
    unlike="A rank in state D waits in the kernel: rank_blocked.",
    remedy=sentence(
        "find out who stopped it (a debugger, a scheduler that suspends jobs, Ctrl-Z); "
        "kill -CONT and the process id lets it go on"
    ),
    check=None,
)
BLOCKED = Cause(
    "rank_blocked",
    "fatal",
    title="A rank is blocked in the kernel",
    message="It waits for a device or a file system that does not answer.",
    looks="The rank, or a process of its data loader, is in state D at two looks and never ran.",
    unlike="A rank that reads slowly goes on between two looks.",
    remedy=sentence(
        "look at that file system or device on the node: dmesg -T | tail -50, and whether the "
        "server answers; no signal ends the process before that"
    ),
    check="proc.dstate",
)
GONE = Cause(
    "rank_gone",
    "fatal",
    title="A rank is gone",
    message="The others wait for a process that does not exist any more.",
    looks="The launcher counted more ranks than there are, or sockets lead to one that is gone.",
    unlike="Ranks on nodes that are not asked are not known, and are no culprits.",
    remedy=sentence(
        "look at the end of that rank's log and at the kernel's log of its node, "
        "then end the job: it does not come back"
    ),
    check=None,
)
LINK = Cause(
    "link_cut",
    "fatal",
    title="Data between two nodes does not arrive",
    message="TCP sends the same data again and again, and nothing comes back.",
    looks="Sockets of ranks have data to send that the other end does not acknowledge.",
    unlike="An end whose process does not read has no room, and acknowledges what arrives.",
    remedy=sentence(
        "clusterprep verify measures the links one by one; look for firewall rules, "
        "routes and MTU between these nodes"
    ),
    check="net.ports",
)
OTHER = Cause(
    "rank_in_other_collective",
    "fatal",
    title="Ranks wait in different collectives",
    message="Each waits for the others, which never come: the program takes different ways.",
    looks="The stacks of the ranks end in different collectives, or NCCL counts differ.",
    unlike="With groups of ranks, as in pipelines, some may wait in another one for good reason.",
    remedy=sentence(
        "compare what leads to these two calls: a condition on the rank, data of different "
        "length, a logging or saving step that one rank alone takes"
    ),
    check=None,
)
ELSEWHERE = Cause(
    "rank_elsewhere",
    "fatal",
    title="A rank does something else while the others wait for it",
    message="The others wait in a collective that this rank has not reached.",
    looks="Its stack or its system call is in no collective: it loads data, saves, sleeps.",
    unlike="Ranks that wait in another collective are rank_in_other_collective.",
    remedy=sentence(
        "look at what it waits for there; timeouts and logging around that call tell it next time"
    ),
    check=None,
)
BUSY = Cause(
    "rank_busy",
    "fatal",
    title="A rank computes while the others wait for it",
    message="It uses a processor and has not reached the collective of the others.",
    looks="Its main thread runs, and the main threads of all others wait.",
    unlike="With NCCL waiting ranks use a processor too.",
    remedy=sentence(
        "look again in a minute: in the same function it is a loop or work that one rank alone "
        "does; do that before the others wait, or give them a longer limit"
    ),
    check=None,
)
HALF = Cause(
    "connection_half_gone",
    "fatal",
    title="A rank waits at a connection that has no other end",
    message="The other end was closed, or its node does not know the connection any more.",
    looks="One node has the socket, and the node at its other end has not.",
    unlike="Data that is sent again and again is lost on the way: link_cut.",
    remedy=sentence(
        "a process that ended, a node that was started anew, or a firewall that forgot the "
        "connection: look at the node of the other end"
    ),
    check=None,
)
ALL_WAIT = Cause(
    "all_ranks_wait",
    "fatal",
    title="All ranks wait, and nothing shows for which rank",
    message="No rank is elsewhere, and no socket shows a lost packet.",
    looks="All stacks end in the same collective, and no byte passed between two looks.",
    unlike="A long step has ranks that compute.",
    remedy=sentence(
        "run it again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and NCCL_DEBUG=INFO, and give the "
        "logs to clusterprep diagnose; clusterprep verify tries the links and GPUs"
    ),
    check=None,
)
CAUSES = (STOPPED, BLOCKED, GONE, LINK, OTHER, ELSEWHERE, BUSY, HALF, ALL_WAIT)
