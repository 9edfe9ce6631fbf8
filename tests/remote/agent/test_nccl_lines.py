"""What the agent keeps of a rank's output.

NCCL's connections once each, and the last of all else.
"""

from __future__ import annotations

import itertools
import random

import pytest

from clusterprep.remote.agent.nccl_lines import LONGEST, MOST, TAIL, Output
from tests.jobs.verify import nccl_logs
from tests.remote.agent.test_ranks import Heard, agent
from tests.support import real_nccl
from tests.support.operations import operations

__all__ = ["agent"]  # a fixture

HEAD = "n1:1:2 [0] NCCL INFO "
TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 3, in <module>
    work()
RuntimeError: boom
"""


def heard(text: str, *cuts: int) -> Output:
    """Told in pieces that end at `cuts`."""
    output, data = Output(), text.encode()
    for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        output.hear(data[start:end])
    output.hear(b"")  # the end of the pipe
    output.end()
    return output


def test_nccls_words_are_kept_apart_without_their_heads() -> None:
    output = heard(nccl_logs.ROCE)
    assert output.lines == [
        "Bootstrap : Using enp24s0np0:10.10.10.1<0>",
        "NCCL_IB_HCA set to mlx5_4",
        "NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>",
        "Using network IB",
    ]
    assert output.tail == b"NCCL version 2.18.5+cuda12.0\n"


def test_channels_that_differ_in_their_number_are_one() -> None:
    assert heard(nccl_logs.GPUDIRECT).lines == [
        "Channel 00/0 : 1[1] -> 3[1] [receive] via NET/IB/2/GDRDMA",
        "Channel 01/0 : 3[1] -> 1[1] [send] via NET/IB/2/GDRDMA",
        "Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM",
    ]


def test_a_warning_stays_where_errors_are_looked_for() -> None:
    warning = "\nn1:1:2 [0] misc/socket.cc:52 NCCL WARN Call to connect failed\n"
    output = heard(f"{HEAD}Channel 00/02 :    0   1\n{warning}{HEAD}misc/socket.cc:80 -> 6\n")
    assert (output.tail.decode(), output.lines) == (warning, [])


@pytest.mark.parametrize("seed", range(20))
def test_pieces_may_end_anywhere(seed: int) -> None:
    text = f"{nccl_logs.ROCE}{TRACEBACK}{nccl_logs.SOCKETS}last words"
    cuts = random.Random(seed).sample(range(len(text)), 40)
    whole, output = heard(text), heard(text, *cuts)
    assert (output.lines, output.tail) == (whole.lines, whole.tail)
    assert output.tail.decode() == f"NCCL version 2.18.5+cuda12.0\n{TRACEBACK}last words"


def test_a_line_within_a_line_leaves_the_other_whole() -> None:
    """Python writes a traceback to stderr in pieces, and threads of NCCL write in between."""
    line = f"{HEAD}Using network IB\n"
    at = TRACEBACK.index("/home")
    output = heard(TRACEBACK[:at] + line + TRACEBACK[at:] + f"half a line: {HEAD}Using netw")
    assert output.tail.decode() == f"{TRACEBACK}half a line: "
    assert output.lines == ["Using network IB"]


def test_times_in_front_of_lines_go_with_them() -> None:
    output = heard(f"[2025-11-21 10:00:00] {HEAD}Using network IB\n" * 3)
    assert (output.lines, output.tail) == (["Using network IB"], b"")


def test_what_has_no_room_is_counted_and_needs_no_memory() -> None:
    output = heard(
        "".join(f"{HEAD}Channel 00/0 : 0[0] -> {n}[0] via P2P/IPC\n" for n in range(20_000))
    )
    kept = sum(len(line) + 1 for line in output.lines)
    assert MOST * 0.9 < kept <= MOST
    assert output.cut == 20_000 - len(output.lines)


def test_lines_without_end_need_no_memory() -> None:
    output = Output()
    for _ in range(500):
        output.hear(b"y" * 60_000)
        assert len(output.tail) + len(output._rest) <= TAIL + LONGEST
    output.end()
    assert output.tail == b"y" * TAIL


A_LINE = 20  # operations at most; 10 when this was written


def test_the_work_of_listening_grows_with_the_lines() -> None:
    def work(lines: int) -> int:
        data = "".join(
            f"{HEAD}Channel {n % 32:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM\n" for n in range(lines)
        ).encode()
        output = Output()
        pieces = [data[at : at + (1 << 16)] for at in range(0, len(data), 1 << 16)]
        count = operations(lambda: [output.hear(piece) for piece in pieces])
        assert len(output.lines) == 1
        return count

    few = work(10_000)
    assert few < A_LINE * 10_000
    assert work(20_000) < 2.2 * few


# ---------------------------------------------------------------- in a real agent

# Prints 20,000 lines of a recorded log in odd blocks, as C's stdout does when it is a pipe, and a
# traceback in between.
CHATTER = """
log, crash, count, text = %r, %r, %d, ''
for n in range(count):
    text += crash * (n == count - 50) + log.replace('Channel 0', 'Channel %%d' %% (n %% 10))
text = text.encode()
at, size = 0, 1
while at < len(text):
    at += os.write(1, text[at:at + size])
    size = size * 7 %% 4093 + 1
"""


def chatter(log: str = nccl_logs.SOCKETS, then: str = "os.kill(os.getpid(), 11)") -> str:
    return CHATTER % (log, TRACEBACK, 20_000 // len(log.splitlines()) + 1) + then


def test_a_crash_leaves_its_traceback_and_nccls_words(agent: Heard) -> None:
    agent.start(chatter())
    said, end = agent.one("nccl", 30.0), agent.one("exit", 30.0)
    assert said["lines"] == heard(nccl_logs.SOCKETS).lines
    assert (said["cut"], said["rank"]) == (0, 0)
    assert end["name"] == "SIGSEGV"
    assert end["output"] == TRACEBACK


def test_what_a_rank_said_is_told_when_it_is_stopped(agent: Heard) -> None:
    written = "os.write(fd, json.dumps(dict(what='written', t=time.monotonic())).encode() + b'\\n')"
    agent.start(chatter(then=f"{written}; time.sleep(600)"), count=2)
    for rank in range(2):
        agent.one("written", 30.0, rank=rank)
    agent.ask("stop")
    for rank in range(2):
        assert agent.one("nccl", rank=rank)["lines"] == heard(nccl_logs.SOCKETS).lines
        end = agent.one("exit", rank=rank)
        assert (end["asked"], end["output"]) == (True, TRACEBACK)


def test_a_rank_that_says_nothing_of_nccl_tells_nothing(agent: Heard) -> None:
    agent.start("print('hello', flush=True); os._exit(0)")
    assert agent.one("exit")["output"] == "hello\n"
    assert not [event for event in agent.events if event["what"] == "nccl"]


@pytest.mark.machine
@pytest.mark.parametrize("release", real_nccl.RELEASES)
def test_nvidias_own_library_is_heard_though_its_rank_is_killed(agent: Heard, release: str) -> None:
    """C's stdout is not buffered in a rank: a kill at once after the call takes no line with it."""
    try:
        library = real_nccl.library(release)
    except LookupError as why:
        pytest.skip(str(why))
    call = f"ctypes.CDLL({str(library)!r}).ncclGetUniqueId((ctypes.c_char * 128)())"
    env = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP",
        "NCCL_SOCKET_IFNAME": "=lo",
    }
    agent.start(f"import ctypes; {call}; os.kill(os.getpid(), 9)", ranks=[{"rank": 3, "env": env}])
    said = agent.one("nccl", rank=3)["lines"]
    assert "NCCL_SOCKET_IFNAME set by environment to =lo" in said
    assert [line.replace(" :", ":") for line in said if line.startswith("Boot")] == [
        "Bootstrap: Using lo:127.0.0.1<0>"
    ]
    assert agent.one("exit")["name"] == "SIGKILL"
