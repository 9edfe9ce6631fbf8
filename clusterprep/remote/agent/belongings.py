"""What a rank has that all ranks should have alike: interpreter, packages, environment, and files that the user names.

Every rank tells it to the agent on its own socket, and the controller compares: that works without any collective.
"""

import hashlib
import json
import os
import platform
import sys

PIECE = 8192  # bytes of one report; the agent takes 16 KiB
BLOCK = 1 << 20
# Of the environment, what changes how a job computes or connects.
FAMILIES = (
    "NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "TP_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_",
    "KMP_", "GOMP_", "UCX_", "FI_", "OMPI_", "HF_", "TRANSFORMERS_", "XLA_", "TRITON_", "LD_", "PYTHON",
)  # fmt: skip
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")


def belongings(files):
    """Pieces {"part": name, "items": {…}} that fit into a report each; those of one part belong together."""
    parts = (
        ("interpreter", interpreter()),
        ("packages", packages(sys.path)),
        ("environment", variables(os.environ)),
        ("files", {path: digest(path) for path in files}),
    )
    for part, items in parts:
        for piece in cut(items):
            yield {"part": part, "items": piece}


def interpreter():
    return {platform.python_implementation(): platform.python_version()}


def packages(folders):
    """Versions by normalised name, read off the names of their folders; the first on the path is the one imported."""
    found = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            stem, ending = os.path.splitext(name)
            if ending in (".dist-info", ".egg-info") and "-" in stem:
                project, version = stem.split("-")[:2]
                found.setdefault(project.lower().replace("_", "-").replace(".", "-"), version)
    return found


def variables(environment):
    """What of an environment is to be compared: those of FAMILIES whose names hold no secret."""
    names = [name for name in environment if name.startswith(FAMILIES)]
    return {
        name: environment[name]
        for name in names
        if not any(word in name.upper() for word in SECRETS)
    }


def digest(path):
    """SHA-256 of a file and its size; a list with the reason where it cannot be read."""
    hashed, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as source:
            for block in iter(lambda: source.read(BLOCK), b""):
                hashed.update(block)
                size += len(block)
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return [error.strerror or str(error)]
    return "sha256 %s, %d bytes" % (hashed.hexdigest()[:16], size)


def cut(items):
    """The items in as many pieces as are needed, one at least: that there is nothing is told, too."""
    piece, size = {}, 0
    for name, value in sorted(items.items()):
        told, length = value, len(json.dumps([name, value]))
        if length > PIECE:
            told = (
                "sha256 %s" % hashlib.sha256(str(value).encode("utf-8", "replace")).hexdigest()[:16]
            )
            length = len(json.dumps([name, told]))
        if size + length > PIECE:
            yield piece
            piece, size = {}, 0
        piece[name] = told
        size += length
    yield piece
