"""What all faults have in common: they are there once made, and there is a way back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType


class Fault:
    """A fault that was made, and the way back."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo: Callable[[], object] | None = undo

    def undo(self) -> None:
        """Take the fault back; a second time does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def together(*faults: Fault) -> Fault:
    """Several faults as one, taken back in the opposite order."""
    with contextlib.ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault)
        return Fault(stack.pop_all().close)
