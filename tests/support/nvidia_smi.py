"""A small stand-in for nvidia-smi on a host of the lab.

It sets what the library of tests.support.nvml answers there.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import nvml
from tests.support.lab import Host

PATH = "/usr/local/sbin/nvidia-smi"
DESCRIBED = f"/usr/lib/x86_64-linux-gnu/{nvml.DESCRIBED}"
SAID = "/run/lab-nvidia-smi"  # its words, a line for each time that it ran
# As the real one: one GPU by its UUID, one setting, and 2 for what may not be, 6 for what is not
# there (nvidia-smi(1)). A GPU with the row `bmc` in its description has a limit of the BMC's, in
# mW, above which nothing is in force.
SCRIPT = r"""#!/usr/bin/env python3
import sys

OPTIONS = {"-pm": ("persistence", "01"), "-c": ("compute_mode", "023"), "-pl": ("power_limit", "")}
DESCRIBED, SAID = "@DESCRIBED@", "@SAID@"
with open(SAID, "a") as said:
    said.write(" ".join(sys.argv[1:]) + "\n")
if len(sys.argv) != 5 or sys.argv[1] != "-i" or sys.argv[3] not in OPTIONS:
    sys.exit("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
_, _, uuid, option, word = sys.argv
key, words = OPTIONS[option]
rows = [line.rstrip("\n").split(" ", 2) for line in open(DESCRIBED)]
found = [row[0] for row in rows if row[1] == "uuid" and row[2] == uuid]
if not found:
    print("No devices were found")
    sys.exit(6)
gpu = {row[1]: row for row in rows if row[0] == found[0]}
if option == "-pl":
    watts = float(word)
    least, most = (int(gpu[key][2]) / 1000 for key in ("power_min", "power_max"))
    if not least <= watts <= most:
        print("Provided power limit %.2f W is not a valid power limit which should be between "
              "%.2f W and %.2f W for GPU %s" % (watts, least, most, gpu["pci"][2]))
        print("Terminating early due to previous errors.")
        sys.exit(2)
    gpu[key][2] = str(int(watts * 1000))
    gpu["power_enforced"][2] = str(min(int(watts * 1000), int(gpu.get("bmc", gpu["power_max"])[2])))
elif word not in words:
    print("Unable to set %s: %s" % (key, word))
    sys.exit(2)
else:
    gpu[key][2] = word
with open(DESCRIBED, "w") as described:
    described.writelines(" ".join(row) + "\n" for row in rows)
print("Set %s to %s for GPU %s.\nAll done." % (key, word, gpu["pci"][2]))
"""


def install(host: Host) -> None:
    """Lay it down; faults.gpus has to have made the GPUs."""
    host.write(PATH, SCRIPT.replace("@DESCRIBED@", DESCRIBED).replace("@SAID@", SAID), 0o755)


def remove(host: Host) -> None:
    host.run(["rm", "-f", PATH, SAID])


def settings(host: Host) -> list[tuple[str, ...]]:
    """Persistence mode, compute mode and the limit in force in W, of each GPU."""
    rows = [
        line.split(" ", 2)
        for line in (Path(f"/proc/{host.pid}/root") / DESCRIBED[1:]).read_text().splitlines()
    ]
    each: dict[str, dict[str, str]] = {}
    for who, key, value in rows:
        each.setdefault(who, {})[key] = value
    return [
        (gpu["persistence"], gpu["compute_mode"], f"{int(gpu['power_enforced']) / 1000:g}")
        for who, gpu in sorted(each.items())
        if who != "-"
    ]


def said(host: Host) -> list[str]:
    return host.run(["sh", "-c", f"cat {SAID} 2>/dev/null"], check=False).stdout.splitlines()
