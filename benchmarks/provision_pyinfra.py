"""The four tasks of benchmarks/provision.py as a deploy of pyinfra."""

from io import StringIO

from pyinfra.operations import files, server

files.put(
    name="a file",
    src=StringIO(
        "# Written by the benchmark of clusterprep; may be removed at any time.\n"
        "NCCL_DEBUG=WARN\nNCCL_IB_DISABLE=1\n"
    ),
    dest="/etc/clusterprep-bench.conf",
    mode="644",
)
files.line(name="a line in a file", path="/etc/environment", line="CLUSTERPREP_BENCH=1")
server.sysctl(
    name="a setting of the kernel",
    key="net.core.somaxconn",
    value=16384,
    persist=True,
    persist_file="/etc/sysctl.d/90-clusterprep.conf",
)
files.put(
    name="limits",
    src=StringIO(
        "".join(
            f"{domain} - {what}\n"
            for what in ("memlock unlimited", "nofile 1048576")
            for domain in "* root".split()
        )
    ),
    dest="/etc/security/limits.d/90-clusterprep.conf",
    mode="644",
)
