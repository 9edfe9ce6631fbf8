"""A job in a conda environment, a virtual environment or modules, on real hosts.

The environments have torch from this test's own interpreter, and the hosts' system Python has none.
The conda environment is a folder of its shape, with a conda that nothing calls.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command import CLI, Answer, clusterprep
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
pytest.importorskip("torch")
HOSTS = 2
ENVIRONMENT = "/opt/lab-conda/envs/train"
MODULES = "/opt/lab-modules"
# Run in each host: a conda with an environment «train», made of a virtual one that finds torch.
MAKE = """
set -e
{python} -m venv --without-pip {environment}
site=$({environment}/bin/python -c 'import sysconfig as s; print(s.get_path("purelib"))')
echo {packages} > $site/torch.pth
mkdir -p {environment}/conda-meta {environment}/etc/conda/activate.d /opt/lab-conda/conda-meta
echo 'export NCCL_ALGO=Ring' > {environment}/etc/conda/activate.d/nccl.sh
echo 'export CONDA_EXE=/opt/lab-conda/bin/conda' > /root/.bash_profile
mkdir -p {modules}/tool
printf '#%%Module\\nsetenv NCCL_PROTO Simple\\n' > {modules}/tool/1.0
for init in /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash; do
    [ ! -e $init ] || echo ". $init; module use {modules}" >> /root/.bash_profile
done
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    require_lab()
    with Lab(HOSTS) as two:
        for host in two.hosts:
            words = {
                "python": two.inventory_content()["python"],
                "environment": ENVIRONMENT,
                "packages": sysconfig.get_path("purelib"),
                "modules": MODULES,
            }
            host.run(["bash", "-c", MAKE.format(**words)])
        yield two


def run(lab: Lab, command: str, *words: str, runtime: dict[str, Any], **more: Any) -> Answer:
    settings = {"nproc_per_node": 1, "verify": {"sizes": ["8"]}, "python": None, **more}
    return clusterprep(lab, command, *words, inventory=lab.inventory(runtime=runtime, **settings))


def has_modules(lab: Lab) -> bool:
    found = lab.hosts[0].run(["bash", "-lc", "type -t module"], check=False)
    return found.stdout.strip() == "function"


def test_check_verify_and_launch_use_the_named_environment(lab: Lab) -> None:
    runtime = {"conda": "train"}
    checked = run(lab, "check", "--only", "rt.,torch.,python.,env.shadow", runtime=runtime)
    assert checked.failed() == {}
    (entered,) = checked.findings("rt.engine", "pass")
    assert entered["seen"] == f"{ENVIRONMENT}/bin/python3 in {ENVIRONMENT}"
    rows = {row["path"]: row["reaches"] for row in checked.report["env_paths"]}
    assert rows["runtime"] == ["NCCL_ALGO"]
    verified = run(lab, "verify", runtime=runtime)
    assert (verified.code, verified.report["verify"]["world_size"]) == (0, HOSTS)
    script = "import json,os,sys; print('row', json.dumps([sys.prefix, os.environ['NCCL_ALGO']]))"
    launched = run(lab, "launch", "--direct", "--", "python3", "-c", script, runtime=runtime)
    assert launched.code == 0, launched.stderr
    assert launched.stderr.count(f"row {json.dumps([ENVIRONMENT, 'Ring'])}") == HOSTS


def test_an_environment_that_one_node_lacks_is_named_there(lab: Lab) -> None:
    runtime = {"conda": ENVIRONMENT}
    lab.hosts[1].run(["mv", ENVIRONMENT, ENVIRONMENT + ".away"])
    try:
        checked = run(lab, "check", "--only", "rt.,torch.,python.", runtime=runtime)
        verified = run(lab, "verify", runtime=runtime)
    finally:
        lab.hosts[1].run(["mv", ENVIRONMENT + ".away", ENVIRONMENT])
    assert checked.blamed("rt.engine") == ["n2"]
    (failed,) = checked.findings("rt.engine")
    assert failed["message"].endswith(f"there is no folder {ENVIRONMENT}")
    reasons = {
        row["nodes"][0]: row["reason"] for row in checked.findings("torch.version", "unknown")
    }
    assert reasons["n2"] == "no_environment"
    assert verified.code == 1
    assert verified.report["verify"]["ranks"] == []


def test_a_module_that_one_node_lacks_is_named_there(lab: Lab) -> None:
    if not has_modules(lab):
        pytest.skip("neither lmod nor environment-modules is installed here")
    runtime = {"modules": ["tool/1.0"], "venv": ENVIRONMENT}
    lab.hosts[0].run(["rm", f"{MODULES}/tool/1.0"])
    checked = run(lab, "check", "--only", "rt.,torch.", runtime=runtime)
    assert checked.blamed("rt.engine") == ["n1"]
    (failed,) = checked.findings("rt.engine")
    assert "module load tool/1.0 fails: " in failed["message"]
    assert failed["seen"] == "no_module"


def test_a_printed_line_runs_in_the_environment(lab: Lab) -> None:
    path = lab.inventory(runtime={"venv": ENVIRONMENT}, nproc_per_node=1, python=None)
    words = [
        "--print",
        "torchrun",
        "--direct",
        "--",
        "python3",
        "-c",
        "import sys; print(sys.prefix)",
    ]
    printed = lab.controller.run([*CLI, "launch", str(path), *words], timeout=60)
    first = printed.stdout.split("# n2 rank")[0]
    assert lab.hosts[0].run(["bash", "-c", first]).stdout.strip() == ENVIRONMENT
