"""Links, filters and interfaces that are not as they should be."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.support.lab import processes, wires
from tests.support.lab.faults.fault import Fault, together
from tests.support.lab.layout import CONTROLLER_ADDRESS, HOST_ENVIRONMENT
from tests.support.lab.rooms import Host, state_of

if TYPE_CHECKING:
    from tests.support.lab.lab import Lab


def mtu(host: Host, size: int, interface: str = wires.INTERFACE) -> Fault:
    """MTU of an interface; up to 9216 gets through the lab's bridge."""
    before = host.read(f"/sys/class/net/{interface}/mtu").strip()
    _set_link(host, interface, "mtu", str(size))
    return Fault(lambda: _set_link(host, interface, "mtu", before))


def link_down(host: Host, interface: str = wires.INTERFACE) -> Fault:
    """Interface down, address kept."""
    _set_link(host, interface, "down")
    return Fault(lambda: link_up(host, interface))


def link_up(host: Host, interface: str = wires.INTERFACE) -> None:
    """Interface up, and announced, so that no host waits for an earlier query to time out."""
    host.run(["sysctl", "--quiet", f"net.ipv4.conf.{interface}.arp_notify=1"])
    _set_link(host, interface, "up")


def cable_out(host: Host) -> Fault:
    """Far end of the host's eth0 down: the interface stays up but has no carrier."""
    port = f"v{host.index}"
    _at_bridge(host, ["ip", "link", "set", port, "down"])
    return Fault(lambda: _at_bridge(host, ["ip", "link", "set", port, "up"]))


def switch_mtu(host: Host, size: int) -> Fault:
    """The switch port at the far end of eth0 carries no larger packets.

    The interface does not show it.
    """
    port = f"v{host.index}"
    _at_bridge(host, ["ip", "link", "set", port, "mtu", str(size)])
    return Fault(
        lambda: _at_bridge(host, ["ip", "link", "set", port, "mtu", str(wires.BRIDGE_MTU)])
    )


def _set_link(host: Host, interface: str, *words: str) -> None:
    host.run(["ip", "link", "set", interface, *words])


def drop_port(host: Host, port: int) -> Fault:
    """Incoming TCP to a port is dropped without an answer."""
    return _filter(host, [f"tcp dport {port} drop"], [])


def refuse_port(host: Host, port: int) -> Fault:
    """Incoming TCP to a port is answered with a reset."""
    return _filter(host, [f"tcp dport {port} reject with tcp reset"], [])


def drop_ports(host: Host, first: int, last: int, hook: str = "input") -> Fault:
    """Drop new TCP connections to a range of ports: incoming ones, or outgoing with `output`."""
    rules = [f"tcp dport {first}-{last} ct state new drop"]
    return _filter(host, rules if hook == "input" else [], rules if hook == "output" else [])


def reject_ports(host: Host, first: int, last: int, how: str = "") -> Fault:
    """Refuse new TCP connections to a range of ports, as nft's `reject` does, or `how` says."""
    return _filter(host, [f"tcp dport {first}-{last} ct state new reject {how}"], [])


def drop_interface(host: Host, interface: str) -> Fault:
    """New TCP connections that come in through an interface are dropped."""
    return _filter(host, [f'iifname "{interface}" tcp flags & (syn | ack) == syn drop'], [])


def drop_policy(host: Host, *accepted: str) -> Fault:
    """A firewall whose policy is to drop what comes in, but for what these rules accept."""
    rules = "; ".join(
        ["ct state established,related accept", *(f"{rule} accept" for rule in accepted)]
    )
    chain = f"chain input {{ type filter hook input priority 0; policy drop; {rules}; }}"
    host.run(["nft", "-f", "-"], input=f"table inet firewall {{\n{chain}\n}}\n")
    return Fault(lambda: host.run(["nft", "delete", "table", "inet", "firewall"]))


def no_address(host: Host, interface: str) -> Fault:
    """An interface without its address."""
    shown = host.run(["ip", "-4", "-oneline", "address", "show", "dev", interface]).stdout.split()
    address = shown[shown.index("inet") + 1]
    host.run(["ip", "address", "del", address, "dev", interface])
    return Fault(lambda: host.run(["ip", "address", "add", address, "dev", interface]))


def flapping(host: Host, interface: str, times: int) -> Fault:
    """The link went and came so often.

    The kernel counts that for as long as the interface exists.
    """
    for _ in range(times):
        _set_link(host, interface, "down")
        _set_link(host, interface, "up")
    return Fault(lambda: None)


def drop_pair(one: Host, other: Host) -> Fault:
    """Nothing passes between two hosts, in either direction."""
    incoming = [f"{rule} drop" for rule in _addressed("saddr", one)]
    outgoing = [f"{rule} drop" for rule in _addressed("daddr", one)]
    return _filter(other, incoming, outgoing)


def drop_direction(sender: Host, receiver: Host) -> Fault:
    """Nothing that ``sender`` sends arrives at ``receiver``. The other direction works."""
    return _filter(receiver, [f"{rule} drop" for rule in _addressed("saddr", sender)], [])


def _addressed(field: str, host: Host) -> list[str]:
    """Return the conditions of nft that a packet has an address of a host, one for each family."""
    conditions = []
    if host.spec.ipv4:
        conditions.append(f"ip {field} {host.spec.ipv4}")
    if host.spec.ipv6:
        conditions.append(f"ip6 {field} {host.spec.ipv6}")
    return conditions


def loss(host: Host, share: float, *, spare_ssh: bool = False) -> Fault:
    """Lose this share (0 to 1) of the packets that come in."""
    spared = ["tcp dport 22 accept", "tcp sport 22 accept"] if spare_ssh else []
    return _filter(host, [*spared, f"numgen random mod 10000 < {round(share * 10000)} drop"], [])


def loss_to_controller(lab: Lab, share: float) -> Fault:
    """Lose this share of the packets between the controller and the hosts, in both directions."""
    drop = f"numgen random mod 10000 < {round(share * 10000)} drop"
    hosts = [_filter(host, [f"ip saddr {CONTROLLER_ADDRESS} {drop}"], []) for host in lab.hosts]
    table = f"lab_{uuid.uuid4().hex[:12]}"
    rule = f"ip saddr != {CONTROLLER_ADDRESS} {drop}"
    chain = f"chain input {{ type filter hook input priority 0; {rule}; }}"
    lab.controller.run(
        ["nft", "-f", "-"], input=f"table inet {table} {{\n{chain}\n}}\n", check=True
    )
    here = Fault(lambda: lab.controller.run(["nft", "delete", "table", "inet", table], check=True))
    return together(here, *hosts)


def _filter(host: Host, incoming: Sequence[str], outgoing: Sequence[str]) -> Fault:
    """A table of its own for each fault, so that they come and go independently."""
    table = f"lab_{uuid.uuid4().hex[:12]}"
    chains = [
        f"chain {hook} {{ type filter hook {hook} priority 0; {'; '.join(rules)}; }}"
        for hook, rules in (("input", incoming), ("output", outgoing))
        if rules
    ]
    host.run(["nft", "-f", "-"], input="\n".join([f"table inet {table} {{", *chains, "}", ""]))
    return Fault(lambda: host.run(["nft", "delete", "table", "inet", table]))


def slow(host: Host, rate: str) -> Fault:
    """Limit eth0 in both directions to a rate in tc's words, such as 100mbit."""
    shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
    far = f"v{host.index}"
    host.run(["tc", "qdisc", "add", "dev", wires.INTERFACE, *shape])
    _at_bridge(host, ["tc", "qdisc", "add", "dev", far, *shape])

    def undo() -> None:
        host.run(["tc", "qdisc", "del", "dev", wires.INTERFACE, "root"])
        _at_bridge(host, ["tc", "qdisc", "del", "dev", far, "root"])

    return Fault(undo)


def slow_user(host: Host, user: str, packets: int, *others: Host) -> Fault:
    """Of what this user sends, only so many packets a second get out, to these hosts or to all.

    Like a class of traffic that a switch polices: connections of other users do not show it.
    """
    to = f"ip daddr {{ {', '.join(other.address for other in others)} }} " if others else ""
    own = host.run(["id", "-u", user]).stdout.strip()
    return _filter(
        host, [], [f"meta skuid {own} {to}limit rate over {packets}/second burst 5 packets drop"]
    )


def docker0(host: Host, address: str = "172.17.0.1/16") -> Fault:
    """The bridge that Docker makes on every node, with the same address everywhere."""
    name = "docker0"
    host.run(["ip", "link", "add", name, "type", "bridge"])
    host.run(["ip", "address", "add", address, "dev", name])
    _set_link(host, name, "up")
    return Fault(lambda: host.run(["ip", "link", "del", name]))


def second_veth(hosts: Sequence[Host], network: str = "10.88", interface: str = "eth1") -> Fault:
    """One more interface on these hosts, on a bridge of its own; 10.77.0.2 has 10.88.0.2 there."""
    tag = uuid.uuid4().hex[:6]
    bridge = f"br{tag}"
    cables = [
        command
        for host in hosts
        for command in wires.cable_commands(
            f"w{tag}{host.index}",
            host.pid,
            int(tag[:2], 16) << 16 | host.index,
            bridge=bridge,
            interface=interface,
        )
    ]
    _at_bridge(
        hosts[0],
        ["ip", "-batch", "-"],
        input="\n".join([*wires.bridge_commands(bridge), *cables, ""]),
    )
    for host in hosts:
        tail = host.address.split(".", 2)[2]
        commands = f"address add {network}.{tail}/16 dev {interface}\nlink set {interface} up\n"
        host.run(["ip", "-batch", "-"], input=commands)

    def undo() -> None:
        ports = [f"link del w{tag}{host.index}" for host in hosts]
        _at_bridge(
            hosts[0], ["ip", "-batch", "-"], input="\n".join([*ports, f"link del {bridge}", ""])
        )

    return Fault(undo)


def _at_bridge(host: Host, argv: Sequence[str], input: str | None = None) -> None:
    """Run a command where the lab's bridge and the far ends of all cables are."""
    there = ["nsenter", f"--net=/proc/{state_of(host.layout).supervisor}/ns/net", "--"]
    processes.run([*there, *argv], timeout=30, check=True, env=HOST_ENVIRONMENT, input=input)


def occupy(host: Host, port: int, address: str = "0.0.0.0") -> Fault:
    """A process of the host listens on a TCP port."""
    listen = (
        "import socket, sys, time\n"
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "taken = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)\n"
        "print(flush=True)\n"
        "time.sleep(1e6)\n"
    )
    process = host.popen([sys.executable, "-c", listen, address, str(port)], stdout=subprocess.PIPE)
    if process.stdout is None or process.stdout.readline() == "":
        message = f"port {port} of {host.name} cannot be taken"
        raise RuntimeError(message)

    def undo() -> None:
        processes.kill_group(process)
        process.communicate()

    return Fault(undo)


def no_interface(host: Host, interface: str) -> Fault:
    """An interface that has another name, as after a new network card."""
    name = f"old{interface}"
    _set_link(host, interface, "down")
    _set_link(host, interface, "name", name)

    def undo() -> None:
        _set_link(host, name, "name", interface)
        _set_link(host, interface, "up")

    return Fault(undo)
