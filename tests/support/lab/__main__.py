"""The lab by hand: start one, look into it, run something in it, end it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.support.lab.lab import Lab, running, why_not
from tests.support.lab.slurm import Slurm


def main() -> int:
    """Entry of ``python -m tests.support.lab``."""
    args = _parser().parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    return int(args.action(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.lab", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="up|status|exec|down")
    up = actions.add_parser("up", help="start a lab in the background")
    up.add_argument("-n", type=int, default=4, help="number of hosts (4)")
    up.add_argument(
        "--keep", type=Path, action="append", default=[], help="folder that hosts must see"
    )
    up.add_argument("--chrony", action="store_true", help="hosts follow a time source")
    up.add_argument("--slurm", action="store_true", help="hosts are nodes of a Slurm cluster")
    up.add_argument("--ipv6", choices=("only", "dual"), help="hosts have IPv6 addresses")
    up.set_defaults(action=_up)
    actions.add_parser("status", help="what runs").set_defaults(action=_status)
    execute = actions.add_parser("exec", help="run a command on a host or on the controller")
    execute.add_argument("where")
    execute.add_argument("command", nargs=argparse.REMAINDER)
    execute.set_defaults(action=_exec)
    actions.add_parser("down", help="end all labs started by hand").set_defaults(action=_down)
    return parser


def _up(args: argparse.Namespace) -> int:
    lab = Lab(args.n, args.keep, chrony=args.chrony, slurm=args.slurm, ipv6=args.ipv6)
    lab.start(owner=None)
    if args.slurm:
        slurm = Slurm(lab)
        slurm.start()
        print(f"slurm      export SLURM_CONF={slurm.env['SLURM_CONF']}")
    print(f"folder     {lab.folder}")
    print(f"inventory  {lab.inventory()}")
    print("run        python -m tests.support.lab exec controller -- clusterprep check INVENTORY")
    print("           python -m tests.support.lab exec n1 -- hostname")
    print("end        python -m tests.support.lab down")
    return 0


def _by_hand() -> list[Lab]:
    labs = [Lab.attach(folder) for folder in running()]
    return [lab for lab in labs if lab.owner is None]


def _status(_: argparse.Namespace) -> int:
    labs = _by_hand()
    for lab in labs:
        print(f"{lab.folder}  supervisor {lab.supervisor}")
        for host in lab.hosts:
            print(f"  {host.name:6} {host.address:14} {'up' if host.alive() else 'down'}")
    return 0 if labs else _none()


def _none() -> int:
    print("no lab runs: python -m tests.support.lab up -n 4", file=sys.stderr)
    return 1


def _exec(args: argparse.Namespace) -> int:
    labs = _by_hand()
    if not labs:
        return _none()
    room = labs[-1].controller if args.where == "controller" else labs[-1].host(args.where)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    # The terminal is passed on: no session of its own, no captured streams.
    process = room.popen(command, start_new_session=False)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()


def _down(_: argparse.Namespace) -> int:
    for lab in _by_hand():
        print(f"ending {lab.folder}")
        lab.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
