"""NCCL as a job begins with it, where there is no GPU: its bootstrap is the real one."""

import ctypes
import sys


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def check(nccl, result, call):
    if result:
        sys.exit(f"RuntimeError: NCCL error in {call}: {nccl.ncclGetErrorString(result).decode()}")


def main():
    nccl = ctypes.CDLL(sys.argv[1])
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    name = UniqueId()
    check(nccl, nccl.ncclGetUniqueId(ctypes.byref(name)), "ncclGetUniqueId")
    if len(sys.argv) > 2:
        communicator = ctypes.c_void_p()
        check(
            nccl,
            nccl.ncclCommInitRank(ctypes.byref(communicator), 2, name, int(sys.argv[2])),
            "ncclCommInitRank",
        )
    print("rank 0 has an id for the others", flush=True)


if __name__ == "__main__":
    main()
