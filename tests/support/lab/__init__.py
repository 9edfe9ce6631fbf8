"""Real hosts on one machine, for tests that must not be satisfied with fakes.

Each host has a network, mount, PID, UTS and IPC namespace, an overlay of `/`, its own /proc, /dev,
machine id and host key, and sshd as process 1. A supervisor owns all of it, and the kernel ends
everything with it, also after SIGKILL.

The test modules of one process borrow one lab in turn. Before each of them the supervisor kills all
hosts and brings them up again with new file systems and networks: this takes half the time of
another lab, and no kind of change has to be known to be undone.

Faults are real: clocks by libfaketime, MTU and links by `ip`, filters by nftables, slow links by
`tc`, full disks by small file systems. GPUs are a management library in C (tests/support/nvml) that
answers what a test describes, and hangs or loses a device. NCCL is NVIDIA's own in three releases
(tests/support/real_nccl.py), because choosing an interface takes no GPU. RDMA devices and other
kernels are recorded (tests/machines).
"""

from tests.support.lab.lab import Lab, running, sweep, why_not
from tests.support.lab.rooms import Controller, Host

__all__ = ["Controller", "Host", "Lab", "running", "sweep", "why_not"]
