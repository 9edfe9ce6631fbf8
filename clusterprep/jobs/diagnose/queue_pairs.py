"""Reads what queue pairs of InfiniBand and RoCE report: completions, and connections not made.

A completion tells its status by number, of enum ibv_wc_status; ibv_modify_qp tells an errno.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Weight

NEEDLES = ("ibv_modify_qp", "got completion", "different link_layer", "; oob ")
_COMPLETION = re.compile(
    r"Got completion.*?(?:\berror |\bstatus=)(?:IBV_WC_(?P<name>[A-Z_]+)\b\(?)?(?P<status>\d+)?",
    re.IGNORECASE,
)
RETRIES_EXCEEDED = 12
_FLUSHED = 5
_NAMES = {"WR_FLUSH_ERR": _FLUSHED, "RETRY_EXC_ERR": RETRIES_EXCEEDED, "RNR_RETRY_EXC_ERR": 13}
_UNKNOWN = -1
# 1 is told by mtu_mismatch, 4 by p2p_acs_iommu.
_OF_OTHERS = frozenset({1, 4})
_REFUSED = "the peer refused an access to its memory"
_NOTES = {
    _FLUSHED: "5 is what was under way when its queue pair had failed already",
    9: _REFUSED,
    10: _REFUSED,
    11: "the peer could not carry out what it was asked",
    RETRIES_EXCEEDED: "the other end acknowledged nothing until the retries ran out",
    13: "the peer answered that it has posted nothing to receive with: it hangs or is late",
}
_MODIFY = re.compile(
    r"^(?!.*\bUCX\b).*ibv_modify_qp(?:\([^)]*\))? failed(?: with|:)? ?(?:error )?(?:\(errno )?"
    r"(?:\d+)?\)?:? ?(?:\(Ib failure: )?(?P<error>Invalid argument|No data available"
    r"|No such device|Network is unreachable|No route|Connection timed out)"
    r"(?:.*\bon dev (?P<hca>[\w.-]+))?",
    re.IGNORECASE,
)
_TIMED_OUT = "connection timed out"
# What the kernel answers where the table of GIDs has nothing at that index (rdma_get_gid_attr of
# drivers/infiniband/core/cache.c).
_EMPTY_SLOT = "no data available"
_NO_WAY = frozenset({_TIMED_OUT, "network is unreachable", "no route"})
_GIDS = re.compile(
    r"local ?GID(?: index \d+, local ?GID)? ?(?P<local>[0-9a-fA-F:.]+)"
    r".*?remote ?GIDs? ?(?P<remote>[0-9a-fA-F:.]+)",
    re.IGNORECASE,
)
_HCA = re.compile(r"\bhca (?P<hca>[\w.-]+)", re.IGNORECASE)
_PEER = re.compile(r"from peer (?P<peer>[\w.:%-]+?)<", re.IGNORECASE)
_OOB = re.compile(r"; OOB [\w.-]+:(?P<address>[\w.:]+)<\d+>")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Link = tuple[str, str]  # two ends, in an order of their own


class _Gids(Struct, frozen=True):
    """The two GIDs of a queue pair, as IPv4 if they are mapped to IPv6."""

    local: _Address
    remote: _Address
    remote_text: str

    @property
    def have_wrong_index(self) -> bool:
        """Whether one of them cannot be used, or not together with the other."""
        if self.local.version != self.remote.version:
            return True
        return _is_useless(self.local) or _is_useless(self.remote)

    @property
    def are_on_different_rails(self) -> bool:
        """Whether they are IPv4 of different /24: each rail has a network of its own."""
        if self.local.version != 4:
            return False
        return self.local.packed[:3] != self.remote.packed[:3]


def detect_queue_pairs(log: LogFile) -> Iterator[Evidence]:
    """Yield completions with an error, queue pairs that did not connect, and unequal link layers.

    Completions name the link between two ends, or the end that all these links have in common.
    """
    for line in log.lines_with("ibv_modify_qp"):
        match = _MODIFY.search(line.message)
        if match:
            yield _unconnected(line, match)
    for line in log.lines_with("different link_layer"):
        note = "one end of the connection is InfiniBand and the other RoCE"
        yield Evidence("env_or_version_mismatch", line, Weight.LIKELY, _host(line), note)
    yield from _completions(log)


# ---------------------------------------------------------------- connections


def _unconnected(line: LogLine, match: re.Match[str]) -> Evidence:
    """Return what a queue pair that did not connect tells by its errno and by its GIDs."""
    error = match["error"].lower()
    gids = _gids(line)
    hca = _without_port(match["hca"])
    culprits: Culprits = (("HCA", hca),) if hca else _host(line)
    if error == _EMPTY_SLOT or (gids and gids.have_wrong_index):
        return Evidence("roce_gid_index", line, Weight.PLAIN, culprits)
    if gids and gids.are_on_different_rails and error in _NO_WAY:
        if hca:
            culprits = (("HCA", f"{hca} to remote GID {gids.remote_text}"),)
        return Evidence("rail_cross_nic", line, Weight.LIKELY, culprits)
    if error == _TIMED_OUT:
        return Evidence("ib_fabric_unreachable", line, Weight.LIKELY, culprits)
    return Evidence("roce_gid_index", line, Weight.LIKELY, culprits)


# ---------------------------------------------------------------- completions


def _completions(log: LogFile) -> Iterator[Evidence]:
    """Yield completions with an error; flushed ones only where nothing else failed."""
    completions = [(line, _status_of(line)) for line in log.lines_with("got completion")]
    only_flushed = all(status in (None, _FLUSHED) for _, status in completions)
    hosts = _hosts_by_address(log)
    found: dict[tuple[str, Weight], list[tuple[Evidence, _Link | None]]] = {}
    for line, status in completions:
        if status is None or status in _OF_OTHERS:
            continue
        if status == _FLUSHED and not only_flushed:
            continue
        evidence = _of_completion(line, status)
        kind = (evidence.cause, evidence.weight)
        found.setdefault(kind, []).append((evidence, _link(line, hosts)))
    for rows in found.values():
        yield from _blamed(rows, log)


def _status_of(line: LogLine) -> int | None:
    """Return the status of a completion; None if NCCL went on, as it does after one at INFO."""
    match = _COMPLETION.search(line.message)
    if match is None or line.level == "INFO":
        return None
    if match["status"]:
        return int(match["status"])
    return _NAMES.get((match["name"] or "").upper(), _UNKNOWN)


def _of_completion(line: LogLine, status: int) -> Evidence:
    """Return what a completion tells by its status and by its GIDs, with the HCA or the host."""
    culprits = _own_hca(line) or _host(line)
    note = _NOTES.get(status, "")
    if status != RETRIES_EXCEEDED:
        return Evidence("ib_fabric_unreachable", line, Weight.SYMPTOM, culprits, note)
    gids = _gids(line)
    if gids and gids.have_wrong_index:
        return Evidence("roce_gid_index", line, Weight.PLAIN, culprits)
    return Evidence("ib_fabric_unreachable", line, Weight.LIKELY, culprits, note)


def _link(line: LogLine, hosts: Mapping[str, str]) -> _Link | None:
    """Return the two ends of a completion, hosts where they are known, or else addresses."""
    peer = _PEER.search(line.message)
    own = line.host or _own_address(line)
    if peer is None or not own:
        return None
    other = hosts.get(peer["peer"], peer["peer"])
    # A host comes before what is only an address, so that a link has one name from both ends.
    first, second = sorted((own, other), key=lambda end: (_is_address(end), end))
    return first, second


def _is_address(text: str) -> bool:
    return _address(text) is not None


def _own_address(line: LogLine) -> str | None:
    gids = _gids(line)
    if gids is None or gids.local.version != 4:
        return None
    return str(gids.local)


def _hosts_by_address(log: LogFile) -> dict[str, str]:
    """Return host names by the addresses that NCCL says it uses out of band."""
    hosts: dict[str, str] = {}
    for line in log.lines_with("; oob "):
        match = _OOB.search(line.message)
        if match and line.host:
            hosts[match["address"]] = line.host
    return hosts


def _blamed(rows: Iterable[tuple[Evidence, _Link | None]], log: LogFile) -> Iterator[Evidence]:
    """Yield evidence with the link to blame, or the end that several links have in common."""
    links = dict.fromkeys(link for _, link in rows if link)
    common = set.intersection(*(set(link) for link in links)) if links else set()
    for evidence, link in rows:
        if link is None:
            yield evidence
        elif len(common) == 1:
            (end,) = common
            kind = "host" if end in log.hosts else "peer"
            yield replace(evidence, culprits=((kind, end),))
        else:
            yield replace(evidence, culprits=(("link", " - ".join(link)),))


# ---------------------------------------------------------------- GIDs and devices


def _gids(line: LogLine) -> _Gids | None:
    match = _GIDS.search(line.message)
    if match is None:
        return None
    remote_text = match["remote"].rstrip(".,")
    local = _address(match["local"])
    remote = _address(remote_text)
    if local is None or remote is None:
        return None
    return _Gids(local, remote, remote_text)


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.rstrip(".,"))
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _is_useless(address: _Address) -> bool:
    """Whether a GID is link-local with a MAC in it (RoCE v1), or zero.

    fe80:: with a GUID in it is what InfiniBand itself uses.
    """
    if int(address) == 0:
        return True
    has_mac = address.packed[-5:-3] == b"\xff\xfe"
    return address.is_link_local and has_mac


def _own_hca(line: LogLine) -> Culprits:
    match = _HCA.search(line.message)
    hca = _without_port(match["hca"] if match else None)
    return (("HCA", hca),) if hca else ()


def _without_port(device: str | None) -> str | None:
    """Return the name of an HCA without its port: mlx5_0 of mlx5_0:1."""
    return device.partition(":")[0] if device else None


def _host(line: LogLine) -> Culprits:
    return (("host", line.host),) if line.host else ()
