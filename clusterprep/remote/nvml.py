"""NVIDIA's management library through ctypes: what the driver says of its GPUs."""

from clusterprep.remote.readers import NoAnswer, has_library, offer

NVML = b"libnvidia-ml.so.1"


def read_nvml():
    """Driver, CUDA of the driver and GPUs by NVML; None when this node has no NVML library at all."""
    if not has_library(NVML):
        return None
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NoAnswer("missing_tool", str(error))
    _nvml_call(nvml, "nvmlInit_v2")
    try:
        return _nvml_all(nvml, ctypes)
    finally:
        nvml.nvmlShutdown()


_NVML_REASONS = {4: "denied", 9: "no_driver", 15: "gpu_lost", 18: "driver_library_mismatch"}


def _nvml_call(nvml, symbol, *args):
    code = getattr(nvml, symbol)(*args)
    if code:
        raise NoAnswer(_NVML_REASONS.get(code, "nvml_error"), "%s answered %d" % (symbol, code))


def _nvml_text(nvml, ctypes, symbol, *args):
    text = ctypes.create_string_buffer(96)
    _nvml_call(nvml, symbol, *(args + (text, 80)))
    return text.value.decode("ascii", "replace")


def _nvml_all(nvml, ctypes):
    count, cuda = ctypes.c_uint(), ctypes.c_int()
    _nvml_call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    _nvml_call(nvml, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    gpus = []
    for index in range(count.value):
        try:
            gpus.append(_nvml_gpu(nvml, ctypes, index))
        except NoAnswer as lost:  # one lost device must not hide the others
            gpus.append({"index": index, "no": lost.reason, "why": lost.why})
    return {"driver": _nvml_text(nvml, ctypes, "nvmlSystemGetDriverVersion"), "cuda": cuda.value, "gpus": gpus}


def _nvml_gpu(nvml, ctypes, index):
    handle = ctypes.c_void_p()
    _nvml_call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    pci = (ctypes.c_char * 68)()  # nvmlPciInfo_t: the 32 bytes of busId stand last
    _nvml_call(nvml, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
    return {
        "index": index,
        "name": _nvml_text(nvml, ctypes, "nvmlDeviceGetName", handle),
        "uuid": _nvml_text(nvml, ctypes, "nvmlDeviceGetUUID", handle),
        "pci": bytes(pci)[36:68].split(b"\0")[0].decode("ascii", "replace").lower(),
    }


def install(agent):
    """Register the readers of this part."""
    offer({"nvml": read_nvml}, instant=lambda: not has_library(NVML))
