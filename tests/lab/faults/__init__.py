"""Everything that can be made wrong on a host of the lab, one function each, and every one can be taken back.

A fault is there when its function returns. It goes with ``undo()``, at the end of a ``with`` block, or with the lab.
"""

from tests.lab.faults.clocks import clock, clock_environment, unsynchronised, without_chronyd
from tests.lab.faults.fault import Fault
from tests.lab.faults.files import file_over, full, hide_python, loopback_name, own_sysctl, read_only, sys_tree
from tests.lab.faults.gpus import gpus
from tests.lab.faults.network import (
    cable_out,
    docker0,
    drop_direction,
    drop_pair,
    drop_port,
    link_down,
    link_up,
    loss,
    mtu,
    occupy,
    refuse_port,
    second_veth,
    slow,
    switch_mtu,
)
from tests.lab.faults.power import freeze, machine_pids, power_off, reboot
from tests.lab.faults.sshd import cont_sshd, new_host_key, old_kernel, reload_sshd, session_environment, stop_sshd
from tests.lab.faults.users import add_user

__all__ = [
    "Fault",
    "add_user",
    "cable_out",
    "clock",
    "clock_environment",
    "cont_sshd",
    "docker0",
    "drop_direction",
    "drop_pair",
    "drop_port",
    "file_over",
    "freeze",
    "full",
    "gpus",
    "hide_python",
    "link_down",
    "link_up",
    "loopback_name",
    "loss",
    "machine_pids",
    "mtu",
    "new_host_key",
    "occupy",
    "old_kernel",
    "own_sysctl",
    "power_off",
    "read_only",
    "reboot",
    "refuse_port",
    "reload_sshd",
    "second_veth",
    "session_environment",
    "slow",
    "stop_sshd",
    "switch_mtu",
    "sys_tree",
    "unsynchronised",
    "without_chronyd",
]
