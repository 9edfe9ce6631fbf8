"""The cause of a process whose connection to another one of the job ended."""

from __future__ import annotations

from clusterprep.jobs.diagnose.lost_peers import CAUSE
from clusterprep.jobs.diagnose.model import Cause, Sign, Weight
from clusterprep.remedies import shell_line

_PEER = r"(?P<peer>[\w.:%-]+)"

LOST = Cause(
    CAUSE,
    "fatal",
    title="A peer went away",
    message=(
        "A connection to another process of the job ended. That process has ended first, or its "
        "host, or the network to it was lost; its own log says why."
    ),
    looks=(
        "«Connection closed by remote peer», «Call to recv from … failed», gloo's «Connection "
        "closed by peer», ncclRemoteError; and in no log of the job a line that says why."
    ),
    unlike=(
        "Where another line tells of a failure, that is the cause and these lines follow from it. "
        "A connection that was never made is firewall_blocked_port."
    ),
    remedy=shell_line(
        "clusterprep diagnose *.log   # the logs of all ranks together, and of the peer's host "
        "also journalctl -k"
    ),
    check=None,
    blames_process=False,
    signs=(
        Sign(
            "closed by remote peer",
            rf"closed by remote peer(?: {_PEER}<\d+>)?",
            "n1:11:90 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote "
            "peer n2<43211>",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "call to ",
            rf"Call to (?:recv|send|connect)\w*(?: (?:from|to) {_PEER}<\d+>)? failed\W+"
            r"(?:Connection timed out|Connection reset by peer|Broken pipe)",
            "n1:11:90 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from "
            "10.9.0.7<43211> failed : Connection reset by peer",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "by peer [",
            rf"Connection (?:closed|reset) by peer \[{_PEER}\]:\d+",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:554] Connection closed by peer "
            "[10.9.0.7]:4000",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "reset by peer",
            rf"(?:read|write)\w*(?: error)? \[{_PEER}\]:\d+: Connection reset by peer",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Read error [10.9.0.7]:4000: "
            "Connection reset by peer",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "broken pipe",
            rf"write\w*(?: error)? \[{_PEER}\]:\d+: Broken pipe",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:400] writev [10.9.0.7]:4000: Broken pipe",
            Weight.SYMPTOM,
            "peer {peer}",
        ),
        Sign(
            "remote process exited",
            r"remote process exited or there was a network error",
            "RuntimeError: NCCL error: remote process exited or there was a network error, NCCL "
            "version 2.21.5",
            Weight.SYMPTOM,
        ),
        Sign(
            "ncclremoteerror",
            r"ncclRemoteError",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process "
            "exiting prematurely.",
            Weight.SYMPTOM,
        ),
        Sign(
            "socket progress error",
            r"socket progress error",
            "n1:11:90 [0] transport/net_socket.cc:500 NCCL WARN NET/Socket : socket progress error",
            Weight.SYMPTOM,
        ),
    ),
)
