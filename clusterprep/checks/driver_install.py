"""Judges how the NVIDIA driver is installed: whole libraries, packages that stay as they are."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    passed,
    skipped,
)
from clusterprep.facts.driver_files import DriverLibrary
from clusterprep.facts.packages import DriverPackages
from clusterprep.model import Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.remedies import sentence, shell_line

REINSTALL = sentence("install the driver's user libraries again, then run ldconfig")


def integrity(
    context: CheckContext, node: Node, libraries: tuple[DriverLibrary, ...]
) -> Iterable[Outcome]:
    """Judge that each library is a file with content, and that those of a folder are one driver."""
    if not libraries:
        yield skipped(node, "the loader's cache names no library of the NVIDIA driver")
        return
    missing = [library.path for library in libraries if library.size is None]
    empty = [library.path for library in libraries if library.size == 0]
    mixed = _mixed(libraries)
    if missing:
        message = "the loader's cache names driver libraries that do not exist"
        cure = shell_line("ldconfig   # if they belong there, install the driver again before it")
        yield failed(node, message, _listed(missing), "existing files", cure)
    if empty:
        message = "driver libraries are empty: programs that load them end at once"
        yield failed(node, message, _listed(empty), "files with content", REINSTALL)
    if mixed:
        message = "driver libraries of one folder are of different versions"
        yield failed(node, message, mixed, "one version", REINSTALL)
    if not missing and not empty and not mixed:
        yield passed(node, "the driver's libraries are whole", f"{len(libraries)} libraries")


def _mixed(libraries: Iterable[DriverLibrary]) -> str:
    """Return «libcuda.so.1 550.54.15, libnvidia-ml.so.1 535.183.01 in /usr/lib64», or nothing.

    Folders are apart: a CUDA compatibility package has another version in a folder of its own.
    """
    by_folder: dict[str, dict[str, str]] = {}
    for library in libraries:
        if library.version is not None:
            versions = by_folder.setdefault(library.folder, {})
            versions.setdefault(library.version, library.path.rpartition("/")[2])
    texts = []
    for folder, versions in by_folder.items():
        if len(versions) > 1:
            parts = [f"{name} {version}" for version, name in versions.items()]
            texts.append(f"{', '.join(parts)} in {folder}")
    return "; ".join(texts)


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - 4} more" if len(paths) > 4 else ""
    return ", ".join(paths[:4]) + more


def hold(context: CheckContext, node: Node, packages: DriverPackages) -> Outcome:
    """Judge that nothing updates the driver while a job runs."""
    if not packages.loose:
        return passed(node, "the driver's packages stay at their version", "held")
    seen = ", ".join(packages.loose)
    if not packages.automatic:
        return passed(node, "nothing updates the driver by itself", f"{seen} not held")
    message = (
        "updates are installed by themselves, and the driver is not left out: after one, the "
        "library no longer fits the module that runs"
    )
    if packages.manager == "dnf":
        cure = shell_line("dnf versionlock add {names}", names=packages.loose)
    else:
        cure = shell_line("apt-mark hold {names}", names=packages.loose)
    return failed(node, message, f"{seen} not held", "held", cure)


INTEGRITY = Check(
    "nv.lib_integrity",
    facts=("nv.libraries",),
    judge=each(integrity, "nv.libraries"),
    severity="warning",
    title="The driver's libraries",
    why="An image that was built or copied badly has driver libraries that are empty or lead "
    "nowhere: CUDA is «not available», with a driver that works.",
    how="The driver's libraries in /etc/ld.so.cache (libcuda, libnvidia-ml, the PTX compiler, …): "
    "each is a file with content, and those of one folder have one version.",
    remedy=REINSTALL,
    proof=Proof(
        "nv.libraries",
        lambda found: tuple(replace(library, size=0) for library in found),
        machine={
            "answers": {
                "driver_libraries": [
                    "ok",
                    [
                        [f"/usr/lib/x86_64-linux-gnu/{name}", size, f"{stem}.so.550.54.15"]
                        for name, stem, size in (
                            ("libcuda.so.1", "libcuda", 28386840),
                            ("libnvidia-ml.so.1", "libnvidia-ml", 2078360),
                            ("libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjit", 28674464),
                        )
                    ],
                ]
            }
        },
    ),
)
HOLD = Check(
    "nv.pkg_hold",
    facts=("nv.packages",),
    judge=each(hold, "nv.packages"),
    severity="warning",
    title="Updates of the driver",
    why="An unattended upgrade of the driver's packages while a job runs ends the next start: "
    "«Driver/library version mismatch», on the nodes that were upgraded.",
    how="dpkg's holds, and unattended-upgrades with its blacklist in /etc/apt/apt.conf.d; dnf's "
    "versionlock and dnf-automatic. Passes where the driver's packages are held or left out, or "
    "nothing updates by itself; skipped where the driver does not come from packages.",
    fix=fix_of(wanted_state("driver_hold")),
    remedy=shell_line("apt-mark hold PACKAGES   # dnf versionlock add PACKAGES on Red Hat's"),
    proof=Proof(
        "nv.packages",
        lambda found: replace(found, held=(), loose=found.held, automatic=True),
        machine={
            "commands": {
                "env HOME=/proc rpm -qf --qf %{NAME} /usr/bin/nvidia-smi": "nvidia-driver-cuda",
            },
            "files": {
                "/etc/dnf/plugins/versionlock.list": "nvidia-driver-cuda-3:550.54.15-1.el9.*\n"
            },
        },
    ),
)
