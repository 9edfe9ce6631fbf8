"""What becomes of each command that stands in a block of a document: how it is run, or why not.

`tests/project/test_documents.py` holds that every command is in one of the two tables, and
`tests/hosts/test_documents.py` runs those of the first on hosts of the lab.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Pages that are written by the tool: their commands are remedies, which have tests of their own.
OF_REMEDIES = ("docs/reference/checks.md", "docs/reference/causes.md")

# Names of the documents, and what the lab has instead.
NAMES = {
    "gpu[1-8]": "n[1-2]",
    "gpu*": "n*",
    "ubuntu": "root",
    "/etc/nccl.conf": "nccl.conf",
}
RUNS = ("20261121-093000-4f2a", "20261121-0930")


def on_the_lab(words: Sequence[str], addresses: Mapping[str, str], run: str) -> list[str]:
    """Return the words of a command with names, addresses and runs that the lab has."""
    adapted = []
    for word in words:
        name, is_pair, _ = word.partition("=10.0.0.")
        node = name.replace("gpu", "n")
        if is_pair:
            adapted.append(f"{node}={addresses[node]}")
        elif word in RUNS:
            adapted.append(run)
        else:
            adapted.append(NAMES.get(word, word))
    return adapted


# The exit codes of a command on four healthy hosts. Commands are run in this order, because some
# need what others before them did.
EXPECTED = {
    "clusterprep init gpu1=10.0.0.1 gpu2=10.0.0.2 --user ubuntu -b --output cluster.yaml": {0},
    "clusterprep check cluster.yaml": {0},
    "clusterprep check cluster.yaml --quiet": {0},
    "clusterprep explain --run last time.offset": {0},
    "clusterprep fix cluster.yaml --dry-run": {0, 1},  # 1: what it leaves to a person
    "clusterprep plan cluster.yaml": {0},
    "clusterprep apply cluster.yaml": {0},
    "clusterprep env inventory.yaml --from-run 20261121-093000-4f2a": {0},
    "clusterprep rollback cluster.yaml": {0},
    "clusterprep check cluster.yaml --limit 'gpu[1-8]'": {0},
    "clusterprep check cluster.yaml --only time.,net.": {0},
    "clusterprep check inventory.yaml --write-lists lists": {0},
    "clusterprep check inventory.yaml --retry-failed last": {2},  # none failed
    "clusterprep check cluster.yaml --output report.html --output report.xml --format json": {0},
    "clusterprep check cluster.yaml --output fleet.svg": {0},
    "clusterprep report last --format svg": {0},
    "clusterprep check cluster.yaml --format nagios": {0, 1},  # 1 is a warning there
    # This machine may have faults of its own.
    "clusterprep check --local": {0, 1, 3},
    "clusterprep check --local --only mem. -v": {0, 1, 3},
    "clusterprep check --local --budget 8": {0, 1, 3},
    "clusterprep env inventory.yaml": {0},
    "clusterprep env inventory.yaml --target env-file": {0},
    "clusterprep explain time.offset": {0},
    "clusterprep explain NCCL_IB_HCA": {0},
    "clusterprep explain sw.known_bad": {0},
    "clusterprep explain nccl-arm-proxy-wedge": {0},
    "clusterprep exec inventory.yaml -- uname -r": {0},
    "clusterprep exec cluster.yaml -- nvidia-smi -L": {1},  # there is none
    "clusterprep exec inventory.yaml --task fabfile.py:release": {0},
    "clusterprep copy inventory.yaml site.conf /etc/site.conf": {0},
    "clusterprep copy inventory.yaml site.conf /etc/": {0},
    "clusterprep copy inventory.yaml tool /usr/local/bin/ --mode 0755 --owner root:root -b": {0},
    "clusterprep fetch inventory.yaml '/var/log/job*.log' logs": {0},
    "clusterprep fetch inventory.yaml /var/log/job.log logs": {0},
    "clusterprep fetch inventory.yaml '/srv/*/out.txt' 'runs/{node}/1'": {0},
    "clusterprep launch inventory.yaml -- train.py --lr 1e-4": {0},
    "clusterprep launch inventory.yaml --direct -- python train.py": {0},
    "clusterprep launch inventory.yaml --print sbatch -- train.py": {0},
    "clusterprep diagnose train.log": {1},
    "clusterprep diagnose train.log 'rank*.log'": {1},
    "clusterprep diagnose slurm-4711.out --redact": {1},
    "clusterprep diagnose train.log --inventory cluster.yaml": {1},
    "clusterprep diagnose --live cluster.yaml": {0, 3},  # no job runs
    "clusterprep history": {0},
    "clusterprep history show 20261121-0930": {0},
    "clusterprep compare 'last~1' last": {0},
    "clusterprep report last --format json": {0},
    "clusterprep bundle last --redact": {0},
    "clusterprep init --from-ssh-config 'gpu*'": {0},
    "clusterprep init --from-ansible hosts.ini": {0},
    "clusterprep lint /etc/nccl.conf": {0},
    "clusterprep lint job.env --nccl 2.21.5 --torch 2.6.0": {0},
}

# Why the others are only parsed.
SAME = "another command of this table does the same"
SLURM = "needs Slurm; tests/hosts/test_slurm.py has it"
SECONDS = "takes ten seconds and more; {} has it".format
NOT_RUN = {
    "clusterprep fix cluster.yaml": "asks; tests/hosts/test_fix.py has it",
    "clusterprep fix cluster.yaml --only lim.,shm.size --yes": SECONDS("tests/hosts/test_fix.py"),
    "clusterprep watch cluster.yaml": "goes on until Ctrl-C; tests/hosts/test_watch.py has it",
    "clusterprep watch cluster.yaml --every 60s": "goes on until Ctrl-C, as above",
    "clusterprep watch cluster.yaml -b --job n2:4711": SECONDS("tests/jobs/live"),
    "clusterprep watch cluster.yaml -b --job slurm:1234": SECONDS("tests/jobs/live"),
    "clusterprep verify cluster.yaml": "every apply of the documents verifies too",
    "clusterprep verify inventory.yaml --pick 14 --write-lists lists": SECONDS(
        "tests/hosts/test_chosen_nodes.py"
    ),
    "clusterprep launch cluster.yaml -- train.py": SAME,
    "clusterprep launch inventory.yaml --spares 2 -- train.py": SECONDS(
        "tests/hosts/test_chosen_nodes.py"
    ),
    "clusterprep launch inventory.yaml --seed 7 --env HF_HOME=/data/hf --fold -- -m pkg.train": (
        SECONDS("tests/jobs/launch")
    ),
    "clusterprep bisect inventory.yaml -- train.py --steps 50": SECONDS("tests/jobs/bisection"),
    "clusterprep bisect inventory.yaml --run-timeout 10m -- train.py --steps 50": (
        SECONDS("tests/jobs/bisection")
    ),
    "clusterprep bisect inventory.yaml --max-time 8h -- train.py --steps 50": (
        SECONDS("tests/jobs/bisection")
    ),
    "clusterprep bisect inventory.yaml --resume last -- train.py --steps 50": (
        SECONDS("tests/jobs/bisection")
    ),
    "clusterprep verify INVENTORY --for 30m": SECONDS("tests/jobs/acceptance"),
    "clusterprep check INVENTORY --against FILE": SECONDS("tests/jobs/acceptance"),
    "clusterprep bundle inventory.yaml": SECONDS("tests/hosts/test_bundle.py"),
    "clusterprep bundle inventory.yaml --limit 'gpu[3,7]'": SECONDS("tests/hosts/test_bundle.py"),
    "clusterprep bundle inventory.yaml --redact --log train.log --output case-4711.tar.gz": (
        SECONDS("tests/hosts/test_bundle.py")
    ),
    "clusterprep apply inventory.yaml": SAME,
    "clusterprep check inventory.yaml": SAME,
    "clusterprep check INVENTORY": SAME,
    "clusterprep check cluster.yaml --format json": SAME,
    "clusterprep diagnose --live inventory.yaml": SAME,
    "clusterprep init gpu1=10.0.0.1 gpu2=10.0.0.2 --user ubuntu -b --python "
    "/opt/train/bin/python --output cluster.yaml": SAME,
    "clusterprep init 'gpu[01-16]=10.0.0.[1-16]' --user root": SAME,
    "clusterprep init --from-slurm": SLURM,
    "clusterprep init --from-slurm --user root": SLURM,
    "clusterprep apply inventory.yaml --retry-failed 20261121-093000-4f2a": (
        "an apply with failed nodes comes before it; tests/hosts/test_chosen_nodes.py has it"
    ),
    "clusterprep apply inventory.yaml --canary 2 --gate verify": SECONDS(
        "tests/hosts/test_batches.py"
    ),
    "clusterprep apply inventory.yaml --batches 1,10%,rest --gate ./smoke.sh": SECONDS(
        "tests/hosts/test_batches.py"
    ),
    "clusterprep apply inventory.yaml --canary 'gpu[01-02]' --batches 25% --gate check "
    "--on-failure rollback-all": SECONDS("tests/hosts/test_batches.py"),
    "clusterprep check INVENTORY --stress": "loads nodes for minutes; tests/hosts/test_stress.py",
    "clusterprep check INVENTORY --stress --only gpu.gemm,mem.stream --limit 'gpu[01-04]'": (
        "loads nodes for minutes; tests/hosts/test_stress.py has it"
    ),
    "clusterprep check --local --deep --store": (
        "would store findings on this machine; tests/hosts/test_slurm_examples.py has it"
    ),
    "clusterprep check cluster.yaml --output /var/lib/node_exporter/textfile/clusterprep.prom": (
        "writes where a monitoring agent of this machine may read"
    ),
    "clusterprep diagnose '/scratch/dumps/*'": (
        "needs dumps of a job that hung; tests/jobs/diagnose/test_records.py has them"
    ),
    "clusterprep diagnose 'stacks/rank*.txt'": (
        "needs stacks of a job that hung; tests/jobs/diagnose/test_records.py has them"
    ),
    "clusterprep mcp cluster.yaml --logs /scratch/logs": (
        "serves until its client leaves; tests/hosts/test_mcp.py has it"
    ),
    "clusterprep diagnose -": "reads a pipe; tests/jobs/diagnose has them",
    "clusterprep diagnose - --format json": "reads a pipe; tests/jobs/diagnose has them",
    "clusterprep lint -": "reads a pipe; tests/nccl/lint has them",
    "clusterprep explain site.scratch --inventory inventory.yaml": (
        "needs checks of a site; tests/inventory/site/test_commands.py has it"
    ),
    "clusterprep explain --list --inventory inventory.yaml": (
        "needs checks of a site; tests/inventory/site/test_commands.py has it"
    ),
    "clusterprep selftest --inventory inventory.yaml": (
        "needs checks of a site; tests/inventory/site/test_commands.py has it"
    ),
}
