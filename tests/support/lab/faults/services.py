"""Services of a host, which has no systemd: a stand-in for systemctl answers for them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.lab.faults.fault import Fault, together
from tests.support.lab.faults.files import written
from tests.support.lab.rooms import Host

_STATES = "/etc/lab-units"
_SYSTEMCTL = "/usr/local/bin/systemctl"
# `systemctl show -p PROPERTIES UNIT...` alone; a unit is active unless the file beside says
# otherwise.
_SCRIPT = f"""\
#!/bin/sh
[ "$1" = show ] || exit 1
shift
blank=
for word; do
    case "$word" in -*) continue;; *.*) ;; *) continue;; esac
    state=$(sed -n "s/^$word //p" {_STATES})
    case "$state" in
        not-found) load=not-found active=inactive;;
        *) load=loaded active=${{state:-active}};;
    esac
    printf "${{blank}}Id=%s\\nLoadState=%s\\nActiveState=%s\\n" "$word" "$load" "$active"
    blank='\\n'
done
"""


def services(host: Host) -> Fault:
    """All services run."""
    return together(written(host, _STATES, ""), written(host, _SYSTEMCTL, _SCRIPT, 0o755))


def service(host: Host, states: Mapping[str, str]) -> Fault:
    """Services in another state, such as inactive, failed or not-found.

    The host must have ``services``.
    """
    return written(host, _STATES, "".join(f"{unit} {state}\n" for unit, state in states.items()))
