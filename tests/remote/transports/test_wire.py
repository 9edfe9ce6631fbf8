"""The end of a wire while other threads use its stream."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from clusterprep.remote.transports.wire import Wire
from tests.support.patience import eventually

HOURS = 36_000.0  # seconds; a deadline that no test lives to see


class Stream:
    """A stream whose recv and send wait for shutdown, and leave only when the test lets them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.entered = threading.Event()
        self.shut = threading.Event()
        self.may_leave = threading.Event()

    def recv(self, size: int, /) -> bytes:
        self._use("recv")
        return b""

    def send(self, data: bytes, /) -> int:
        self._use("send")
        raise BrokenPipeError(32, "Broken pipe")

    def settimeout(self, seconds: float | None, /) -> None:
        pass

    def shutdown(self, how: int, /) -> None:
        self.calls.append("shutdown")
        self.shut.set()

    def close(self) -> None:
        self.calls.append("close")

    def _use(self, call: str) -> None:
        self.entered.set()
        self.shut.wait()
        self.may_leave.wait()
        self.calls.append(call)


def wire_of(stream: Stream) -> Wire:
    return Wire(stream, HOURS)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    def work() -> None:
        with pytest.raises(EOFError):
            call()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("call", ["recv", "send"])
def test_a_stream_is_not_freed_while_a_thread_is_inside_it(call: str) -> None:
    """A descriptor that is free is the next connection's, and poll(2) would wait for that one."""
    stream = Stream()
    wire = wire_of(stream)
    calls: dict[str, Callable[[], object]] = {
        "recv": lambda: wire.recv(1),
        "send": lambda: wire.send(b"x"),
    }
    thread = in_thread(calls[call])
    assert stream.entered.wait(30)
    wire.close()
    assert stream.calls == ["shutdown"]
    stream.may_leave.set()
    thread.join(30)
    assert stream.calls == ["shutdown", call, "close"]


def test_the_last_of_several_threads_frees_it() -> None:
    stream = Stream()
    wire = wire_of(stream)
    reader = in_thread(lambda: wire.recv(1))
    writer = in_thread(lambda: wire.send(b"x"))
    assert eventually(lambda: wire._users._users == 2)
    wire.close()
    stream.may_leave.set()
    reader.join(30)
    writer.join(30)
    assert stream.calls[-1] == "close"
    assert stream.calls.count("close") == 1


def test_a_stream_that_nobody_uses_is_freed_at_once_and_once() -> None:
    stream = Stream()
    wire = wire_of(stream)
    wire.close()
    wire.close()
    assert stream.calls == ["shutdown", "close"]


@pytest.mark.parametrize("call", [lambda wire: wire.recv(1), lambda wire: wire.send(b"x")])
def test_a_closed_stream_is_not_touched(call: Callable[[Wire], object]) -> None:
    stream = Stream()
    wire = wire_of(stream)
    wire.close()
    with pytest.raises(EOFError):
        call(wire)
    assert stream.calls == ["shutdown", "close"]
