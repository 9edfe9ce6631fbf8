"""What the script finds of torch in real folders, and how NCCL's numbers are read."""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.torch import (
    SCRIPT,
    Libraries,
    NotStarting,
    Plugin,
    Plugins,
    Python,
    Torch,
    nccl_version,
)
from clusterprep.model import Absent
from tests.support.fleet import learned

CUDA_WHEEL = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.6.0+cu124'
debug = False
cuda: Optional[str] = '12.4'
git_version = '2236df1770800ffea5697b11b0bb0d910b2e59e1'
hip: Optional[str] = None
rocm: Optional[str] = None
xpu: Optional[str] = None
"""
CPU_WHEEL = CUDA_WHEEL.replace("+cu124", "+cpu").replace("'12.4'", "None")
OLD_WHEEL = """\
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '1.13.1+cu117'
debug = False
cuda = '11.7'
git_version = '49444c3e546bf240bed24a101e747422d1f8a0ee'
hip = None
"""
NVIDIA_IMAGE = CUDA_WHEEL.replace("2.6.0+cu124", "2.6.0a0+df5bbc09d1.nv24.12").replace(
    "'12.4'", '"12.6"'
)


def run(folder: Path, *flags: str, **more: str) -> dict[str, Any]:
    """The script's answer in an interpreter that sees only this folder and the standard library."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), **more}
    done = subprocess.run(
        [sys.executable, *(flags or ["-S"]), "-c", SCRIPT],
        env=environment, cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def install(folder: Path, version: str) -> Path:
    place = folder / "torch"
    place.mkdir()
    (place / "__init__.py").write_text("raise SystemExit('torch must not be imported')\n")
    (place / "version.py").write_text(version)
    return place


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        pytest.param(CUDA_WHEEL, "2.6.0+cu124", "12.4", id="cuda-wheel"),
        pytest.param(CPU_WHEEL, "2.6.0+cpu", None, id="cpu-wheel"),
        pytest.param(OLD_WHEEL, "1.13.1+cu117", "11.7", id="without-types"),
        pytest.param(NVIDIA_IMAGE, "2.6.0a0+df5bbc09d1.nv24.12", "12.6", id="nvidia-image"),
    ],
)
def test_a_build_is_read_without_importing_it(
    tmp_path: Path, text: str, version: str, cuda: str | None
) -> None:
    place = install(tmp_path, text)
    assert learned("torch.build", ["ok", run(tmp_path)]) == Torch(version, cuda, None, str(place))


def test_no_torch_is_an_answer(tmp_path: Path) -> None:
    assert learned("torch.build", ["ok", run(tmp_path)]) == Torch(None, None, None, None)


def test_a_folder_that_happens_to_be_called_torch_is_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    assert learned("torch.build", ["ok", run(tmp_path)]).version is None


def test_a_build_without_a_version_is_garbled(tmp_path: Path) -> None:
    install(tmp_path, "__version__ = None\n")
    found = learned("torch.build", ["ok", run(tmp_path)])
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (2408, "2.4.8"),
        (2708, "2.7.8"),
        (20903, "2.9.3"),
        (21003, "2.10.3"),
        (21805, "2.18.5"),
        (22105, "2.21.5"),
        (22703, "2.27.3"),
        (23007, "2.30.7"),
    ],
)
def test_nccls_number_is_decoded_by_its_age(code: int, text: str) -> None:
    assert nccl_version(code) == text
    answer = {"version": "2.6.0", "cuda": "12.4", "nccl": code, "where": "/torch"}
    assert learned("torch.build", ["ok", answer]).nccl == text


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"version": "2.6.0"},
        {"version": "2", "cuda": None, "nccl": "new", "where": "/"},
        {"version": "2", "cuda": None, "nccl": 0, "where": "/"},
    ],
)
def test_another_shape_is_garbled(answer: object) -> None:
    assert learned("torch.build", ["ok", answer]).reason == "garbled"


@pytest.mark.parametrize("reason", ["missing_tool", "denied", "hung", "timed_out"])
def test_an_interpreter_that_did_not_answer_is_not_one_without_torch(reason: str) -> None:
    assert learned("torch.build", ["no", reason, "/usr/bin/python3"]) == Absent(
        reason, "/usr/bin/python3"
    )


# ---------------------------------------------------------------- what is loaded

COMPILER = shutil.which("cc") or shutil.which("gcc")
compiled = pytest.mark.skipif(
    COMPILER is None, reason="needs a C compiler, for libraries that say their version"
)


def library(path: Path, code: int) -> Path:
    """A libnccl.so.2 that says its version, and does nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = f"int ncclGetVersion(int *version) {{ *version = {code}; return 0; }}"
    build(path, source, "-Wl,-soname,libnccl.so.2")
    return path


def build(path: Path, source: str, *flags: str) -> None:
    argv = [
        str(COMPILER),
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-x",
        "none",
        "-o",
        str(path),
        *flags,
    ]
    subprocess.run(argv, input=source, text=True, check=True)


def wheel(folder: Path, code: int, *flags: str) -> Path:
    """A torch with the NCCL beside it, linked to it in the way that the flags say."""
    place = install(folder, CUDA_WHEEL)
    beside = library(folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2", code)
    (place / "lib").mkdir()
    needs = ["-Wl,--no-as-needed", str(beside)] if flags else []
    build(place / "lib" / "libtorch_cuda.so", "int torch;", *needs, *flags)
    return beside


RPATH = ("-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib:$ORIGIN")
RUNPATH = ("-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib:$ORIGIN")
NO_PATH = ("-Wl,--disable-new-dtags",)


@pytest.mark.machine
@compiled
@pytest.mark.parametrize(
    ("flags", "variable", "expected"),
    [
        pytest.param(RPATH, None, "2.21.5", id="rpath"),
        pytest.param(RPATH, "LD_LIBRARY_PATH", "2.21.5", id="rpath-comes-before-the-variable"),
        pytest.param(RPATH, "LD_PRELOAD", "2.26.2", id="what-is-loaded-first-wins"),
        pytest.param(RUNPATH, None, "2.21.5", id="runpath"),
        pytest.param(RUNPATH, "LD_LIBRARY_PATH", "2.26.2", id="runpath-comes-after-the-variable"),
        pytest.param(NO_PATH, "LD_LIBRARY_PATH", "2.26.2", id="no-path"),
        pytest.param(NO_PATH, None, None, id="nothing-finds-it"),
        pytest.param((), "LD_LIBRARY_PATH", None, id="linked-into-torch"),
    ],
)
def test_the_nccl_that_the_loader_would_take(
    tmp_path: Path, flags: tuple[str, ...], variable: str | None, expected: str | None
) -> None:
    beside = wheel(tmp_path, 22105, *flags)
    other = library(tmp_path / "other" / "libnccl.so.2", 22602)
    value = {"LD_PRELOAD": str(other), "LD_LIBRARY_PATH": f":{other.parent}"}
    answer = run(tmp_path, **({variable: value[variable]} if variable else {}))
    assert learned("torch.build", ["ok", answer]).nccl == expected
    found: Libraries = learned("nccl.libraries", ["ok", answer])
    assert (found.wheel, found.wheel_version) == (str(beside), "2.21.5")
    assert found.loaded == {"2.21.5": str(beside), "2.26.2": str(other)}.get(expected or "")
    assert found.system_version == (
        "2.26.2" if variable == "LD_LIBRARY_PATH" else found.system and "?"
    )


@pytest.mark.machine
@compiled
def test_names_behind_megabytes_of_symbols_are_found(tmp_path: Path) -> None:
    """libtorch_cuda has a table of names of many megabytes, and patchelf appends to it."""
    beside = wheel(tmp_path, 22105, *RPATH)
    symbols = "".join(f"int {'x' * 4000}{number};" for number in range(1500))
    place = tmp_path / "torch" / "lib" / "libtorch_cuda.so"
    build(place, symbols, "-Wl,--no-as-needed", str(beside), *RPATH)
    assert place.stat().st_size > 6_000_000
    assert run(tmp_path)["nccl_path"] == str(beside)


@pytest.mark.machine
@compiled
def test_the_choice_is_the_loaders_own(tmp_path: Path) -> None:
    """What the script says beforehand is what dlopen of libtorch_cuda then maps."""
    for number, flags in enumerate((RPATH, RUNPATH)):
        folder = tmp_path / str(number)
        folder.mkdir()
        beside = wheel(folder, 22105, *flags)
        other = library(folder / "other" / "libnccl.so.2", 22602)
        torch_cuda = folder / "torch" / "lib" / "libtorch_cuda.so"
        load = f"import ctypes; ctypes.CDLL('{torch_cuda}'); print(open('/proc/self/maps').read())"
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(other.parent)}
        done = subprocess.run(
            [sys.executable, "-c", load],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        mapped = {str(path) for path in (beside, other) if str(path) in done.stdout}
        assert mapped == {run(folder, LD_LIBRARY_PATH=str(other.parent))["nccl_path"]}


def test_a_library_that_does_not_load_has_a_path_and_no_version(tmp_path: Path) -> None:
    install(tmp_path, CUDA_WHEEL)
    broken = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF cut off")
    answer = run(tmp_path)
    assert learned("torch.build", ["ok", answer]).nccl is None
    assert learned("nccl.libraries", ["ok", answer]).loaded == str(broken)


def test_a_torch_library_that_is_no_elf_file_does_not_hide_the_version(tmp_path: Path) -> None:
    place = install(tmp_path, CUDA_WHEEL)
    (place / "lib").mkdir()
    (place / "lib" / "libtorch_cuda.so").write_bytes(b"\x7fELF\x02" + b"\xff" * 200)
    assert learned("torch.build", ["ok", run(tmp_path)]).version == "2.6.0+cu124"


# ---------------------------------------------------------------- plug-ins


def test_plugins_are_found_where_the_loader_looks(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl-net.so.0").write_bytes(b"net")
    (folder / "libnccl-net.so").symlink_to("libnccl-net.so.0")
    (folder / "libnccl-tuner.so").write_bytes(b"tuner")
    (folder / "libnccl-net.la").write_bytes(b"text of libtool")
    found = learned("nccl.plugins", ["ok", run(tmp_path, LD_LIBRARY_PATH=f"/nowhere:{folder}")])
    net, tuner = hashlib.sha256(b"net").hexdigest(), hashlib.sha256(b"tuner").hexdigest()
    mine = [plugin for plugin in found.files if plugin.path.startswith(str(folder))]
    assert mine == [
        Plugin(f"{folder}/libnccl-net.so", 3, net), Plugin(f"{folder}/libnccl-tuner.so", 5, tuner)
    ]  # fmt: skip


def test_the_plugin_that_is_asked_for_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_bytes(b"net")
    (tmp_path / "libnccl-net-fast.so").symlink_to("libnccl-net.so")
    (tmp_path / "my.so").write_bytes(b"mine")
    settings = {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": f"fast,{tmp_path}/my.so,gone"}
    found = learned("nccl.plugins", ["ok", run(tmp_path, **settings)])
    assert found.wanted == settings["NCCL_NET_PLUGIN"]
    assert [plugin.path for plugin in found.files[:2]] == [
        f"{tmp_path}/libnccl-net-fast.so",
        f"{tmp_path}/my.so",
    ]


def test_a_large_plugin_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "libnccl-net.so").open("wb") as sparse:
        sparse.truncate((64 << 20) + 1)
    answer = run(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert learned("nccl.plugins", ["ok", answer]).files[0] == Plugin(
        f"{tmp_path}/libnccl-net.so", (64 << 20) + 1, None
    )


# ---------------------------------------------------------------- the interpreter and the rest


def test_the_interpreter_says_what_it_is(tmp_path: Path) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    expected = Python(sys.executable, version, sys.prefix, sys.base_prefix)
    assert learned("python.env", ["ok", run(tmp_path, "-B")]) == expected


def test_names_that_json_would_have_to_quote_come_home(tmp_path: Path) -> None:
    folder = tmp_path / 'a"b\\c\n\u00e9'
    folder.mkdir()
    (folder / "libnccl-net.so").write_bytes(b"")
    found = learned("nccl.plugins", ["ok", run(tmp_path, LD_LIBRARY_PATH=str(folder))])
    assert Path(found.files[0].path).parent == folder


def test_the_libcuda_of_a_compatibility_package_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "compat"
    folder.mkdir()
    (folder / "libcuda.so.580.65.06").write_bytes(b"")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    answer = run(tmp_path, LD_LIBRARY_PATH=str(folder))
    assert learned("cuda.libcuda", ["ok", answer]) == f"{folder}/libcuda.so.580.65.06"


def test_an_interpreter_that_does_not_start_is_known_for_that_alone() -> None:
    answer = ["no", "no_start", "libpython3.11.so.1.0: cannot open shared object file"]
    assert learned("python.env", answer) == NotStarting(answer[2])
    assert learned("torch.build", answer) == Absent("no_start", answer[2])
    assert learned("python.env", ["no", "hung", "python"]) == Absent("hung", "python")


NOTHING = dict.fromkeys(
    (
        "nccl_path",
        "wheel_path",
        "wheel",
        "system_path",
        "system",
        "preload",
        "library_path",
        "net_plugin",
        "libcuda",
    )
)


@pytest.mark.parametrize(
    ("fact", "answer"),
    [
        ("nccl.libraries", {**NOTHING, "system": "2.21"}),
        ("nccl.libraries", {**NOTHING, "wheel_path": 7}),
        ("nccl.libraries", {**NOTHING, "system": -1}),
        ("nccl.libraries", {}),
        ("nccl.plugins", {**NOTHING, "plugins": None}),
        ("nccl.plugins", {**NOTHING, "plugins": [{"path": "", "size": 1, "sha256": None}]}),
        ("nccl.plugins", {**NOTHING, "plugins": [{"path": "/a", "size": 1, "sha256": 7}]}),
        ("nccl.plugins", {**NOTHING, "plugins": ["libnccl-net.so"]}),
        (
            "python.env",
            {"python": "", "python_version": "3.11.7", "prefix": "/usr", "base_prefix": "/usr"},
        ),
        (
            "python.env",
            {"python": "/p", "python_version": None, "prefix": "/usr", "base_prefix": "/usr"},
        ),
        ("python.env", {}),
        ("cuda.libcuda", {"libcuda": True}),
    ],
)
def test_answers_of_another_shape_are_garbled(fact: str, answer: object) -> None:
    assert learned(fact, ["ok", answer]).reason == "garbled"


def test_no_plugin_is_an_answer() -> None:
    assert learned("nccl.plugins", ["ok", {**NOTHING, "plugins": []}]) == Plugins(())


OFI = b"\0AWS Libfabric\0Libfabric\0NET/OFI Initializing aws-ofi-nccl 1.14.0\0\0SHARP\0"
FI_VERSION = "unsigned fi_version(void) { return 1u << 16 | 22u; }\n"


def test_the_network_and_the_version_of_a_plugin(tmp_path: Path) -> None:
    """Composed of the strings that aws-ofi-nccl holds: its log begins with the last of them."""
    (tmp_path / "libnccl-net.so").write_bytes(b"\x7fELF" + OFI)
    found = learned("nccl.plugins", ["ok", run(tmp_path, LD_LIBRARY_PATH=str(tmp_path))])
    assert found.files[0].networks == ("AWS Libfabric", "Libfabric", "SHARP")
    assert found.files[0].ofi == "1.14.0"
    is_here = ctypes.util.find_library("fabric") is not None
    assert (found.libfabric is not None) == is_here


def test_the_libfabric_that_a_plugin_would_load_is_asked_for_its_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_bytes(b"\x7fELF" + OFI)
    source = tmp_path / "fi.c"
    source.write_text(FI_VERSION)
    library = tmp_path / "libfabric.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    found = learned("nccl.plugins", ["ok", run(tmp_path, LD_LIBRARY_PATH=str(tmp_path))])
    assert found.libfabric == "1.22"
