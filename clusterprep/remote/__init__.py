"""The conversation with a node.

`transports` start one process on a node (SSH, Slurm, local, recorded), `bootstrap` sends it the
source of the `agent`, which reads, writes and runs ranks there, and `untrusted` checks the shape of
what it answers. Imports `errors`, `runtime` and `model`. Begin with `transports/link.py`, one
connection to one agent, and with `agent/loop.py`, its other end.
"""
