"""What a package manager would do: the packages that change, and what their sources have."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Package(Struct, frozen=True):
    """A package as dpkg has it: `status` such as installed or config-files.

    Other managers know installed and not-installed only. `held` is kept at its version.
    """

    status: str
    version: str
    held: bool = False

    @property
    def there(self) -> bool:
        return self.status in ("installed", "triggers-pending", "triggers-awaited")

    @property
    def gone(self) -> bool:
        return self.status in ("not-installed", "config-files")


GONE = Package("not-installed", "")


class PackageChange(Struct, frozen=True):
    """The change of one package from a version to another; None means not installed.

    `architecture` is that of a package of rpm; those of apt have it in their names. Where the
    version before was of another one, `architecture_before` names it.
    """

    name: str
    before: str | None
    after: str | None
    architecture: str = ""
    architecture_before: str = ""

    def __str__(self) -> str:
        if self.before is None:
            return f"install {self.name} {self.after}"
        if self.after is None:
            return f"remove {self.name} {self.before}"
        return f"change {self.name} {self.before} to {self.after}"


class Simulation(Struct, frozen=True):
    """What a package manager would do; `failed` has its reasons to refuse.

    `states` and `versions` cover every package that would change. dnf has streams of modules, as
    «perl:5.26»: `enabled` come with the packages, `hidden` are packages that a module hides, and
    `streams` have one of these.
    """

    moves: tuple[PackageChange, ...] = ()
    failed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()  # packages on hold that would change
    states: Mapping[str, Package] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what the sources have
    enabled: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    def state(self, name: str) -> Package:
        return self.states.get(name, GONE)

    def returns(self, move: PackageChange) -> bool:
        """Return whether the version before the move can be installed again."""
        if move.before is None:
            return True
        offered = self.versions.get(move.name, ())
        return move.before in offered

    def new(self, name: str) -> str | None:
        """Return the version that a package would get, None where it would not change."""
        for move in self.moves:
            if without_architecture(move.name) == without_architecture(name):
                return move.after
        return None


def without_architecture(name: str) -> str:
    """Return a package's name without its architecture."""
    return name.partition(":")[0]
