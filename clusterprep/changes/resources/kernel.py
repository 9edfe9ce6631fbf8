"""The kernel of the distribution, at least of a version: installed beside the others, and run from the next boot on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.changes.resources.package import OTHERS, in_order, installation, way_back
from clusterprep.checks.system import FLOOR
from clusterprep.facts import Fact
from clusterprep.facts.apt import MISSING, SIMULATE, Simulation, parse_outlook, simulated
from clusterprep.facts.host import KERNEL
from clusterprep.facts.kernel import INSTALLED, newest_waiting
from clusterprep.model import Absent, Inventory, Json
from clusterprep.model.operations import StepAction
from clusterprep.model.versions import kernel_conditions, kernel_satisfies, leading_numbers

# What brings a kernel of the flavour that runs, nearest first. What the next boot needs for its GPUs comes along:
# headers where modules are built for each kernel (dkms; on Ubuntu they come anyway), or Ubuntu's own NVIDIA modules.
CANDIDATES = r"""
candidate() {
    printf '== candidate %s\n' "$*"
    look --no-remove install "$@"
    echo
}
if [ $# -gt 0 ]; then candidate "$@"; exit 0; fi
flavour=$(sed -nE 's/^[^-]*(-[0-9][^-]*)*-//p' /proc/sys/kernel/osrelease)
[ -r /etc/os-release ] && . /etc/os-release
have() { dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p'; }
modules() {
    have 'linux-modules-nvidia-*' |
        sed -nE "s/^(linux-modules-nvidia-[0-9]+(-server)?(-open)?-$flavour)(-hwe-[0-9.]+)?\$/\1$1/p" | sort -u
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
_IMAGE = re.compile(r"linux-image-(?:unsigned-)?(\d+\.\d+[^:]*)(?::.*)?")


@dataclass(frozen=True)
class KernelCandidate:
    """Packages that bring a kernel, and what apt would do for them."""

    names: tuple[str, ...]
    outlook: Simulation

    @property
    def release(self) -> str | None:
        """The kernel that would come, as `uname -r` will have it; None where none would."""
        found = [
            match[1]
            for move in self.outlook.moves
            if move.before is None and (match := _IMAGE.fullmatch(move.name))
        ]
        return found[0] if found else None

    def __str__(self) -> str:
        said = (
            f"kernel {self.release}"
            if self.release
            else "; ".join(self.outlook.failed) or "nothing newer"
        )
        return f"{self.names[0]}: {said}"


def parse_candidates(text: str) -> tuple[KernelCandidate, ...]:
    """One simulation after the other, each behind «== candidate NAMES»."""
    found = []
    for part in re.split(r"^== candidate ", text, flags=re.MULTILINE)[1:]:
        names, _, said = part.partition("\n")
        found.append(KernelCandidate(tuple(names.split()), parse_outlook(said)))
    return tuple(found)


def looked(answer: Json) -> tuple[KernelCandidate, ...] | Absent | str:
    """The candidates, or MISSING."""
    if isinstance(answer, Absent):
        return answer
    found = parse_candidates(str(answer["out"]))
    return (
        MISSING
        if answer["code"] == 127 or any(MISSING in one.outlook.failed for one in found)
        else found
    )


def given(params: Params) -> tuple[str, ...]:
    return (str(params["package"]),) if "package" in params else ()


def fact_name(params: Params) -> str:
    return "kernel:" + (" ".join(given(params)) or "candidates")


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    read = simulated(SIMULATE + CANDIDATES, *given(params))
    return (
        KERNEL,
        INSTALLED,
        Fact(fact_name(params), lambda node, _: (read,), looked, lenient=True),
    )


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    try:
        kernel_conditions(f">={params.get('at_least', '1')}")
    except ValueError:
        yield "at_least", f"expected a version such as 5.15; seen '{params['at_least']}'"


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("kernel", ""),)


def conditions(params: Params, known: PlanContext) -> str:
    """What is wanted: by the step, else by the inventory, else what the check asks for."""
    if "at_least" in params:
        return f">={params['at_least']}"
    return known.node.require.get("kernel.version", FLOOR)


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    wanted, running = conditions(params, known), str(known.facts[KERNEL.name])
    if kernel_satisfies(running, wanted):
        yield _deed(known, f"{running} runs")
        return
    if there := _there(params, running, known.facts[INSTALLED.name], wanted):
        yield _deed(known, f"{there} is installed, and runs from the next boot on")
        return
    found = known.facts[fact_name(params)]
    if found == MISSING:
        raise NoPlan("cannot", f"{running} runs, {wanted} is wanted; {OTHERS}")
    chosen = next(
        (one for one in found if one.release and kernel_satisfies(one.release, wanted)), None
    )
    if chosen is None:
        raise NoPlan("cannot", refusal(running, wanted, found))
    names = tuple(name.split("/")[0] for name in chosen.names)
    runs = tuple(installation(names, chosen.outlook, {}, ("--no-remove",)))
    words = [
        *map(str, in_order(chosen.outlook.moves, names)),
        *way_back(chosen.outlook.moves, chosen.outlook),
    ]
    words.append(f"{chosen.release} runs from the next boot on")
    yield StepAction(known.node.name, "kernel", "the kernel", "update", runs, "\n".join(words))


def _there(params: Params, running: str, releases: tuple[str, ...], wanted: str) -> str | None:
    """The newest of the installed kernels that is enough: of the running one's flavour, unless another is asked for."""
    if not given(params) and running in releases:
        newest = newest_waiting(running, releases)
        releases = (newest,) if newest else ()
    enough = [release for release in releases if kernel_satisfies(release, wanted)]
    return max(enough, key=leading_numbers) if enough else None


def _deed(known: PlanContext, words: str) -> StepAction:
    return StepAction(known.node.name, "kernel", "the kernel", "update", (), words)


def refusal(running: str, wanted: str, found: tuple[KernelCandidate, ...]) -> str:
    """What the distribution has instead, and what helps."""
    has = ". ".join(map(str, found)) or "the kernel that runs is none of Debian's or Ubuntu's"
    cure = "apt-get update on the node may bring newer ones; `package:` of the step names another package"
    return f"{running} runs, {wanted} is wanted, and the distribution has none. {has}. {cure}"


RESOURCE = StepResource("kernel", plan, facts=facts, parts=parts, wrong=wrong, texts=True)
