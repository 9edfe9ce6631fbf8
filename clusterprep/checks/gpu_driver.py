"""What must fit the driver: its module and library, the firmware of GPUs, the fabric manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.gpu_health import by_text, of_job
from clusterprep.facts.gpu import Readings
from clusterprep.facts.gpu_driver import FabricState, Firmware, Library
from clusterprep.facts.nvlink import Fabric
from clusterprep.model import Absent, Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.remedies import Remedy, noted, sentence, shell_line

RELOAD = shell_line(
    "cat /proc/driver/nvidia/version; modinfo -F version nvidia"
    "   # then reboot; or, with nothing on the GPUs: rmmod nvidia_uvm nvidia_drm nvidia_modeset "
    "nvidia, and modprobe nvidia"
)
GSP = "GSP"
# Parts that are compared between nodes. The GSP's comes with the driver, whose version nv.driver
# compares.
COMPARED_PARTS = ("VBIOS", "InfoROM")
EQUAL_BOARDS = "equal on equal boards"
SET_UP = "completed"
WITHOUT_BRANCH = 580  # the first branch whose package of the fabric manager has two names

UsualVersions = Mapping[tuple[str, str], str | None]
"""Board and part → the version that most have; None without a strict majority."""


def module_vs_lib(context: CheckContext, node: Node, library: Library) -> Outcome:
    """Judge by the driver's own answer first, then by the version in the library's name."""
    files = []
    for path, version in library.files.items():
        files.append(f"{path} {version or 'of unknown version'}")
    seen = f"module {library.module or '?'}; {', '.join(files)}"
    wanted = library.module or "the loaded module's version"
    versions = {version for version in library.files.values() if version is not None}
    fits = library.module in versions
    has_others = bool(versions - {library.module})
    if library.refused or (has_others and not (fits and library.works)):
        message = "the loaded kernel module and the driver's libraries are of different versions"
        return failed(
            node,
            message,
            seen,
            wanted,
            RELOAD,
        )
    if library.works or fits:
        return passed(node, "module and library fit", seen, wanted)
    message = "the library does not tell its version, and did not start"
    return unknown(
        node,
        message,
        "nvml did not start",
        seen,
        wanted,
    )


# ---------------------------------------------------------------- firmware


def firmware(context: CheckContext) -> Iterable[Outcome]:
    """Judge that firmware is equal on all boards of one part number, in a node and over nodes."""
    usual = _usual_versions(context)
    for nodes in context.alike():
        readings = of_job(nodes[0], context.value(nodes[0], "gpu.firmware"))
        outcome = _firmware_of_node(nodes[0], readings, usual)
        yield from about_all(nodes, [outcome])


def _firmware_of_node(node: Node, readings: Readings, usual: UsualVersions) -> Outcome:
    """Return the outcome for one node; `readings` are those of the job's GPUs."""
    boards: dict[int, Firmware] = {}
    unreadable: list[Absent] = []
    for index, value in readings.items():
        if isinstance(value, Firmware):
            boards[index] = value
            unreadable.extend(value.refused)
        elif isinstance(value, Absent) and value.reason != "not_applicable":
            unreadable.append(value)
    deviations = _deviations(boards, usual)
    if deviations:
        message = "firmware differs from that of the same boards"
        return failed(node, message, by_text(deviations, len(readings)), EQUAL_BOARDS)
    if unreadable:
        return unknown(node, unreadable[0].detail, unreadable[0].reason)
    if not boards:
        return skipped(node, "no firmware versions are told here")
    versions = {index: _versions(board) for index, board in boards.items()}
    seen = by_text(versions, len(readings))
    return passed(node, "firmware is equal on equal boards", seen, EQUAL_BOARDS)


def _usual_versions(context: CheckContext) -> UsualVersions:
    """Return the usual version of each compared part, over the boards of all nodes."""
    counters: dict[tuple[str, str], Counter[str]] = {}
    for nodes in context.alike():
        for board in of_job(nodes[0], context.value(nodes[0], "gpu.firmware")).values():
            if not isinstance(board, Firmware):
                continue
            for part in COMPARED_PARTS:
                if part in board.versions:
                    counter = counters.setdefault((board.board, part), Counter())
                    counter[board.versions[part]] += len(nodes)
    return {key: _majority(counter) for key, counter in counters.items()}


def _majority(counts: Counter[str]) -> str | None:
    """Return the version that more than half have, None if there is none."""
    version, count = counts.most_common(1)[0]
    return version if 2 * count > counts.total() else None


def _deviations(boards: Mapping[int, Firmware], usual: UsualVersions) -> dict[int, str]:
    """Return for each deviating GPU what differs.

    The GSP's firmware is compared within the node: if it differs, every GPU is listed.
    """
    deviations = {}
    for index, board in boards.items():
        text = _deviation(board, usual)
        if text:
            deviations[index] = text
    gsp = {}
    for index, board in boards.items():
        if not board.refused:
            gsp[index] = board.versions.get(GSP, "none")
    if len(set(gsp.values())) > 1:
        for index, version in gsp.items():
            deviations.setdefault(index, f"{GSP} {version}")
    return deviations


def _deviation(board: Firmware, usual: UsualVersions) -> str:
    """Return what differs from the usual versions of such a board; empty if nothing does."""
    parts = []
    for part in COMPARED_PARTS:
        version = board.versions.get(part)
        most = usual.get((board.board, part), "")
        if version is None or version == most:
            continue
        text = f"{part} {version}"
        if most is not None:
            text += f", most have {most}"
        parts.append(text)
    return "; ".join(parts)


def _versions(board: Firmware) -> str:
    return ", ".join(f"{part} {version}" for part, version in board.versions.items())


# ---------------------------------------------------------------- the fabric manager


START_MANAGER = fix_of(
    wanted_state("service", name="nvidia-fabricmanager", enabled=True, running=True)
)


def fabric_manager(context: CheckContext, node: Node, state: FabricState) -> Iterable[Outcome]:
    """Judge the fabric's state on GPUs that report it; on older ones the service."""
    if state.fabric is None:
        return [_judge_service(node, state)]
    outcomes = list(_fabric_problems(node, state, state.fabric))
    if not outcomes:
        outcomes.append(_judge_healthy_fabric(node, state))
    return outcomes


def _is_active(state: FabricState) -> bool:
    return state.service is not None and state.service.active == "active"


def _service_text(state: FabricState) -> str:
    if state.service is None:
        return ""
    return f"nvidia-fabricmanager is {state.service.active}"


def _with_service(text: str, state: FabricState) -> str:
    service = _service_text(state)
    return f"{text}; {service}" if service else text


def _judge_service(node: Node, state: FabricState) -> Outcome:
    """Judge the fabric manager where the GPUs do not report their fabric."""
    seen = _service_text(state)
    if _is_active(state):
        return passed(node, "the fabric manager runs", seen, "active")
    message = "there are NVSwitches and no fabric manager runs"
    return failed(
        node,
        message,
        seen,
        "active",
        _start_manager(state),
        fix=START_MANAGER,
    )


def _fabric_problems(
    node: Node, state: FabricState, readings: Mapping[int, Fabric | Absent]
) -> Iterable[Outcome]:
    """Yield failures for GPUs whose fabric is not set up or not healthy, and what is not known."""
    known = 0
    not_set_up: dict[int, str] = {}
    unhealthy: dict[int, str] = {}
    slower: dict[int, str] = {}
    unreadable = []
    for index, fabric in readings.items():
        if isinstance(fabric, Absent):
            if fabric.reason != "not_applicable":
                unreadable.append(fabric)
            continue
        known += 1
        if fabric.state != SET_UP or fabric.status:
            not_set_up[index] = _fabric_text(fabric)
        elif fabric.troubles:
            troubled = slower if fabric.is_usable else unhealthy
            troubled[index] = ", ".join(fabric.troubles)
    if not_set_up:
        message = "the NVSwitch fabric is not set up: CUDA will not start"
        seen = _with_service(by_text(not_set_up, known), state)
        yield failed(
            node,
            message,
            seen,
            SET_UP,
            _start_manager(state),
        )
    remedy = shell_line("nvidia-smi -q | grep -A8 Fabric; less /var/log/fabricmanager.log")
    if unhealthy:
        message = "the NVSwitch fabric is not healthy"
        seen = by_text(unhealthy, known)
        yield failed(
            node,
            message,
            seen,
            "healthy",
            remedy,
        )
    if slower:
        message = "the NVSwitch fabric has less than its full bandwidth"
        seen = by_text(slower, known)
        yield failed(
            node,
            message,
            seen,
            "healthy",
            remedy,
            severity="warning",
        )
    if unreadable:
        first = unreadable[0]
        yield unknown(node, first.detail, first.reason, wanted=SET_UP)


def _judge_healthy_fabric(node: Node, state: FabricState) -> Outcome:
    """Judge the fabric manager where the fabric of all GPUs is set up."""
    if state.service is None or _is_active(state):
        seen = _with_service(SET_UP, state)
        return passed(node, "the NVSwitch fabric is set up", seen, SET_UP)
    message = (
        "the fabric is set up, and its manager has stopped: after the next reset it will not be"
    )
    remedy = _start_manager(state)
    return failed(
        node,
        message,
        _service_text(state),
        "active",
        remedy,
        severity="warning",
    )


def _fabric_text(fabric: Fabric) -> str:
    if not fabric.status:
        return fabric.state
    return f"{fabric.state}, status {fabric.status}"


def _start_manager(state: FabricState) -> Remedy:
    """Return a command that installs the fabric manager of the driver's version, or starts it."""
    version = state.service.version if state.service else None
    if version and state.driver and version != state.driver:
        return _install_manager(state.driver, version)
    return shell_line(
        "systemctl enable --now nvidia-fabricmanager; less /var/log/fabricmanager.log"
    )


def _install_manager(driver: str, version: str) -> Remedy:
    """Return a command that installs the fabric manager of a driver, or finds it.

    The package has the branch in its name; from 580 on some repositories have it without.
    """
    branch, _, _ = driver.partition(".")
    package = f"nvidia-fabricmanager-{branch}"
    if branch.isdecimal() and int(branch) >= WITHOUT_BRANCH:
        return shell_line(
            "apt-cache madison nvidia-fabricmanager {package} | grep -F {driver}"
            "   # install the one that is listed: it is {version}, the driver is not",
            package=package,
            driver=driver,
            version=version,
        )
    return shell_line(
        "apt-get install {package}   # it is {version}, the driver is not",
        package=f"{package}={driver}-1",
        version=version,
    )


# ---------------------------------------------------------------- proofs


def _with_other_vbios(readings: Readings) -> Readings:
    board = readings[3]
    versions = {
        **board.versions,
        "VBIOS": "96.00.30.00.01",
    }
    return {
        **readings,
        3: replace(board, versions=versions),
    }


def _with_fabric_not_started(state: FabricState) -> FabricState:
    fabric = {
        **(state.fabric or {}),
        3: Fabric("not started", 0, ()),
    }
    return replace(state, fabric=fabric)


MODULE = Check(
    "nv.module_vs_lib",
    facts=("nv.library",),
    judge=each(module_vs_lib, "nv.library"),
    severity="error",
    title="The driver's kernel module and its libraries",
    why="An update replaced the libraries under a running module («Driver/library version "
    "mismatch»): nothing that starts from now on gets a GPU, while what runs goes on.",
    how="NVML's code 18, and the version in the name that libnvidia-ml.so.1 leads to against "
    "/proc/driver/nvidia/version.",
    remedy=noted(RELOAD, "then apt-mark hold the driver's packages"),
    proof=Proof("nv.library", lambda library: replace(library, refused=True, works=False)),
)
FIRMWARE = Check(
    "fw.gpu",
    facts=("gpu.firmware",),
    judge=firmware,
    severity="warning",
    follows=("nv.driver",),
    title="Firmware of the GPUs",
    why="Boards that came back from repair bring other firmware, with other power and clock "
    "tables: one slow GPU.",
    how="NVML's VBIOS and InfoROM versions, equal on all boards of one part number in the job, "
    "and the GSP's in one node.",
    remedy=sentence("flash the odd boards with the maker's update"),
    proof=Proof("gpu.firmware", _with_other_vbios),
)
FABRIC_MANAGER = Check(
    "gpu.fabricmanager",
    facts=("gpu.fabric_state",),
    judge=each(fabric_manager, "gpu.fabric_state"),
    severity="error",
    grade="a warning where only bandwidth is lost, or the manager stopped when it was set up",
    title="The NVSwitch fabric and its manager",
    why="On machines with NVSwitches CUDA does not start («system not yet initialized», error "
    "802) until the fabric manager has set up the fabric, and it runs only in the driver's own "
    "version.",
    how="NVML's fabric state of each GPU (Hopper and later): completed, without an error, "
    "healthy (a warning if its health says that only bandwidth or capacity is lost); and where "
    "NVSwitches are on the bus, systemd's word for nvidia-fabricmanager. Skipped on other "
    "machines.",
    remedy=shell_line("systemctl enable --now nvidia-fabricmanager"),
    proof=Proof("gpu.fabric_state", _with_fabric_not_started),
)
