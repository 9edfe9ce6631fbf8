"""A kernel of the distribution, at least of a version: installed, and run from the next boot on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from clusterprep.changes.boot_default import (
    DEFAULT_READS,
    BootDefault,
    parse_default,
    set_default,
    warning,
)
from clusterprep.changes.package_managers import (
    PackageRequest,
    Packages,
    move_lines,
    package_managers,
)
from clusterprep.changes.package_managers.apt import install_command
from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.checks.system import FLOOR
from clusterprep.facts import Fact, dnf, zypper
from clusterprep.facts.apt import MISSING, SIMULATE, parse_outlook, simulated
from clusterprep.facts.host import KERNEL
from clusterprep.facts.kernel import INSTALLED, newest_waiting
from clusterprep.facts.package_manager import NOT_MINE
from clusterprep.facts.rpm import parts_of, without_epoch
from clusterprep.model import Absent, Inventory, Json
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.model.packages import Simulation
from clusterprep.model.versions import kernel_conditions, kernel_satisfies, leading_numbers

OTHERS = "no package manager is here that kernels are installed by: apt, dnf 4 and zypper are"
_PACKAGE_STATUS = r"'${db:Status-Status} ${Package}\n'"
# For sed: Ubuntu's NVIDIA modules for the flavour, with the shell's $1 as the end of their names.
_MODULES = r'"s/^(linux-modules-nvidia-[0-9]+(-server)?(-open)?-$flavour)(-hwe-[0-9.]+)?\$/\1$1/p"'
# Simulate the packages that bring a kernel of the running flavour, nearest first. With them comes
# what the next boot needs for its GPUs: headers where modules are built for each kernel (dkms; on
# Ubuntu they come anyway), or Ubuntu's own NVIDIA modules.
CANDIDATES = (
    r"""
candidate() {
    printf '== candidate %s\n' "$*"
    look --no-remove install "$@"
    echo
}
if [ $# -gt 0 ]; then candidate "$@"; exit 0; fi
flavour=$(sed -nE 's/^[^-]*(-[0-9][^-]*)*-//p' /proc/sys/kernel/osrelease)
[ -r /etc/os-release ] && . /etc/os-release
have() { dpkg-query -W -f """
    + _PACKAGE_STATUS
    + r""" "$@" 2>/dev/null | sed -n 's/^installed //p'; }
modules() {
    have 'linux-modules-nvidia-*' |
        sed -nE """
    + _MODULES
    + r""" | sort -u
}
case "$ID" in
ubuntu)
    candidate "linux-$flavour" $(modules '')
    candidate "linux-$flavour-hwe-$VERSION_ID" $(modules "-hwe-$VERSION_ID") ;;
debian)
    [ -z "$(have dkms)" ] || headers=linux-headers-$flavour
    from=$VERSION_CODENAME-backports
    candidate "linux-image-$flavour" $headers
    candidate "linux-image-$flavour/$from" ${headers:+"$headers/$from"} ;;
*)
    command -v apt-get >/dev/null || exit 127 ;;
esac
"""
)
_RPM_PARSERS = {"dnf": dnf.parse_answer, "zypper": zypper.parse_answer}
DEFAULT = Fact("kernel:default", lambda node, _: DEFAULT_READS, parse_default, lenient=True)
_IMAGE = re.compile(r"linux-image-(?:unsigned-)?(\d+\.\d+[^:]*)(?::.*)?")


class KernelCandidate(Struct, frozen=True):
    """Packages that bring a kernel, and what their manager would do for them."""

    names: tuple[str, ...]
    outlook: Simulation
    manager: str = "apt"

    @property
    def release(self) -> str | None:
        """Return the release of the kernel that would come, as in `uname -r`; None for none."""
        if self.manager != "apt":
            return release_of_rpm(self.manager, self.names[0], self.outlook)
        for move in self.outlook.moves:
            match = _IMAGE.fullmatch(move.name)
            if match and move.before is None:
                return match[1]
        return None

    def __str__(self) -> str:
        if self.release:
            result = f"kernel {self.release}"
        else:
            result = "; ".join(self.outlook.failed) or "nothing newer"
        return f"{self.names[0]}: {result}"


def parse_candidates(text: str) -> tuple[KernelCandidate, ...]:
    """Parse simulations, each below a line «== candidate NAMES»."""
    candidates = []
    sections = re.split(r"^== candidate ", text, flags=re.MULTILINE)
    for section in sections[1:]:
        names, _, output = section.partition("\n")
        candidates.append(KernelCandidate(tuple(names.split()), parse_outlook(output)))
    return tuple(candidates)


def release_of_rpm(manager: str, name: str, outlook: Simulation) -> str | None:
    """Return the release of the kernel that a package of rpm would bring, None for none.

    «kernel-core 5.14.0-427.el9 x86_64» is 5.14.0-427.el9.x86_64, with «+rt» for kernel-rt. SUSE
    counts builds behind the release: «kernel-default 6.4.0-150600.23.25.1» is
    6.4.0-150600.23.25-default.
    """
    versions = {}
    for move in outlook.moves:
        if move.before is None and move.after is not None:
            versions[move.name] = (without_epoch(move.after), move.architecture)
    version, architecture = versions.get(f"{name}-core", versions.get(name, ("", "")))
    if not version:
        return None
    flavour = name.removeprefix("kernel-") if name.startswith("kernel-") else ""
    if manager == "zypper":
        upstream, _, build = version.partition("-")
        counted = build.rpartition(".")[0] or build
        return f"{upstream}-{counted}-{flavour}"
    release = f"{version}.{architecture}"
    return f"{release}+{flavour}" if flavour else release


def parse_answer(answer: Json) -> tuple[KernelCandidate, ...] | Absent | str:
    """Return the candidates of apt, or MISSING where there is no apt."""
    if isinstance(answer, Absent):
        return answer
    candidates = parse_candidates(str(answer["out"]))
    without_apt = any(MISSING in candidate.outlook.failed for candidate in candidates)
    if without_apt or answer["code"] == 127:
        return MISSING
    return candidates


def parse_answers(of_apt: Json, *of_rpm: Json) -> tuple[KernelCandidate, ...] | Absent | str:
    """Return the candidates of the manager in charge, or MISSING where none is known."""
    for manager, answer in zip(_RPM_PARSERS, of_rpm, strict=True):
        if isinstance(answer, Absent):
            return answer
        if answer["code"] != NOT_MINE:
            return _parse_rpm(manager, int(answer["code"]), str(answer["out"]))
    return parse_answer(of_apt)


def _parse_rpm(manager: str, code: int, text: str) -> tuple[KernelCandidate, ...] | Absent:
    """Return the one candidate; none where the running kernel is of no package."""
    if code == 0 and not text.strip():
        return ()
    parsed = _RPM_PARSERS[manager](code, text)
    if isinstance(parsed, Absent):
        return parsed
    _, outlook = parsed
    name = manager if code else parts_of(text)["kernel"][0]
    return (KernelCandidate((name,), outlook, manager),)


def package_names(params: Params) -> tuple[str, ...]:
    if "package" not in params:
        return ()
    return (str(params["package"]),)


def fact_name(params: Params) -> str:
    names = " ".join(package_names(params))
    return f"kernel:{names or 'candidates'}"


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    names = package_names(params)
    of_apt = simulated(SIMULATE + CANDIDATES, *names)
    reads = (of_apt, dnf.kernel_simulated(names), zypper.kernel_simulated(names))
    candidates = Fact(fact_name(params), lambda node, _: reads, parse_answers, lenient=True)
    return (KERNEL, INSTALLED, candidates, DEFAULT)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    try:
        kernel_conditions(f">={params.get('at_least', '1')}")
    except ValueError:
        yield "at_least", f"expected a version such as 5.15; seen '{params['at_least']}'"


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("kernel", ""),)


def wanted_version(params: Params, context: PlanContext) -> str:
    """Return the condition of the step, else of the inventory, else of the check."""
    if "at_least" in params:
        return f">={params['at_least']}"
    return context.node.require.get("kernel.version", FLOOR)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    wanted = wanted_version(params, context)
    running = str(context.facts[KERNEL.name])
    if kernel_satisfies(running, wanted):
        yield _step_action(context, f"{running} runs")
        return
    waiting = _waiting_kernel(params, running, context.facts[INSTALLED.name], wanted)
    if waiting:
        operations, lines = _next_boot(context, waiting)
        text = f"{waiting} is installed, and runs from the next boot on"
        yield _step_action(context, "\n".join((text, *lines)), *operations)
        return
    candidates = context.facts[fact_name(params)]
    if candidates == MISSING:
        raise NoPlan("cannot", f"{running} runs, {wanted} is wanted; {OTHERS}")
    chosen = _nearest(candidates, wanted)
    if chosen is None:
        raise NoPlan("cannot", refusal(running, wanted, candidates))
    yield _installation(context, chosen)


def _installation(context: PlanContext, chosen: KernelCandidate) -> StepAction:
    # A name may be followed by the archive that it is from, such as bookworm-backports.
    names = [name.partition("/")[0] for name in chosen.names]
    outlook = chosen.outlook
    lines = move_lines(outlook, names)
    lines.append(f"{chosen.release} runs from the next boot on")
    if chosen.manager == "apt":
        run = install_command(names, outlook, {}, ("--no-remove",))
        return _step_action(context, "\n".join(lines), run)
    removed = [move.name for move in outlook.moves if move.after is None]
    if removed:
        cure = "remove a kernel that is not needed, or raise installonly_limit of dnf.conf"
        raise NoPlan("cannot", f"{chosen.manager} would remove {', '.join(removed)}: {cure}")
    request = PackageRequest(tuple(names), "latest")
    runs = package_managers()[chosen.manager].install(request, names, Packages({}, outlook))
    operations, more_lines = _next_boot(context, str(chosen.release))
    lines.extend(more_lines)
    return _step_action(context, "\n".join(lines), *runs, *operations)


def _next_boot(
    context: PlanContext, release: str
) -> tuple[tuple[RunCommand, ...], tuple[str, ...]]:
    """Return how this kernel becomes that of the next boot, and lines about it for people."""
    default: BootDefault = context.facts[DEFAULT.name]
    operations = set_default(default, release)
    text = warning(default, release)
    return operations, (text,) if text else ()


def _waiting_kernel(
    params: Params, running: str, installed: tuple[str, ...], wanted: str
) -> str | None:
    """Return the newest installed kernel that is enough, None if there is none.

    It has the running kernel's flavour, unless the step names a package.
    """
    if not package_names(params) and running in installed:
        newest = newest_waiting(running, installed)
        installed = (newest,) if newest else ()
    enough = [release for release in installed if kernel_satisfies(release, wanted)]
    return max(enough, key=leading_numbers, default=None)


def _nearest(candidates: tuple[KernelCandidate, ...], wanted: str) -> KernelCandidate | None:
    for candidate in candidates:
        if candidate.release and kernel_satisfies(candidate.release, wanted):
            return candidate
    return None


def _step_action(context: PlanContext, diff: str, *operations: RunCommand) -> StepAction:
    return StepAction(
        context.node.name,
        "kernel",
        "the kernel",
        "update",
        operations,
        diff,
    )


def refusal(running: str, wanted: str, candidates: tuple[KernelCandidate, ...]) -> str:
    """Return what the distribution has instead, and what helps."""
    offered = ". ".join(map(str, candidates))
    if not offered:
        offered = "the kernel that runs is none of Debian's or Ubuntu's, and of no package of rpm"
    return (
        f"{running} runs, {wanted} is wanted, and the distribution has none. {offered}. "
        "apt-get update (dnf makecache, zypper refresh) on the node may bring newer ones; "
        "`package:` of the step names another package"
    )


RESOURCE = StepResource("kernel", plan, facts=facts, parts=parts, wrong=wrong, texts=True)
