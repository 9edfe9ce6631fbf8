"""What all ranks should have alike: interpreter, packages, environment, and files of the user.

Every rank sends it to the agent on its own socket, and the controller compares: that works
without any collective.
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
    "NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "TP_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "OMP_",
    "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "UCX_", "FI_", "OMPI_", "HF_", "TRANSFORMERS_", "XLA_",
    "TRITON_", "LD_", "PYTHON",
)  # fmt: skip
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")


def belongings(files):
    """Yield pieces {"part": name, "items": {…}} that fit into a report each.

    A part that is too large for one report comes in several pieces.
    """
    digests = {}
    for path in files:
        digests[path] = digest(path)
    parts = (
        ("interpreter", interpreter()),
        ("packages", packages(sys.path)),
        ("environment", variables(os.environ)),
        ("files", digests),
    )
    for part, items in parts:
        for piece in cut(items):
            yield {
                "part": part,
                "items": piece,
            }


def interpreter():
    return {platform.python_implementation(): platform.python_version()}


def packages(folders):
    """Return versions by normalised name, taken from the names of the packages' metadata folders.

    Of a package that is there twice, the first on the path counts: that one is imported.
    """
    versions = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            stem, ending = os.path.splitext(name)
            if ending not in (".dist-info", ".egg-info") or "-" not in stem:
                continue
            project, version = stem.split("-")[:2]
            normalised = project.lower().replace("_", "-").replace(".", "-")
            versions.setdefault(normalised, version)
    return versions


def variables(environment):
    """Return the variables that are to be compared: those of FAMILIES that hold no secret."""
    compared = {}
    for name in environment:
        if name.startswith(FAMILIES) and not is_secret(name):
            compared[name] = environment[name]
    return compared


def is_secret(name):
    return any(secret in name.upper() for secret in SECRETS)


def digest(path):
    """Return SHA-256 and size of a file; a list with the reason if it cannot be read."""
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
    """Yield the items in pieces of PIECE bytes at most; one empty piece if there are none.

    Of a value that is too large for a piece the hash is sent.
    """
    piece, size = {}, 0
    for name, value in sorted(items.items()):
        sent, length = value, json_size(name, value)
        if length > PIECE:
            sent = hash_of_text(str(value))
            length = json_size(name, sent)
        if size + length > PIECE:
            yield piece
            piece, size = {}, 0
        piece[name] = sent
        size += length
    yield piece


def json_size(name, value):
    return len(json.dumps([name, value]))


def hash_of_text(text):
    hashed = hashlib.sha256(text.encode("utf-8", "replace"))
    return "sha256 %s" % hashed.hexdigest()[:16]
