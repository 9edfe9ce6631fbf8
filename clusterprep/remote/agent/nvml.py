"""Reads all that the driver reports of all GPUs, with NVIDIA's management library and ctypes.

Each field is its value or ["no", reason]; a GPU that does not answer hides nothing of the others.
"""

import time

from clusterprep.remote.agent.readers import NoAnswer, has_library, offer, read_file

NVML = b"libnvidia-ml.so.1"
# Flag of nvmlInitWithFlags: do not fail without GPUs. Not 2, «do not attach GPUs»: all of them are
# asked here, and nvml.h does not say what a GPU that is not attached answers.
NO_GPUS = 1
SAMPLES, PAUSE = 3, 0.05  # of the clocks event reasons, and the seconds between them
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
# Values of nvmlReturn_t.
INVALID_ARGUMENT = 2
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
LOST = 15
MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
OVER_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK

# Values of nvmlReturn_t that have a reason of their own: nvml.h, enum nvmlReturn_enum.
REASONS = {
    3: "not_applicable",
    4: "denied",
    9: "no_driver",
    13: "missing_tool",
    15: "gpu_lost",
    16: "reset_required",
    17: "denied",
    18: "driver_library_mismatch",
}

# Field -> function, and what it takes after the handle.
TEXTS = {
    "name": "nvmlDeviceGetName",
    "uuid": "nvmlDeviceGetUUID",
    "vbios": "nvmlDeviceGetVbiosVersion",
    "inforom": "nvmlDeviceGetInforomImageVersion",
    "part": "nvmlDeviceGetBoardPartNumber",
}
NUMBERS = {
    "minor": ("nvmlDeviceGetMinorNumber",),
    "persistence": ("nvmlDeviceGetPersistenceMode",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "ecc_default": ("nvmlDeviceGetDefaultEccMode",),
    "virtualization": ("nvmlDeviceGetVirtualizationMode",),
    "power_limit": ("nvmlDeviceGetPowerManagementLimit",),
    "power_default": ("nvmlDeviceGetPowerManagementDefaultLimit",),
    "power_enforced": ("nvmlDeviceGetEnforcedPowerLimit",),
    "clock_max_graphics": ("nvmlDeviceGetMaxClockInfo", 0),
    "clock_max_memory": ("nvmlDeviceGetMaxClockInfo", 2),
    "clock_application_graphics": ("nvmlDeviceGetApplicationsClock", 0),
    "clock_application_memory": ("nvmlDeviceGetApplicationsClock", 2),
    "clock_default_graphics": ("nvmlDeviceGetDefaultApplicationsClock", 0),
    "clock_default_memory": ("nvmlDeviceGetDefaultApplicationsClock", 2),
    "temperature": ("nvmlDeviceGetTemperature", 0),
    "slowdown": ("nvmlDeviceGetTemperatureThreshold", 1),
    "state": ("nvmlDeviceGetPerformanceState",),
    "clock": ("nvmlDeviceGetClockInfo", 1),
}
PAIRS = {
    "capability": "nvmlDeviceGetCudaComputeCapability",
    "ecc": "nvmlDeviceGetEccMode",
    "mig": "nvmlDeviceGetMigMode",
}


def read_nvml():
    """Return driver, CUDA of the driver and GPUs; None if this node has no NVML library."""
    if not has_library(NVML):
        return None
    import ctypes

    try:
        nvml = NvmlLibrary(ctypes.CDLL("libnvidia-ml.so.1"), ctypes)
    except OSError as error:
        raise NoAnswer("missing_tool", str(error))
    nvml.start()
    try:
        return nvml.everything()
    finally:
        nvml.call("nvmlShutdown")


class NvmlLibrary(object):
    """The library, and how its functions return texts, numbers and structures."""

    def __init__(self, library, ctypes):
        self.library = library
        self.ctypes = ctypes

    def start(self):
        """Initialise the library; releases before 418 know no flags."""
        code = self.call("nvmlInitWithFlags", NO_GPUS)
        if code == FUNCTION_NOT_FOUND:
            code = self.call("nvmlInit_v2")
        if code:
            raise NoAnswer(reason_of(code), "nvmlInit answered %d" % code)

    def call(self, symbol, *args):
        """Call a function; return its code, 13 if the library is older than the function."""
        try:
            function = getattr(self.library, symbol)
        except AttributeError:
            return FUNCTION_NOT_FOUND
        return function(*args)

    def call_into(self, symbol, args, outputs):
        """Call a function that fills `outputs`, which come last; return its code."""
        references = [self.ctypes.byref(output) for output in outputs]
        return self.call(symbol, *(list(args) + references))

    def must(self, symbol, *args):
        """Call a function that everything else depends on; raise NoAnswer if it fails."""
        code = self.call(symbol, *args)
        if code:
            raise NoAnswer(reason_of(code), "%s answered %d" % (symbol, code))

    def number(self, symbol, *args, **kind):
        """Return one number: an unsigned int, or the type `of`."""
        output = kind.get("of", self.ctypes.c_uint)()
        code = self.call_into(symbol, args, [output])
        return no(code) if code else output.value

    def numbers(self, count, symbol, *args):
        """Return several unsigned ints that one call fills."""
        outputs = [self.ctypes.c_uint() for _ in range(count)]
        code = self.call_into(symbol, args, outputs)
        return no(code) if code else [output.value for output in outputs]

    def text(self, symbol, *args):
        """Return one text."""
        output = self.ctypes.create_string_buffer(96)
        code = self.call(symbol, *(args + (output, 80)))
        return no(code) if code else output.value.decode("ascii", "replace")

    def structure(self, symbol, handle, layout, size, version=None):
        """Return the fields of a structure, by struct's layout.

        A `version` is written into its first word, together with its size.
        """
        import struct

        output = (self.ctypes.c_uint64 * ((size + 7) // 8))()  # aligned as the library expects
        if version is not None:
            first_word = self.ctypes.cast(output, self.ctypes.POINTER(self.ctypes.c_uint))
            first_word[0] = size | version << 24
        code = self.call_into(symbol, [handle], [output])
        if code:
            return no(code)
        data = bytes(bytearray(output)[:size])
        return list(struct.unpack_from(layout, data))

    def everything(self):
        """Return the answer of the read."""
        count = self.ctypes.c_uint()
        self.must("nvmlDeviceGetCount_v2", self.ctypes.byref(count))
        cuda = self.number("nvmlSystemGetCudaDriverVersion_v2", of=self.ctypes.c_int)
        handles = {}
        rows = []
        for index in range(count.value):
            row = {"index": index}
            rows.append(row)
            handle = self.ctypes.c_void_p()
            code = self.call_into("nvmlDeviceGetHandleByIndex_v2", [index], [handle])
            code = code or self.describe(handle, row)
            if code:
                row["no"] = reason_of(code)
                row["why"] = "GPU %d answered %d" % (index, code)
            else:
                handles[index] = handle
        self.sample(handles, rows)
        self.pairs(handles, rows)
        driver = self.text("nvmlSystemGetDriverVersion")
        return {
            "driver": driver,
            "cuda": cuda,
            "gpus": rows,
        }

    def describe(self, handle, row):
        """Add all fields of one GPU to its row; return the code of a GPU that is lost, else 0."""
        for field, symbol in TEXTS.items():
            row[field] = self.text(symbol, handle)
            if row[field] == ["no", "gpu_lost"]:
                return LOST
        row["gsp"] = self.text("nvmlDeviceGetGspFirmwareVersion", handle)
        row["pci"] = self.pci("nvmlDeviceGetPciInfo_v3", handle)
        for field, call in NUMBERS.items():
            row[field] = self.number(call[0], handle, *call[1:])
        for field, symbol in PAIRS.items():
            row[field] = self.numbers(2, symbol, handle)
        if refused(row["temperature"]):  # nvmlDeviceGetTemperature is deprecated from API 13 on
            newer = self.structure(
                "nvmlDeviceGetTemperatureV",
                handle,
                "=8xi",
                12,
                1,
            )
            if not refused(newer):
                row["temperature"] = newer[0]
        row["remap"] = self.numbers(4, "nvmlDeviceGetRemappedRows", handle)
        row["remap_banks"] = self.structure("nvmlDeviceGetRowRemapperHistogram", handle, "=5I", 20)
        row["sram"] = self.structure(
            "nvmlDeviceGetSramEccErrorStatus",
            handle,
            "=96xI",
            104,
            1,
        )
        row["margin"] = self.structure(
            "nvmlDeviceGetMarginTemperature",
            handle,
            "=4xi",
            8,
            1,
        )
        row["memory_temperature"] = self.field(handle, MEMORY_TEMPERATURE)
        row["ecc_volatile"] = self.uncorrected(handle, 0)
        row["ecc_aggregate"] = self.uncorrected(handle, 1)
        row["memory"] = self.memory(handle)
        row["processes"] = self.processes(handle)
        row["utilization"] = self.utilization(handle)
        row["links"] = self.links(handle)
        row["fabric"] = self.fabric(handle)
        started = time.monotonic()
        self.number("nvmlDeviceGetTemperature", handle, 0)
        seconds = time.monotonic() - started
        row["seconds"] = round(seconds, 4)
        return 0

    def uncorrected(self, handle, counter):
        """Return the uncorrected ECC errors since the driver was loaded (0) or of all time (1)."""
        count = self.ctypes.c_uint64
        return self.number(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            1,
            counter,
            of=count,
        )

    def pci(self, symbol, *args):
        """Return the address in nvmlPciInfo_t (68 bytes), of which busId is the last 32 bytes."""
        output = (self.ctypes.c_uint * 17)()
        code = self.call_into(symbol, args, [output])
        if code:
            return no(code)
        bus_id = bytes(bytearray(output)[36:68]).split(b"\0")[0]
        return bus_id.decode("ascii", "replace").lower()

    def field(self, handle, number):
        """Return one unsigned int of nvmlFieldValue_t.

        Its fields are id, scope, two 64-bit times, type, code, value.
        """
        output = (self.ctypes.c_uint64 * 5)()
        output[0] = number
        code = self.call_into("nvmlDeviceGetFieldValues", [handle, 1], [output])
        code = code or output[3] >> 32
        return no(code) if code else output[4] & 0xFFFFFFFF

    def memory(self, handle):
        """Return [total, reserved by the driver, used by others] in bytes.

        Older libraries count the reserved bytes as used; then they are None.
        """
        sizes = self.structure(
            "nvmlDeviceGetMemoryInfo_v2",
            handle,
            "=8x4Q",
            40,
            2,
        )
        if not refused(sizes):
            total, reserved, _, used = sizes
            return [total, reserved, used]
        sizes = self.structure("nvmlDeviceGetMemoryInfo", handle, "=3Q", 24)
        if refused(sizes):
            return sizes
        total, _, used = sizes
        return [total, None, used]

    def utilization(self, handle):
        """Return for how much of the last sample period the GPU computed, in %.

        The period is 1/6 to 1 s (nvml.h).
        """
        use = self.structure("nvmlDeviceGetUtilizationRates", handle, "=2I", 8)
        return use if refused(use) else use[0]

    def processes(self, handle):
        """Return [pid, bytes, name or None] of each process that computes there."""
        code, data = self._processes("nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if code == FUNCTION_NOT_FOUND:
            code, data = self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle)
        if code:
            return no(code)
        import struct

        rows = []
        for pid, used in struct.iter_unpack("=I4xQ8x", data):
            rows.append([pid, used, name_of(pid)])
        return rows

    def _processes(self, symbol, handle):
        """Return the code, and the bytes of nvmlProcessInfo_t (24 each)."""
        room = 64
        # where there are more, it answers their number, which may grow meanwhile
        for _ in range(3):
            count = self.ctypes.c_uint(room)
            output = (self.ctypes.c_uint64 * (3 * room))()
            code = self.call_into(symbol, [handle], [count, output])
            if code != INSUFFICIENT_SIZE:
                break
            room = min(count.value + 16, 1024)
        return code, bytes(bytearray(output)[: 24 * count.value])

    def links(self, handle):
        """Return [link, up, type and address of the other end] for every link that this GPU has."""
        rows = []
        for link in range(MAX_LINKS):
            up = self.number("nvmlDeviceGetNvLinkState", handle, link)
            if up == no(INVALID_ARGUMENT):  # past the last link
                break
            if up == ["no", "not_applicable"]:
                if link == 0:  # no NVLink at all
                    break
                continue
            if isinstance(up, list):
                return up
            far = None
            if up:
                kind = self.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
                far = [kind, self.pci("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link)]
            rows.append([link, up, far])
        return rows

    def fabric(self, handle):
        """Return [state, status, clique, health mask, summary] of the fabric.

        Older libraries know neither of the last two, which are then None.
        """
        for version, size, layout in ((3, 40, "=4x16xiIB3xIB3x"), (2, 36, "=4x16xiIB3xI")):
            info = self.structure(
                "nvmlDeviceGetGpuFabricInfoV",
                handle,
                layout,
                size,
                version,
            )
            if refused(info):
                continue
            status, clique, state, health = info[:4]
            summary = info[4] if len(info) > 4 else None
            return [state, status, clique, health, summary]
        info = self.structure("nvmlDeviceGetGpuFabricInfo", handle, "=16xiIB3x", 28)
        if refused(info):
            return info
        status, clique, state = info
        return [state, status, clique, None, None]

    def sample(self, handles, rows):
        """Add the clocks event reasons of several looks.

        A bit that is seen only once may be an ordinary change of clocks.
        """
        for number in range(SAMPLES):
            if number and handles:
                time.sleep(PAUSE)
            for index, handle in handles.items():
                reasons = self.clocks_event_reasons(handle)
                rows[index].setdefault("throttle", []).append(reasons)

    def clocks_event_reasons(self, handle):
        """Return the bits of the clocks event reasons; older libraries name it otherwise."""
        bitmask = self.ctypes.c_uint64
        bits = self.number("nvmlDeviceGetCurrentClocksEventReasons", handle, of=bitmask)
        if bits == no(FUNCTION_NOT_FOUND):
            bits = self.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle, of=bitmask)
        return bits

    def pairs(self, handles, rows):
        """Add NVLink's status of each pair of GPUs: 0 is fine (nvmlGpuP2PStatus_t)."""
        for index, handle in handles.items():
            states = []
            for other, far in handles.items():
                if other > index:
                    state = self.number("nvmlDeviceGetP2PStatus", handle, far, OVER_NVLINK)
                    states.append([other, state])
            rows[index]["p2p"] = states


def reason_of(code):
    """Return the reason of an answer that is missing."""
    return REASONS.get(code, "nvml_error")


def refused(value):
    """Return whether a field is a reason."""
    return isinstance(value, list) and value[0] == "no"


def no(code):
    """Return a field without a value: its reason, and the code if that has no reason of its own."""
    return ["no", REASONS[code]] if code in REASONS else ["no", "nvml_error", code]


def name_of(pid):
    """Return the short name of a process; None if it is gone."""
    try:
        return read_file("/proc/%d/comm" % pid).strip()
    except (OSError, NoAnswer):
        return None


def install(agent):
    """Register the readers of this part."""
    offer({"nvml": read_nvml}, instant=lambda: not has_library(NVML))
