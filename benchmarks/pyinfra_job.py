"""The common job of the benchmark as a deploy of pyinfra."""

from pathlib import Path

from pyinfra import host
from pyinfra.facts.hardware import NetworkDevices
from pyinfra.facts.server import Command, Hostname, KernelVersion
from pyinfra.operations import files

host.get_fact(KernelVersion)
host.get_fact(Hostname)
host.get_fact(NetworkDevices)
host.get_fact(Command, "cat /proc/sys/net/ipv4/ip_local_port_range")

files.put(
    name="one file",
    src=str(Path(__file__).with_name("common.conf")),
    dest="/etc/clusterprep-bench.conf",
    mode="644",
)
