"""Dataclasses that are built when their first value is made.

To build one takes the interpreter 0.6 to 0.9 ms, because it writes and compiles six methods. A
command imports two hundred and makes values of sixty, which was a quarter of its start-up time.

`dataclasses` still makes the class, except for the constructor: that is put in last, because other
threads may make a value meanwhile. To write it takes the one `exec` on the controller.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

# The attributes by which `dataclasses` knows its own classes.
_FIELDS = "__dataclass_fields__"
_PARAMS = "__dataclass_params__"
_MAKING = threading.RLock()


def _postponed(*, frozen: bool) -> Any:
    """Return a decorator like `dataclasses.dataclass` that builds the class at its first value.

    `dataclasses.fields` and the like build it too. Until then the class has only a constructor,
    which is enough: every other method of a dataclass is called on a value. Values cannot be
    unpickled in another process, because that does not call the constructor. `slots=True` makes
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
    """Stands where `dataclasses` looks for the fields of a class, and builds the class then."""

    def __init__(self, cls: Any, frozen: bool, name: str) -> None:
        self.cls, self.frozen, self.name = cls, frozen, name

    def __get__(self, instance: object, owner: type) -> Any:
        _make(self.cls, self.frozen)
        return getattr(self.cls, self.name)


def _make(cls: Any, frozen: bool) -> None:
    """Build a class, and put its constructor in last.

    Another thread that makes a value meanwhile waits in the constructor that was there before.
    """
    with _MAKING:
        if isinstance(vars(cls)[_FIELDS], _Later):
            before = dict(vars(cls))
            try:
                made = dataclasses.dataclass(frozen=frozen, init=False)(cls)
                made.__init__ = _constructor(made)
            except BaseException:
                # Without memory, say. A class built in part could not be used or built again.
                _restore(cls, before)
                raise


def _restore(cls: Any, before: dict[str, Any]) -> None:
    for name in set(vars(cls)) - set(before):
        delattr(cls, name)
    for name, value in before.items():
        if vars(cls).get(name) is not value:
            setattr(cls, name, value)


def _constructor(cls: Any) -> Any:
    """Return an __init__ with a parameter for each field, like the one that `dataclasses` writes.

    `dataclasses` itself writes none for a class that has one. The fields `name: str` and
    `tags: list[str] = field(default_factory=list)` give:

        def __init__(self, name, tags=__unset__):
         __put__(self, 'name', name)
         __put__(self, 'tags', _tags() if tags is __unset__ else tags)
         pass
    """
    # What the source refers to, by names that no field has: a frozen class refuses assignments, so
    # `__put__` goes around that.
    names: dict[str, Any] = {
        "__put__": object.__setattr__,
        "__unset__": dataclasses.MISSING,
    }
    parameters, lines = ["self"], []
    for field in dataclasses.fields(cls):
        default = f"_{field.name}"
        has_factory = field.default_factory is not dataclasses.MISSING
        has_default = has_factory or field.default is not dataclasses.MISSING
        names[default] = field.default_factory if has_factory else field.default
        made = f"{default}()" if has_factory else default
        if not field.init:
            lines.append(f" __put__(self, {field.name!r}, {made})")
            continue
        value = field.name
        if has_factory:
            value = f"{made} if {field.name} is __unset__ else {field.name}"
        lines.append(f" __put__(self, {field.name!r}, {value})")
        parameter = field.name
        if has_default:
            parameter += "=__unset__" if has_factory else f"={default}"
        parameters.append(parameter)
    lines.append(" self.__post_init__()" if hasattr(cls, "__post_init__") else " pass")
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines)
    exec(source, names)  # noqa: S102 - made of the names of our own classes
    return names["__init__"]


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _postponed

__all__ = ["dataclass"]
