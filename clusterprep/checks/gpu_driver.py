"""What must fit together around the driver: module and library, the GPUs' firmware, the fabric manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.checks.gpu_health import by_text, of_job
from clusterprep.facts.gpu_driver import FabricState, Firmware, Library
from clusterprep.facts.nvlink import Fabric
from clusterprep.model import Absent, Node

RELOAD = "reboot   # or, with nothing on the GPUs: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia"
ACROSS = ("VBIOS", "InfoROM")  # the GSP's comes with the driver, whose version nv.driver compares


def module_vs_lib(context: CheckContext, node: Node, library: Library) -> Outcome:
    """The driver's own word first, then the version in the library's name."""
    seen = f"module {library.module or '?'}; " + ", ".join(
        f"{path} {version or 'of unknown version'}" for path, version in library.files.items()
    )
    module = library.module or "the loaded module's version"
    versions = {version for version in library.files.values() if version is not None}
    fits = library.module in versions
    strange = bool(versions - {library.module})
    if library.refused or (strange and not (fits and library.works)):
        message = "the loaded kernel module and the driver's libraries are of different versions"
        return Outcome("fail", (node.name,), message, seen, module, RELOAD)
    if not (library.works or fits):
        message = "the library does not tell its version, and did not start"
        return Outcome("unknown", (node.name,), message, seen, module, reason="nvml did not start")
    return Outcome("pass", (node.name,), "module and library fit", seen, module)


# ---------------------------------------------------------------- firmware


def firmware(context: CheckContext) -> Iterable[Outcome]:
    """Equal on all boards of one part number, in a node and over the nodes."""
    usual = _usual(context)
    for node in context.nodes:
        mine = of_job(node, context.value(node, "gpu.firmware"))
        known = {index: value for index, value in mine.items() if isinstance(value, Firmware)}
        gsp = {value.versions.get("GSP", "none") for value in known.values()}
        said = {index: words for index, value in known.items() if (words := _odd(value, usual))}
        if len(gsp) > 1:
            said.update(
                {
                    i: f"GSP {v.versions.get('GSP', 'none')}"
                    for i, v in known.items()
                    if i not in said
                }
            )
        unknown = [
            value
            for value in mine.values()
            if isinstance(value, Absent) and value.reason != "not_applicable"
        ]
        if said:
            message = "firmware differs from that of the same boards"
            yield Outcome(
                "fail", (node.name,), message, by_text(said, len(mine)), "equal on equal boards"
            )
        elif unknown:
            yield Outcome("unknown", (node.name,), unknown[0].detail, reason=unknown[0].reason)
        elif known:
            text = by_text({i: _words(v) for i, v in known.items()}, len(mine))
            yield Outcome(
                "pass",
                (node.name,),
                "firmware is equal on equal boards",
                text,
                "equal on equal boards",
            )
        else:
            yield Outcome(
                "skip", (node.name,), "no firmware versions are told here", reason="not_applicable"
            )


def _usual(context: CheckContext) -> dict[tuple[str, str], str | None]:
    """For each board and part the version that most have; None without a strict majority."""
    seen: dict[tuple[str, str], Counter[str]] = {}
    for node in context.nodes:
        for value in of_job(node, context.value(node, "gpu.firmware")).values():
            if isinstance(value, Firmware):
                for part in ACROSS:
                    if part in value.versions:
                        seen.setdefault((value.board, part), Counter())[value.versions[part]] += 1
    return {key: _majority(counts) for key, counts in seen.items()}


def _majority(counts: Counter[str]) -> str | None:
    version, count = counts.most_common(1)[0]
    return version if 2 * count > counts.total() else None


def _odd(value: Firmware, usual: dict[tuple[str, str], str | None]) -> str:
    words = []
    for part in ACROSS:
        mine, most = value.versions.get(part), usual.get((value.board, part), "")
        if mine is not None and mine != most:
            words.append(f"{part} {mine}" + ("" if most is None else f", most have {most}"))
    return "; ".join(words)


def _words(value: Firmware) -> str:
    return ", ".join(f"{part} {version}" for part, version in value.versions.items())


# ---------------------------------------------------------------- the fabric manager


def fabric_manager(context: CheckContext, node: Node, found: FabricState) -> Iterable[Outcome]:
    """On GPUs that tell their fabric's state that state, on older ones the service."""
    service = found.service
    words = "" if service is None else f"; nvidia-fabricmanager is {service.active}"
    cure = _cure(found)
    if found.fabric is None:
        active = service is not None and service.active == "active"
        message = (
            "the fabric manager runs"
            if active
            else "there are NVSwitches and no fabric manager runs"
        )
        yield Outcome(
            "pass" if active else "fail", (node.name,), message, words.strip("; "), "active", cure
        )
        return
    mine = {i: f for i, f in found.fabric.items() if isinstance(f, Fabric)}
    unready = {i: _state(f) for i, f in mine.items() if f.state != "completed" or f.status}
    ill = {i: ", ".join(f.troubles) for i, f in mine.items() if i not in unready and f.troubles}
    unknown = [
        f for f in found.fabric.values() if isinstance(f, Absent) and f.reason != "not_applicable"
    ]
    wanted = "completed"
    if unready:
        seen = by_text(unready, len(mine)) + words
        yield Outcome(
            "fail",
            (node.name,),
            "the NVSwitch fabric is not set up: CUDA will not start",
            seen,
            wanted,
            cure,
        )
    if ill:
        message = "the NVSwitch fabric is not healthy"
        health = "nvidia-smi -q | grep -A8 Fabric; less /var/log/fabricmanager.log"
        yield Outcome(
            "fail",
            (node.name,),
            message,
            by_text(ill, len(mine)),
            "healthy",
            health,
            severity="warning",
        )
    if unknown:
        yield Outcome(
            "unknown", (node.name,), unknown[0].detail, "", wanted, reason=unknown[0].reason
        )
    if unready or ill or unknown:
        return
    if service is not None and service.active != "active":
        message = (
            "the fabric is set up, and its manager has stopped: after the next reset it will not be"
        )
        yield Outcome(
            "fail", (node.name,), message, words.strip("; "), "active", cure, severity="warning"
        )
    else:
        yield Outcome(
            "pass", (node.name,), "the NVSwitch fabric is set up", "completed" + words, wanted
        )


def _state(fabric: Fabric) -> str:
    return f"{fabric.state}, status {fabric.status}" if fabric.status else fabric.state


def _cure(found: FabricState) -> str:
    version = found.service.version if found.service else None
    if version and found.driver and version != found.driver:
        branch = found.driver.split(".")[0]
        return f"apt-get install nvidia-fabricmanager-{branch}={found.driver}-1   # it is {version}, the driver is not"
    return "systemctl enable --now nvidia-fabricmanager; less /var/log/fabricmanager.log"


def fabric_managers(context: CheckContext) -> Iterable[Outcome]:
    for node in context.nodes:
        yield from fabric_manager(context, node, context.value(node, "gpu.fabric_state"))


MODULE = Check(
    "nv.module_vs_lib",
    facts=("nv.library",),
    judge=each(module_vs_lib, "nv.library"),
    severity="error",
    title="The driver's kernel module and its libraries",
    why="An update replaced the libraries under a running module («Driver/library version mismatch»): nothing that "
    "starts from now on gets a GPU, while what runs goes on.",
    how="NVML's code 18, and the version in the name that libnvidia-ml.so.1 leads to against "
    "/proc/driver/nvidia/version.",
    remedy=RELOAD + "; apt-mark hold the driver's packages",
    proof=Proof("nv.library", lambda library: replace(library, refused=True, works=False)),
)
FIRMWARE = Check(
    "fw.gpu",
    facts=("gpu.firmware",),
    judge=firmware,
    severity="warning",
    title="Firmware of the GPUs",
    why="Boards that came back from repair bring other firmware, with other power and clock tables: one slow GPU.",
    how="NVML's VBIOS and InfoROM versions, equal on all boards of one part number in the job, "
    "and the GSP's in one node.",
    remedy="flash the odd boards with the maker's update",
    proof=Proof(
        "gpu.firmware",
        lambda found: {
            **found,
            3: replace(found[3], versions={**found[3].versions, "VBIOS": "96.00.30.00.01"}),
        },
    ),
)
FABRIC_MANAGER = Check(
    "gpu.fabricmanager",
    facts=("gpu.fabric_state",),
    judge=fabric_managers,
    severity="error",
    title="The NVSwitch fabric and its manager",
    why="On machines with NVSwitches CUDA does not start («system not yet initialized», error 802) until the fabric "
    "manager has set up the fabric, and it runs only in the driver's own version.",
    how="NVML's fabric state of each GPU (Hopper and later): completed, without an error, healthy; and where "
    "NVSwitches are on the bus, systemd's word for nvidia-fabricmanager. Skipped on other machines.",
    remedy="systemctl enable --now nvidia-fabricmanager",
    proof=Proof(
        "gpu.fabric_state",
        lambda found: replace(found, fabric={**found.fabric, 3: Fabric("not started", 0, ())}),
    ),
)
