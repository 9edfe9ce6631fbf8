"""What each project's messages look like in its sources, and which of its files have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.messages import c_source, other_source, python_source
from tests.support.messages.c_source import Call


@dataclass(frozen=True)
class Project:
    """A program whose messages are known.

    `files` are a regular expression of paths, `not_files` of those left out. `tags` is one with a
    group for each number of the version.
    """

    name: str
    tags: str
    files: str
    not_files: str = r"(^|/)(tests?|unittest|testing|examples?|contrib|docs?)/"
    calls: tuple[Call, ...] = ()
    # Texts of tables, which calls print by number: a pattern with one group for each kind.
    table: str = ""

    def version(self, tag: str) -> tuple[int, ...] | None:
        """Return the numbers of a tag, or None if it is no release that is looked at."""
        match = re.fullmatch(self.tags, tag)
        return tuple(int(group) for group in match.groups()) if match else None

    def wants(self, path: str) -> bool:
        return bool(re.search(self.files, path)) and not re.search(self.not_files, path)

    def texts(self, path: str, source: str) -> Iterator[tuple[str, bool]]:
        """Yield the messages of a file with GAP for formats, and whether each is information."""
        if path.endswith(".py"):
            for text in python_source.messages(source):
                yield c_source.without_formats(text), False
        elif path.endswith(".go"):
            yield from _warnings(other_source.go_reasons(source))
        elif re.search(r"\.(c|h|cc|cpp|cxx|hpp|cu|cuh|inl)$", path):
            for text, is_info in c_source.messages(source, self.calls):
                yield c_source.without_formats(text), is_info
        else:
            yield from _warnings(other_source.shell_messages(source))
        if self.table:
            for match in re.finditer(self.table, source):
                yield c_source.without_formats(next(filter(None, match.groups()))), False


def _warnings(texts: Iterator[str]) -> Iterator[tuple[str, bool]]:
    for text in texts:
        yield text, False


_NUMBERS = r"v?(\d+)\.(\d+)\.(\d+)"
_STREAMS = r"LOG\((?:ERROR|WARNING|FATAL)\)"

PROJECTS = {
    project.name: project
    for project in (
        Project(
            "nccl",
            r"v(2)\.(1[2-9]|2\d|3\d)\.(\d+)-1",
            r"^(src|plugins|ext-net|ext-tuner|ext-profiler)/.*\.(cc|h|cu|c|cuh)$",
            not_files=r"(^|/)(tests?|examples?|docs?)/|windows",
            calls=(
                Call(r"(?:RAS_)?WARN"),
                Call("WARN_INSPECTOR"),
                Call("ERROR"),
                Call("INFO", skip=1, is_info=True),
            ),
            table=r'return "([a-z][^"]{14,})"',
        ),
        Project(
            "aws-ofi-nccl",
            r"v(1)\.(\d+)\.(\d+)(?:-aws)?",
            r"^(src|include)/.*\.(c|h|cpp|cc)$",
            calls=(
                Call("NCCL_OFI_WARN"),
                Call("NCCL_OFI_INFO", skip=1, is_info=True),
                Call("throw [a-z_:]+"),
            ),
        ),
        Project(
            "libfabric",
            r"v(1|2)\.(\d+)\.(\d+)",
            r"^(prov/(efa|verbs|tcp|util|shm|hook|rxm)|src|include)/.*\.(c|h)$",
            calls=(
                Call(r"FI_WARN(?:_ONCE)?", skip=2),
                Call("FI_WARN_SPARSE", skip=2),
                Call("EFA_WARN(?:_ONCE)?", skip=1),
                Call("EFA_WARN_(?:FI_)?ERRNO", skip=1),
                Call("VRB_WARN", skip=1),
                Call("VRB_WARN_ERR(?:NO)?", skip=1),
                Call("X?NET_WARN_ERR", skip=1),
                Call("FI_LOG", skip=3),
            ),
            table=(
                r"(?:PROV_ERRNO|IO_COMP_STATUS)\w*\(\s*(?:\w+|\d+),\s*\w+,\s*\"?([^\"\n]+?)\"?\)"
                r'|\[[A-Z_]+\]\s*=\s*"([^"]+)"'
            ),
        ),
        Project(
            "ucx",
            r"v(1)\.(\d+)\.(\d+)",
            r"^src/.*\.(c|h|cc|cpp|cu)$",
            calls=(
                Call(r"uc[smtp]_(?:error|warn|fatal)"),
                Call(r"ucs_(?:error|warn|fatal)_\w+"),
                Call(r"uct_\w+_(?:error|warn)"),
                Call(r"ucs_log", skip=1),
                Call(r"ucs_diag"),
            ),
            table=r'case UCS_ERR_\w+:\s*return "([^"]+)"',
        ),
        Project(
            "gloo",
            r"v?(\d+)\.(\d+)\.(\d+)",
            r"^gloo/.*\.(cc|h|cu)$",
            not_files=r"/(test|benchmark|examples)/",
            calls=(
                Call(r"GLOO_ENFORCE", skip=1, joins=True),
                Call(r"GLOO_ENFORCE_(?:EQ|NE|GE|GT|LE|LT)", skip=2, joins=True),
                Call(r"GLOO_THROW\w*", joins=True),
                Call(r"GLOO_(?:ERROR|WARN)", joins=True),
                Call(r"(?:signalException|makeUnboundBufferException|throwErrno)", joins=True),
                Call(r"throw [\w:]*Exception", joins=True),
            ),
        ),
        Project(
            "torch",
            r"v?(2)\.(\d+)\.(\d+)",
            (
                r"^torch/(csrc/distributed/c10d/|csrc/cuda/nccl)[^/]*\.(cpp|hpp|cu|h)$"
                r"|^torch/distributed/([^/]*\.py|elastic/.*\.py|launcher/.*\.py|fsdp/.*\.py"
                r"|_composable/.*\.py|checkpoint/.*\.py|algorithms/.*\.py|tensor/.*\.py"
                r"|flight_recorder/.*\.py)$"
                r"|^torch/nn/parallel/[^/]*\.py$|^torch/multiprocessing/[^/]*\.py$"
            ),
            calls=(
                Call(r"TORCH_CHECK(?:_VALUE|_TYPE|_INDEX)?", skip=1, joins=True),
                Call(r"TORCH_CHECK_WITH", skip=2, joins=True),
                Call(r"TORCH_INTERNAL_ASSERT", skip=1, joins=True),
                Call(r"TORCH_WARN(?:_ONCE)?", joins=True),
                Call(r"(?:C10D|TORCH_UCC_LOG)_(?:ERROR|WARNING)", joins=True),
                Call(r"C10D_THROW_ERROR", skip=1, joins=True),
                Call(r"C10_THROW_ERROR", skip=1, joins=True),
                Call(r"C10D_CHECK_WITH", skip=2, joins=True),
                Call(_STREAMS, joins=True),
                Call(r"c10::str", joins=True),
                Call(r"fmt::format"),
                Call(r"throw [\w:]+", joins=True),
            ),
        ),
        Project(
            "slurm",
            r"slurm-(2[1-9])-(\d\d)-(\d+)-1",
            (
                r"^src/(slurmd|srun|salloc|api)/.*\.[ch]$"
                r"|^src/common/(slurm_errno|slurm_cred|net|fd|slurm_protocol_(api|socket|common))[.]c$"
                r"|^src/interfaces/(auth|cred|cgroup|gres|mpi|namespace)[.]c$"
                r"|^src/plugins/(cgroup|task|proctrack|jobacct_gather|mpi|launch|auth|namespace"
                r"|job_container)/.*\.[ch]$"
            ),
            calls=(
                Call("(?:slurm_)?error"),
                Call("(?:slurm_)?fatal"),
                Call("fatal_abort"),
                Call("error_in_daemon"),
                Call("log_fatal", skip=2),
                Call("warning"),
            ),
            table=r'ERRTAB_ENTRY\(\w+\)\s*,\s*"([^"]+)"|\bE[A-Z_]+,\s*"([^"]+)"',
        ),
        Project(
            "pyxis",
            r"v(\d+)\.(\d+)\.(\d+)",
            r"\.[ch]$",
            calls=(Call("slurm_(?:error|info|spank_log)"),),
        ),
        Project(
            "enroot",
            r"v(\d+)\.(\d+)\.(\d+)",
            r"(\.sh|\.in|^bin/.*|\.c)$",
            calls=(Call("errx?", skip=1), Call("warnx?")),
        ),
        Project(
            "lightning",
            r"(2)\.(\d+)\.(\d+)",
            (
                r"^src/(lightning/)?(pytorch|fabric|lightning|lightning_fabric|pytorch_lightning)/"
                r"(strategies|plugins|accelerators|utilities|trainer|loops|connector)[/.\w]*\.py$"
            ),
        ),
        Project(
            "accelerate",
            r"v(\d+)\.(\d+)\.(\d+)",
            r"^src/accelerate/.*\.py$",
            not_files=r"/test_utils/",
        ),
        Project(
            "deepspeed",
            r"v(0)\.(\d+)\.(\d+)",
            r"^deepspeed/(launcher|comm|elasticity|accelerator|runtime|utils|ops/op_builder)/.*\.py$"
            r"|^(accelerator|op_builder)/.*\.py$|^deepspeed/[^/]*\.py$",
        ),
        Project(
            "megatron",
            r"core_v(0)\.(\d+)\.(\d+)",
            r"^megatron/(core/([a-z_]+\.py|distributed|tensor_parallel|pipeline_parallel|optimizer"
            r"|dist_checkpointing|datasets|resharding)|training)[/.\w]*\.py$",
        ),
        Project(
            "ray",
            r"v?(2)\.(\d+)\.(\d+)",
            r"^(python/)?ray/(train|air|exceptions|_private|util/collective)[/.\w]*\.py$",
            not_files=r"/(third_?party\w*|tests|examples|benchmarks)/|/test_",
        ),
        Project("kubernetes", r"v(0)\.(2[4-9]|3\d)\.(\d+)", r"^(core|batch)/v1/types\.go$"),
        Project(
            "kubeflow",
            _NUMBERS,
            r"^pkg/.*\.go$",
            not_files=r"_test\.go$|/(test|testing|zz_\w+)/",
        ),
    )
}
