"""A small stand-in for systemctl on a host of the lab.

Its units are files, and it really starts the host anew.
"""

from __future__ import annotations

import sys

from tests.support.lab import Host

# UNIT: a folder with `enabled`, `active`, and `starts`, which counts its starts.
STATE = "/etc/lab-units"
SCRIPT = r"""#!/bin/sh
# verbs as systemctl has them: show, enable, disable, start, stop, restart, reload-or-restart,
# daemon-reload, reboot
state=@STATE@
verb=$1; shift
for unit; do :; done
here=$state/$unit
echo "$verb $unit" >> $state/said
start() {
    echo started >> $here/starts
    [ ! -e $here/fails ] || { echo "Job for $unit failed."; exit 1; }
    touch $here/active
}
case $verb in
show)
    if [ -d "$here" ]; then echo LoadState=loaded; else echo LoadState=not-found; fi
    [ ! -d "$here" ] ||
        { [ -e $here/enabled ] && echo UnitFileState=enabled || echo UnitFileState=disabled; }
    [ -e "$here/active" ] && echo ActiveState=active || echo ActiveState=inactive
    echo NeedDaemonReload=no; exit 0 ;;
daemon-reload) exit 0 ;;
reboot) exec @PYTHON@ -c 'import ctypes; ctypes.CDLL(None).reboot(0x01234567)' ;;
esac
[ -d "$here" ] || { echo "Unit $unit not found." >&2; exit 5; }
case $verb in
enable) touch $here/enabled ;;
disable) rm -f $here/enabled ;;
start) start ;;
stop) rm -f $here/active ;;
restart|reload-or-restart) start ;;
try-restart|try-reload-or-restart) [ ! -e $here/active ] || start ;;
*) echo "Unknown command verb $verb." >&2; exit 1 ;;
esac
"""


def install(host: Host, *units: str) -> None:
    """Lay it down in front of any other one, with units that are neither enabled nor active."""
    host.run(["mkdir", "-p", STATE, *(f"{STATE}/{unit}" for unit in units)])
    host.write(
        "/usr/local/sbin/systemctl",
        SCRIPT.replace("@STATE@", STATE).replace("@PYTHON@", sys.executable),
        0o755,
    )


def units(host: Host) -> dict[str, str]:
    """What each unit is and how often it was started: «enabled active 2»."""
    each = 'echo "$u" $(ls $u) $(cat $u/starts 2>/dev/null | wc -l)'
    script = f"cd {STATE}; for u in *.service; do {each}; done"
    rows = (line.split() for line in host.run(["sh", "-c", script, STATE]).stdout.splitlines())
    return {
        row[0]: " ".join(word for word in row[1:] if word not in ("starts", "fails"))
        for row in rows
    }
