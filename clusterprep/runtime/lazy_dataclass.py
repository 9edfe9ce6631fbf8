"""Frozen dataclasses that are made when the first value of them is.

Making one takes the interpreter 0.6 to 0.9 ms, for it writes and compiles six methods. A command imports two hundred
and has values of sixty, which was a quarter of the time until it began to work.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

_FIELDS, _PARAMS = (
    "__dataclass_fields__",
    "__dataclass_params__",
)  # by which `dataclasses` knows its own
_MAKING = threading.RLock()


def _postponed(*, frozen: bool) -> Any:
    """As `dataclasses.dataclass`, which makes the class at its first value, or at the first question about its fields.

    Until then it has a constructor and nothing else. Nobody misses more, as all the rest is asked of values; but one
    that comes from another process (pickle) comes without a constructor, so that is not for these. `slots=True` makes
    another class, and is left to `dataclasses`.
    """

    def postpone(cls: Any) -> Any:
        def construct(self: Any, *values: Any, **named: Any) -> None:
            _make(cls, frozen)
            cls.__init__(self, *values, **named)

        cls.__init__ = construct
        for name in (_FIELDS, _PARAMS):
            setattr(cls, name, _Later(cls, frozen, name))
        return cls

    return postpone


class _Later:
    """What stands in a class where `dataclasses` looks for its fields: to look makes them."""

    def __init__(self, cls: Any, frozen: bool, name: str) -> None:
        self.cls, self.frozen, self.name = cls, frozen, name

    def __get__(self, instance: object, owner: type) -> Any:
        _make(self.cls, self.frozen)
        return getattr(self.cls, self.name)


def _make(cls: Any, frozen: bool) -> None:
    """Make it all and put the constructor in last: who comes meanwhile, in another thread, waits in the old one."""
    with _MAKING:
        if isinstance(vars(cls)[_FIELDS], _Later):
            before = dict(vars(cls))
            try:
                made = dataclasses.dataclass(frozen=frozen, init=False)(cls)
                made.__init__ = _constructor(made)
            except (
                BaseException
            ):  # a signal: one that is made in part could neither be used nor made anew
                _restore(cls, before)
                raise


def _restore(cls: Any, before: dict[str, Any]) -> None:
    for name in [name for name in vars(cls) if name not in before]:
        delattr(cls, name)
    for name, value in before.items():
        if vars(cls).get(name) is not value:
            setattr(cls, name, value)


def _constructor(cls: Any) -> Any:
    """A parameter for each field, as `dataclasses` would write it, which writes none where a class has one."""
    known: dict[str, Any] = {"put": object.__setattr__, "unset": dataclasses.MISSING}
    words, lines = ["self"], []
    for field in dataclasses.fields(cls):
        name, default = field.name, f"_{field.name}"
        fresh = field.default_factory is not dataclasses.MISSING
        known[default] = field.default_factory if fresh else field.default
        value = name if field.init else default
        if fresh:
            value = f"{default}() if {name} is unset else {name}" if field.init else f"{default}()"
        if field.init:
            given = fresh or field.default is not dataclasses.MISSING
            words.append(f"{name}={'unset' if fresh else default}" if given else name)
        lines.append(f" put(self, {name!r}, {value})")
    lines.append(" self.__post_init__()" if hasattr(cls, "__post_init__") else " pass")
    exec(f"def __init__({', '.join(words)}):\n" + "\n".join(lines), known)  # noqa: S102 - names of our own classes
    return known["__init__"]


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _postponed

__all__ = ["dataclass"]
