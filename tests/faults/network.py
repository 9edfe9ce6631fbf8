"""What can be wrong between hosts: ports, packets, interfaces."""

from __future__ import annotations

from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

UNFIT = {"eth.path_mtu": "what the others send at full size does not fit its interface"}
SEEN = {"net.firewall": "the rule that does it lies in that host's packet filter"}
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def _two_thirds(host: Host, lab: Lab) -> Fault:
    """A firewall that was opened for the first third of the ephemeral range."""
    low, high = map(int, host.read(_RANGE).split())
    return faults.drop_ports(host, low + (high - low + 1) // 3, high)


def _one_third(host: Host, lab: Lab) -> Fault:
    """A firewall that leaves out the last third of it."""
    low, high = map(int, host.read(_RANGE).split())
    return faults.drop_ports(host, high - (high - low + 1) // 3 + 1, high)


def _going_out(host: Host, lab: Lab) -> Fault:
    low, high = map(int, host.read(_RANGE).split())
    return faults.drop_ports(host, min(low, 29500), high, "output")


ROWS = (
    Row(
        "rendezvous port taken", "net.ports", lambda host, lab: faults.occupy(host, 29500), at="n1"
    ),
    Row(
        "rendezvous port dropped",
        "net.ports",
        lambda host, lab: faults.drop_port(host, 29500),
        at="n1",
        several=True,
    ),
    Row(
        "rendezvous port refused",
        "net.ports",
        lambda host, lab: faults.refuse_port(host, 29500),
        at="n1",
    ),
    Row(
        "nothing passes between two nodes",
        "net.ports",
        lambda host, lab: faults.drop_pair(host, lab.host("n2")),
        others=("n2",),
        also=SEEN,
        several=True,
    ),
    Row(
        "one direction of a pair dropped",
        "net.ports",
        lambda host, lab: faults.drop_direction(lab.host("n3"), host),
        others=("n3",),
        also=SEEN,
        several=True,
    ),
    Row("a third of the ephemeral ports dropped", "net.ports", _one_third, also=SEEN, several=True),
    Row(
        "two thirds of the ephemeral ports dropped",
        "net.ports",
        _two_thirds,
        also=SEEN,
        several=True,
    ),
    Row(
        "outgoing connections dropped",
        "net.ports",
        _going_out,
        also={
            **SEEN,
            "eth.path_mtu": "it reached no other host, so none of its own paths was measured",
        },
        several=True,
    ),
    Row(
        "packet filter that lets SSH in and nothing else",
        "net.firewall",
        lambda host, lab: faults.drop_policy(host, "tcp dport 22"),
        also={"net.ports": "no other host reaches its ports"},
        several=True,
    ),
    Row(
        "packet filter that lets the cluster in",
        "net.firewall",
        lambda host, lab: faults.drop_policy(host, "ip saddr 10.77.0.0/16"),
        verdict="pass",
        several=True,
    ),
    Row("MTU 1400", "eth.mtu", lambda host, lab: faults.mtu(host, 1400), also=UNFIT),
    Row(
        "switch port with MTU 1400", "eth.path_mtu", lambda host, lab: faults.switch_mtu(host, 1400)
    ),
    Row("round trips of 10 ms", "net.latency", lambda host, lab: faults.far_away(host, 5)),
    Row(
        "a docker0 bridge",
        "eth.iface_choice",
        lambda host, lab: faults.docker0(host),
        verdict="pass",
        several=True,
    ),
)

# Every host has eth1 besides, and the inventory says that it is NCCL's.
SECOND = "eth1"
_CHOICE = "eth.iface_choice"
_NO_CHOICE = dict.fromkeys(
    (
        "eth.mtu",
        "eth.speed",
        "eth.bond",
        "irq.balance",
        "net.firewall",
        "net.ports",
        "eth.path_mtu",
        "net.latency",
    ),
    "there is no interface to look at",
)
# The kernel's count of lost links stays with the interface, so this stage has one run with faults
# and no more.
SECOND_ROWS = (
    Row(
        "a link that was lost twelve times",
        "eth.speed",
        lambda host, lab: faults.flapping(host, SECOND, 12),
        several=True,
    ),
    *(
        Row(f"declared interface {how}", _CHOICE, plant, several=True, also=_NO_CHOICE)
        for how, plant in (
            ("down", lambda host, lab: faults.link_down(host, SECOND)),
            ("missing", lambda host, lab: faults.no_interface(host, SECOND)),
            ("without address", lambda host, lab: faults.no_address(host, SECOND)),
        )
    ),
)

# Every host has an MTU of 9000.
JUMBO_ROWS = (
    Row(
        "switch port without jumbo frames",
        "eth.path_mtu",
        lambda host, lab: faults.switch_mtu(host, 1500),
    ),
    Row(
        "a host without jumbo frames",
        "eth.mtu",
        lambda host, lab: faults.mtu(host, 1500),
        also=UNFIT,
    ),
)
