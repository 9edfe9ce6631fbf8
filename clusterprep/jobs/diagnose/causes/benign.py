"""Messages that look like failures and are harmless."""

from __future__ import annotations

from clusterprep.jobs.diagnose.model import Cause, Sign, Weight
from clusterprep.remedies import sentence, shell_line

SHUTDOWN = Cause(
    "benign_shutdown_warning",
    "benign",
    title="Noise of the end",
    message=(
        "The program ended without closing its process groups, or its connections were closed as "
        "it ended."
    ),
    looks="«destroy_process_group() was not called», connections that close after the last step.",
    unlike="The same lines in the middle of a run follow the failure of another process.",
    remedy=sentence("torch.distributed.destroy_process_group(), at the end of the program"),
    check=None,
    signs=(
        Sign(
            "destroy_process_group",
            r"destroy_process_group\(?\)? (?:was not|has not been) called",
            "[rank0]:[W304 12:00:00.000000000 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
            "destroy_process_group() was not called before program exit",
        ),
        Sign(
            "has not been destroyed",
            r"process group has NOT been destroyed before",
            "[rank0]:[W304 12:00:00.000000000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: "
            "process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
        ),
        Sign(
            "should dump",
            r"Failed to check the \"should dump\" flag",
            "[rank1]:[W304 12:00:00.000000000 TCPStore.cpp:106] [PG ID 0 PG GUID 0 Rank 1] "
            'Failed to check the "should dump" flag on TCPStore, '
            "(maybe TCPStore server has shut down too early)",
            Weight.LIKELY,
        ),
        Sign(
            "rendezvous",
            r"RendezvousGracefulExitError|rendezvous.{0,80}has been (?:shut ?down|closed)",
            "[WARNING] The node 'n1' has failed to shutdown the rendezvous due to an error of type "
            "RendezvousGracefulExitError",
            Weight.LIKELY,
        ),
        Sign(
            "failed to s",
            r"failed to (?:shutdown the rendezvous|send a keep-alive heartbeat)",
            "[WARNING] The node 'n1' has failed to shutdown the rendezvous '1' due to an error of "
            "type RendezvousConnectionError.",
            Weight.LIKELY,
        ),
        Sign(
            "leaked",
            r"resource_tracker: There appear to be \d+ leaked",
            "UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to "
            "clean up at shutdown",
        ),
    ),
)
DEPRECATED = Cause(
    "benign_deprecated_env",
    "benign",
    title="An old name of a variable",
    message="A variable has an old name. It still works, and the new name should be used.",
    looks=(
        "«Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING instead»."
    ),
    unlike="A name that was removed has no effect; `clusterprep lint` says which.",
    remedy=shell_line("clusterprep explain NAME   # says the new one"),
    check="env.deprecated",
    signs=(
        Sign(
            "deprecated",
            r"environment variable (?P<name>\w+) is deprecated",
            "[W304 12:00:00.000000000 Utils.hpp:44] Warning: Environment variable "
            "NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead (function "
            "operator())",
            note="the name is {name}",
        ),
        Sign(
            "deprecated",
            r"\b(?P<name>[A-Z][A-Z0-9_]+_[A-Z0-9_]+) is the default now, this environment "
            r"variable is thus deprecated",
            "[rank0]:[W304 12:00:00.000000000 ProcessGroupNCCL.cpp:997] Warning: "
            "TORCH_NCCL_AVOID_RECORD_STREAMS is the default now, this environment variable is "
            "thus deprecated. (function operator())",
            note="the name is {name}",
        ),
        Sign(
            "deprecated",
            r"\b(?P<name>(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|OMP|KMP|PET)_[A-Z_]+) (?:is"
            r"|has been) deprecated",
            "[rank0]: warning: PYTORCH_CUDA_ALLOC_CONF is deprecated, use PYTORCH_ALLOC_CONF "
            "instead",
            note="the name is {name}",
        ),
    ),
)
IPV6 = Cause(
    "benign_ipv6_fallback",
    "benign",
    title="IPv6 was tried first",
    message="torch tried IPv6, which this host or name does not have, and then IPv4, which worked.",
    looks="errno 97, errno 99 or a gai error for IPv6 alone, and the job goes on.",
    unlike="When no address works at all it is ipv6_ipv4_mismatch or hostname_unresolvable.",
    remedy=sentence("nothing; an IPv4 address in MASTER_ADDR makes it silent"),
    check=None,
)
