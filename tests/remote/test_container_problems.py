"""What engines print when they start no container, seen here or posted unless it says composed."""

from __future__ import annotations

import pytest

from clusterprep.remote.agent.containers import problem

DENIED = """\
docker: permission denied while trying to connect to the Docker daemon socket at \
unix:///var/run/docker.sock: Head "http://%2Fvar%2Frun%2Fdocker.sock/_ping": \
dial unix /var/run/docker.sock: connect: permission denied.
See 'docker run --help'.
"""
OLD_DENIED = """\
docker: Got permission denied while trying to connect to the Docker daemon socket at \
unix:///var/run/docker.sock: Post http://%2Fvar%2Frun%2Fdocker.sock/v1.24/containers/create: \
dial unix /var/run/docker.sock: connect: permission denied.
See 'docker run --help'.
"""
PYXIS_IMPORT = """\
pyxis: importing docker image: hello-world.sqsh
slurmstepd: error: pyxis: child 10028 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [INFO] Querying registry for permission grant
slurmstepd: error: pyxis:     [INFO] Authenticating with user: <anonymous>
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: compute-0: task 0: Exited with exit code 1
"""
PYXIS_SHELL = """\
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing contents of log file ...
slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or \
directory
slurmstepd: error: pyxis: couldn't start container
"""
PYXIS_USERNS = """\
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing contents of log file ...
slurmstepd: error: pyxis:     enroot-nsenter: failed to create user namespace: Invalid argument
slurmstepd: error: pyxis: couldn't start container
"""
SUBUID = """\
ERRO[0000] cannot find UID/GID for user username: open /etc/subuid: no such file or directory - \
check rootless mode in man pages.
WARN[0000] Using rootless single mapping into the namespace. This might break some images. Check \
/etc/subuid and /etc/subgid for adding sub*ids if not using a network user
Error: kernel does not support overlay fs: 'overlay' is not supported over extfs at \
"/home/username/.local/share/containers/storage/overlay": backing file system is unsupported for \
this graph driver
"""
NO_IDS = """\
ERRO[0003] Cannot find mappings for user "containers": no subuid ranges found for user \
"containers" in /etc/subuid
Error: creating container storage: not enough unused IDs in user namespace
"""


@pytest.mark.parametrize(
    ("engine", "code", "text", "reason"),
    [
        # tomsik68/docker-xampp issue 63
        pytest.param("docker", 126, DENIED, "denied", id="docker-denied"),
        # malwaredllc/byob issue 476
        pytest.param("docker", 126, OLD_DENIED, "denied", id="docker-denied-older"),
        # docker's client here, without a daemon
        pytest.param(
            "docker",
            125,
            "docker: Cannot connect to the Docker daemon at unix:///run/podman/nono.sock. Is the "
            "docker daemon running?\n\nRun 'docker run --help' for more information\n",
            "no_daemon",
            id="docker-no-daemon",
        ),
        # NVIDIA/nvidia-docker issue 1352
        pytest.param(
            "docker",
            125,
            'docker: Error response from daemon: could not select device driver "" with '
            "capabilities: [[gpu]].\n",
            "no_gpus",
            id="docker-no-gpu-runtime",
        ),
        # weskerfoot/DeleteFB issue 156
        pytest.param(
            "docker",
            125,
            "docker: Error response from daemon: error gathering device information while adding "
            'custom device "/dev/dri": no such file or directory.\n'
            "ERRO[0000] error waiting for container: context canceled\n",
            "bad_options",
            id="docker-no-such-device",
        ),
        # delimitrou/DeathStarBench issue 122
        pytest.param(
            "docker",
            127,
            "Error response from daemon: OCI runtime create failed: container_linux.go:367: "
            'starting container process caused: exec: "python3": executable file not found in '
            "$PATH: unknown\n",
            "no_python",
            id="docker-no-python",
        ),
        # t0mer/Redalert issue 1
        pytest.param(
            "docker",
            127,
            "docker: Error response from daemon: OCI runtime create failed: "
            'container_linux.go:346: starting container process caused "exec: '
            '\\"/usr/bin/python3\\": stat /usr/bin/python3: no such file or directory": unknown.\n',
            "no_python",
            id="docker-no-python-at-that-path",
        ),
        # docker's client and podman's service here
        pytest.param(
            "docker",
            125,
            "docker: Error response from daemon: no such image: localhost/nojob:1: image not "
            "known\n\nRun 'docker run --help' for more information\n",
            "no_image",
            id="docker-no-image",
        ),
        # composed: moby's words for an image that is not there, with the name of a real image
        pytest.param(
            "docker",
            125,
            "docker: Error response from daemon: No such image: nvcr.io/nvidia/pytorch:24.05-py3\n",
            "no_image",
            id="moby-no-image",
        ),
        # podman issue 24989
        pytest.param(
            "podman",
            125,
            'Error: short-name "helloworld" did not resolve to an alias and no unqualified-search '
            'registries are defined in "/etc/containers/registries.conf"\n',
            "no_image",
            id="podman-short-name",
        ),
        # podman 4.3.1 here
        pytest.param(
            "podman", 125, "Error: localhost/nojob:1: image not known\n", "no_image", id="podman"
        ),
        pytest.param(
            "podman",
            125,
            "Error: unknown flag: --nosuch\nSee 'podman run --help'\n",
            "bad_options",
            id="podman-flag",
        ),
        pytest.param(
            "podman",
            127,
            "Error: crun: executable file `python4` not found in $PATH: No such file or directory: "
            "OCI runtime attempted to invoke a command that was not found\n",
            "no_python",
            id="podman-no-python",
        ),
        pytest.param(
            "podman",
            126,
            "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission "
            "denied\n",
            "bad_options",
            id="podman-limit",
        ),
        # warmshao/FasterLivePortrait issue 116
        pytest.param(
            "podman",
            125,
            "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.\n"
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n",
            "no_gpus",
            id="podman-cdi",
        ),
        # NVIDIA/nvidia-container-toolkit issue 63
        pytest.param(
            "podman",
            125,
            "Error: stat nvidia.com/gpu=0: no such file or directory\n",
            "no_gpus",
            id="podman-too-old-for-cdi",
        ),
        # podman issue 15611
        pytest.param("podman", 125, SUBUID, "denied", id="podman-no-subuid"),
        # coreos/fedora-coreos-tracker issue 2056
        pytest.param("podman", 125, NO_IDS, "denied", id="podman-no-ids"),
        # apptainer/singularity issue 5183
        pytest.param(
            "apptainer",
            255,
            "FATAL:   could not open image /data/antismash_analysis.sif: failed to retrieve path "
            "for /data/antismash_analysis.sif: lstat /data/antismash_analysis.sif: no such file or "
            "directory\n",
            "no_image",
            id="apptainer-no-image",
        ),
        # gglyptodon/helixer-docker issue 5
        pytest.param(
            "apptainer",
            255,
            "INFO:    Setting --writable-tmpfs (required by nvidia-container-cli)\n"
            'FATAL:   container creation failed: exec: "/usr/bin/nvidia-container-cli": stat '
            "/usr/bin/nvidia-container-cli: no such file or directory\n",
            "no_gpus",
            id="apptainer-no-nvidia-cli",
        ),
        # LarsDoorenbos in apptainer issue 1895
        pytest.param(
            "apptainer",
            255,
            "FATAL:   container creation failed: mount hook function failure: mount "
            "/var/apptainer/mnt/session/storage->/storage error: while mounting "
            "/var/apptainer/mnt/session/storage: destination /storage doesn't exist in container\n",
            "bad_options",
            id="apptainer-bind",
        ),
        # AndreWeiner/ml-cfd-lecture issue 36
        pytest.param(
            "apptainer",
            255,
            "INFO:    Converting SIF file to temporary sandbox...\n"
            "FATAL:   while extracting /home/simon/of2206-py1.12.1-cpu.sif: root filesystem "
            "extraction failed: extract command failed: ERROR  : Failed to create container "
            "process: Operation not permitted\n: exit status 1\n",
            "denied",
            id="apptainer-no-user-namespace",
        ),
        # james-simone in apptainer issue 409
        pytest.param(
            "apptainer",
            255,
            "FATAL:   Failed to retrieve information for /nashome/s/user/.apptainer: stat "
            "/nashome/s/user/.apptainer: permission denied\n",
            "denied",
            id="apptainer-home",
        ),
        # NVIDIA/enroot issue 247
        pytest.param(
            "enroot",
            1,
            "enroot-nsenter: failed to create user namespace: Permission denied\n",
            "denied",
            id="enroot-user-namespace",
        ),
        # NVIDIA/enroot issue 238
        pytest.param(
            "enroot",
            1,
            "nvidia-container-cli: initialization error: open failed: /proc/self/ns/mnt: "
            "permission denied\n"
            "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n",
            "no_gpus",
            id="enroot-nvidia-hook",
        ),
        # NVIDIA/enroot issue 39
        pytest.param(
            "enroot",
            1,
            "sed: couldn't close stdout: No space left on device\n"
            "[ERROR] /etc/enroot/hooks.d/10-shadow.sh exited with return code 4\n",
            "no_space",
            id="enroot-no-space",
        ),
        # NVIDIA/enroot issue 217
        pytest.param(
            "enroot",
            1,
            "enroot-switchroot: failed to execute: /bin/sh: No such file or directory\n",
            "no_python",
            id="enroot-no-shell",
        ),
        # NVIDIA/enroot issue 36
        pytest.param(
            "enroot",
            1,
            "enroot-mount: failed to mount: /opt/yingbai at "
            "/home/yingbai/.local/share/enroot/ubuntu/opt/yingbai: No such file or directory\n",
            "bad_options",
            id="enroot-mount",
        ),
        # NVIDIA/pyxis issues 127, 61 and NVIDIA/enroot issues 41, 249
        pytest.param("enroot", 1, PYXIS_IMPORT, "no_image", id="pyxis-image"),
        pytest.param("enroot", 1, PYXIS_SHELL, "no_python", id="pyxis-no-shell"),
        pytest.param("enroot", 1, PYXIS_USERNS, "denied", id="pyxis-user-namespace"),
        pytest.param(
            "enroot",
            1,
            'slurmstepd: error: pyxis: error: a container with name "pyxis_nemo-25.07.gpt_oss" '
            "does not exist, and --container-image is not set\n",
            "no_image",
            id="pyxis-no-container",
        ),
    ],
)
def test_an_engine_says_why_it_starts_nothing(
    engine: str, code: int, text: str, reason: str
) -> None:
    found = problem({"engine": engine, "image": "x", "options": []}, code, text)
    assert found is not None
    assert found[0] == reason, found
    assert found[1] in text.replace("\n", " ") or found[1] in text


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "enroot"])
def test_a_program_that_fails_is_no_problem_of_the_engine(engine: str) -> None:
    container = {"engine": engine, "image": "x", "options": []}
    text = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'\n"
    assert problem(container, 1, text) is None
    assert problem(container, 139, "") is None
    assert problem(container, 0, "Error: of the program itself\n") is None
