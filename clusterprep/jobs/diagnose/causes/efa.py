"""Causes of EFA and libfabric, and what their errors say of packet filters, memory and versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.remedies import shell_line


class _Error(NamedTuple):
    """What an error text means. `cause` is empty if another process ended or nothing is lost."""

    pattern: re.Pattern[str]
    cause: str
    weight: Weight = Weight.LIKELY
    note: str = ""


def _error(pattern: str, cause: str, weight: Weight = Weight.LIKELY, note: str = "") -> _Error:
    return _Error(re.compile(pattern, re.IGNORECASE), cause, weight, note)


_FILTERED = (
    "EFA had no answer from the other end: the security groups of both must allow all traffic "
    "between their members, in both directions"
)
_NONE = ""
# Texts of libfabric's prov/efa/src, efa_strerror.c of 1.18 and efa_errno.h of 2.1 to 2.6, and what
# efa_show_help says of them. The first that matches counts.
_COMPLETIONS = (
    _error(r"Unreachable remote", "firewall_blocked_port", note=_FILTERED),
    # Before libfabric 1.16 the number of enum ibv_wc_status alone: 20 is a response that timed out.
    _error(
        r"\bRC: 20\. Error: unknown error|prov_err: Not a directory \(20\)",
        "firewall_blocked_port",
        note=_FILTERED,
    ),
    _error(
        r"Unresponsive receiver\. .*security group",
        "firewall_blocked_port",
        Weight.SYMPTOM,
        _FILTERED,
    ),
    _error(
        r"Flushed during queue pair destroy|Bad queue pair|Invalid receiver queue pair"
        r"|reset by remote peer|Receiver connection aborted|because the peer closed"
        r"|handshake failed",
        _NONE,
    ),
    _error(
        r"RTM size mismatch|Remote feature mismatch"
        r"|(?:Invalid|Unknown|Deprecated) packet type",
        "env_or_version_mismatch",
        note="the two ends speak different versions of libfabric, or with different settings",
    ),
    _error(
        r"Unresponsive (?:remote|receiver)|(?:Destination resource|Receiver) not ready",
        "ib_fabric_unreachable",
        Weight.SYMPTOM,
        "the other end of EFA does not answer: its process hangs or ended, or its card failed",
    ),
    _error(r"", "efa_provider", Weight.SYMPTOM),
)
# Errors of the plug-in aws-ofi-nccl 1.5 to 1.21 and of libfabric apart from completions.
_MEMORY = "libfabric could not lock memory for EFA"
_ERRORS = (
    _error(
        r"(?:NET/OFI|:efa:|Libfabric error:|Unable to write to EQ).*Cannot allocate memory"
        r"|NET/OFI.*\bRC: -?12\b",
        "memlock_limit",
        note=_MEMORY,
    ),
    _error(
        r"requires at least libfabric version|version `FABRIC_[\d.]+' not found",
        "env_or_version_mismatch",
        Weight.PLAIN,
        "the libfabric that is loaded is older than what the plug-in was built for",
    ),
    _error(
        r"Unexpected number of remote (?:control )?rails",
        "env_or_version_mismatch",
        note="the two ends have different numbers of EFA devices",
    ),
    _error(
        r"that the security group on either this instance or the peer",
        "firewall_blocked_port",
        Weight.PLAIN,
        _FILTERED,
    ),
    _error(r"GDR disabled on GDR-supported", "gpudirect_rdma_missing", Weight.PLAIN),
    _error(r"GDR support reported to NCCL but", "gpudirect_rdma_missing"),
    # What the plug-in cannot put in order at its end, or can do without.
    _error(
        r"NET/OFI.*(?:\bfree(?:ing)?\b|\bfini\b|leaking key|de-?regist|destr|clean|clos(?:e|ing)\b"
        r"|unlock|inactive|still (?:active|open)|in-use entries|histogram|tuner param|topology"
        r"|\bPCI\b|device prop|GDRCopy|\bgdr_|unable to (?:set|unmap))",
        _NONE,
    ),
)
# The plug-in or libfabric has nothing to work with. NCCL then takes the next network it knows.
_NO_PROVIDER = re.compile(
    r"^(?!.*\bINFO\b).*NET/OFI.*(?:\bunable\b|could ?n.t|could not|no eligible|fail|\berror\b"
    r"|\binvalid\b|only EFA provider)"
    r"|(?:unable|failed|could not|couldn't).{0,20}find.{0,20}libfabric provider"
    r"|fi_getinfo.{0,80}(?:-61|no data|fail|provider efa output empty list)"
    r"|libfabric\.so[.\d]*: cannot open",
    re.IGNORECASE,
)
# Errors of the start, when the plug-in opens what it needs. Later ones often follow from a peer.
_OPENS = re.compile(
    r"provider|protocol|initiali[sz]|could ?n.t (?:open|create|enable|bind|allocate)|endpoint"
    r"|domain|fabric|register|address vector|fi_getinfo|OFI NCCL failure",
    re.IGNORECASE,
)
_SAYS_PROVIDER = re.compile(r"libfabric provider|fi_getinfo|libfabric\.so", re.IGNORECASE)
_WANTED = re.compile(
    r"NCCL_NET set (?:by environment )?to .*(?:libfabric|OFI|efa)|Selected provider is efa"
    r"|via NET/(?:AWS )?Libfabric|FI_PROVIDER=efa",
    re.IGNORECASE,
)
_PEER_HOST = re.compile(r"Peer host id: (?P<name>i-[0-9a-f]+)")
_PEER_ADDRESS = re.compile(r"Peer EFA addr: fi_addr_efa://(?P<name>\[[^]]+\])")
_NEEDLES = (
    "net/ofi",
    ":efa:",
    "libfabric",
    "fi_getinfo",
    "fabric_0",
    "unable to write to eq",
    "that the security group",
)


def detect_efa(log: LogFile) -> Iterator[Evidence]:
    """Yield errors of EFA, each for the cause that its text tells."""
    state = _State(log)
    for line in log.lines_with(*_NEEDLES):
        error = _read(line)
        if error is not None:
            if error.cause:
                yield _evidence(error, line)
        elif _NO_PROVIDER.search(line.text):
            yield from _without_provider(line, state)


class _State:
    """What the log says of the network that NCCL took in the end."""

    def __init__(self, log: LogFile) -> None:
        wishes = log.lines_with("nccl_net set", "selected provider is", "via net/", "fi_provider=")
        self.wants_efa = any(_WANTED.search(line.message) for line in wishes)
        self._efa = _last_by_host(log.lines_with("selected provider is efa"))
        self._other = _last_by_host(log.lines_with("using network socket", "using network ib"))

    def finds_efa_after(self, line: LogLine) -> bool:
        return _is_before(line, self._efa)

    def takes_other_after(self, line: LogLine) -> bool:
        return _is_before(line, self._other)


_Orders = dict[str | None, int]


def _last_by_host(lines: Iterable[LogLine]) -> _Orders:
    return {line.host: line.order for line in lines}


def _is_before(line: LogLine, last: _Orders) -> bool:
    """Whether one of the lines comes after `line`, of the same host as far as hosts are known."""
    if line.host is None:
        return line.order < max(last.values(), default=-1)
    return line.order < max(last.get(line.host, -1), last.get(None, -1))


def _read(line: LogLine) -> _Error | None:
    """Return what the error of a line means, or None if it is about the provider or no error."""
    text = line.message
    for error in _ERRORS:
        if error.pattern.search(text):
            return error
    is_completion = "completed with error" in text or ":efa:cq:" in text
    if not is_completion or line.level == "INFO":
        return None
    return next(error for error in _COMPLETIONS if error.pattern.search(text))


def _evidence(error: _Error, line: LogLine) -> Evidence:
    # A host that meets a filter is not the one that filters.
    host: Culprits = () if error.cause == "firewall_blocked_port" else _host(line)
    return Evidence(
        error.cause,
        line,
        error.weight,
        _peer(line) or host,
        error.note,
    )


def _without_provider(line: LogLine, state: _State) -> Iterator[Evidence]:
    """Yield evidence of a plug-in that has no provider: harmless where NCCL went on without it."""
    if state.finds_efa_after(line):
        return
    if not state.takes_other_after(line):
        yield Evidence("efa_provider", line, _weight_of_provider(line), _host(line))
        return
    if not state.wants_efa:
        yield Evidence("benign_no_net_plugin", line, Weight.PLAIN)
        return
    note = "NCCL went on over another network, which is slower"
    yield Evidence(
        "efa_provider",
        line,
        Weight.LIKELY,
        _host(line),
        note,
        "degraded",
    )


def _weight_of_provider(line: LogLine) -> Weight:
    if _SAYS_PROVIDER.search(line.text):
        return Weight.PLAIN
    return Weight.LIKELY if _OPENS.search(line.message) else Weight.SYMPTOM


def _peer(line: LogLine) -> Culprits:
    """Return the other end: the instance by its id, or else the address of its EFA device."""
    match = _PEER_HOST.search(line.message) or _PEER_ADDRESS.search(line.message)
    return (("peer", match["name"]),) if match else ()


def _host(line: LogLine) -> Culprits:
    return (("host", line.host),) if line.host else ()


EFA = Cause(
    "efa_provider",
    "fatal",
    title="libfabric finds no provider, or EFA refuses",
    message=(
        "The plug-in for EFA was loaded and libfabric has no provider for it, or the network that "
        "NCCL_NET forces is not there."
    ),
    doubt=(
        "The plug-in for EFA failed: libfabric has no provider for it, or refused what the plug-in "
        "asked for."
    ),
    looks=(
        "NET/OFI errors about providers or protocols, fi_getinfo without data, «Failed to "
        "initialize any NET plugin»."
    ),
    unlike=(
        "A plug-in that is absent and not asked for is harmless: benign_no_net_plugin. "
        "«Unreachable remote» is a security group: firewall_blocked_port; «Cannot allocate "
        "memory» is memlock_limit."
    ),
    remedy=shell_line(
        "fi_info -p efa   # EFA driver, libfabric and /dev/infiniband/uverbs* in the container; "
        "unset NCCL_NET and FI_PROVIDER"
    ),
    check="nccl.plugin",
    finds="a plug-in that a node lacks",
    signs=(
        Sign(
            "efa provider is operating in",
            r"Libfabric EFA provider is operating in",
            "As a result, the Libfabric EFA provider is operating in",
            Weight.LIKELY,
            note="a process forked; FI_EFA_FORK_SAFE=1, or a kernel from 5.13, makes that safe",
        ),
        Sign(
            "usage of huge page",
            r"usage of huge page is incompatible with rdma-core's",
            "The usage of huge page is incompatible with rdma-core's fork support.",
            Weight.LIKELY,
            note="FI_EFA_USE_HUGE_PAGE and FI_EFA_FORK_SAFE are both set",
        ),
        Sign(
            "ofi_nccl_",
            r"(?P<name>OFI_NCCL_\w+) set to invalid value",
            "WARNING: OFI_NCCL_PROTOCOL set to invalid value",
            note="the setting is {name}",
        ),
        Sign(
            "initialize any net plugin",
            r"Failed to initialize any NET plugin",
            "n1:1:2 [0] plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "error: network ",
            r"Error: network (?P<name>.+?) not found",
            "n1:1:2 [0] net.cc:480 NCCL WARN Error: network AWS Libfabric not found.",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "failed to initialize net",
            # At INFO NCCL takes the next one.
            r"^(?!.*\bINFO\b).*Failed to initialize NET",
            "n1:1:2 [0] net.cc:480 NCCL WARN Failed to initialize NET plugin Libfabric",
            Weight.LIKELY,
            "host {host}",
            searches_whole_line=True,
        ),
    ),
    detect=detect_efa,
    needles=(*_NEEDLES, "using network ", "nccl_net set", "selected provider is"),
)
