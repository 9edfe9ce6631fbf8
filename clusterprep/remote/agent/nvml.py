"""NVIDIA's management library through ctypes: in one call all that the driver says of all GPUs.

Each field is its value or ["no", reason]; what one GPU does not answer hides nothing of the others.
"""

import time

from clusterprep.remote.agent.readers import NoAnswer, has_library, offer, read_file

NVML = b"libnvidia-ml.so.1"
# Flag of nvmlInitWithFlags: do not fail where there are none. Not 2, «do not attach GPUs»: all of them are asked here,
# and nvml.h does not say what a GPU that is not attached answers.
NO_GPUS = 1
SAMPLES, PAUSE = 3, 0.05  # of the clocks event reasons, and the seconds between them
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
LOST = 15
MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
OVER_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK

# Codes of nvmlReturn_t that say more than «error»: nvml.h, enum nvmlReturn_enum.
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
}
PAIRS = {
    "capability": "nvmlDeviceGetCudaComputeCapability",
    "ecc": "nvmlDeviceGetEccMode",
    "mig": "nvmlDeviceGetMigMode",
}


def read_nvml():
    """Driver, CUDA of the driver and GPUs by NVML; None when this node has no NVML library at all."""
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
    """The library, and how its functions give texts, numbers and structures."""

    def __init__(self, library, ctypes):
        self.library, self.ctypes = library, ctypes

    def start(self):
        """Initialise; libraries before 418 know no flags."""
        code = self.call("nvmlInitWithFlags", NO_GPUS)
        if code == 13:
            code = self.call("nvmlInit_v2")
        if code:
            raise NoAnswer(REASONS.get(code, "nvml_error"), "nvmlInit answered %d" % code)

    def call(self, symbol, *args):
        """The function's code; 13, «function not found», where the library is older than the function."""
        try:
            function = getattr(self.library, symbol)
        except AttributeError:
            return 13
        return function(*args)

    def must(self, symbol, *args):
        """Call what everything else depends on."""
        code = self.call(symbol, *args)
        if code:
            raise NoAnswer(REASONS.get(code, "nvml_error"), "%s answered %d" % (symbol, code))

    def number(self, symbol, *args, **kind):
        """One number: an unsigned int unless told otherwise."""
        out = kind.get("of", self.ctypes.c_uint)()
        code = self.call(symbol, *(args + (self.ctypes.byref(out),)))
        return no(code) if code else out.value

    def numbers(self, count, symbol, *args):
        """Several unsigned ints that one call fills."""
        out = [self.ctypes.c_uint() for _ in range(count)]
        code = self.call(symbol, *(args + tuple(self.ctypes.byref(one) for one in out)))
        return no(code) if code else [one.value for one in out]

    def text(self, symbol, *args):
        """One text."""
        out = self.ctypes.create_string_buffer(96)
        code = self.call(symbol, *(args + (out, 80)))
        return no(code) if code else out.value.decode("ascii", "replace")

    def words(self, symbol, handle, layout, size, version=None):
        """The fields of a structure, by struct's layout; a version goes into its first word."""
        import struct

        out = (self.ctypes.c_uint64 * ((size + 7) // 8))()  # aligned as the library expects
        if version is not None:
            self.ctypes.cast(out, self.ctypes.POINTER(self.ctypes.c_uint))[0] = size | version << 24
        code = self.call(symbol, handle, self.ctypes.byref(out))
        return no(code) if code else list(struct.unpack_from(layout, bytes(bytearray(out)[:size])))

    def everything(self):
        """The answer of the read."""
        count = self.ctypes.c_uint()
        self.must("nvmlDeviceGetCount_v2", self.ctypes.byref(count))
        cuda = self.number("nvmlSystemGetCudaDriverVersion_v2", of=self.ctypes.c_int)
        handles, rows = {}, []
        for index in range(count.value):
            row = {"index": index}
            rows.append(row)
            handle = self.ctypes.c_void_p()
            code = self.call("nvmlDeviceGetHandleByIndex_v2", index, self.ctypes.byref(handle))
            lost = code or self.describe(handle, row)
            if lost:
                row.update(
                    no=REASONS.get(lost, "nvml_error"), why="GPU %d answered %d" % (index, lost)
                )
            else:
                handles[index] = handle
        self.sample(handles, rows)
        self.pairs(handles, rows)
        return {"driver": self.text("nvmlSystemGetDriverVersion"), "cuda": cuda, "gpus": rows}

    def describe(self, handle, row):
        """All single fields of one GPU; the code where it is lost."""
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
            newer = self.words("nvmlDeviceGetTemperatureV", handle, "=8xi", 12, 1)
            row["temperature"] = row["temperature"] if refused(newer) else newer[0]
        row["remap"] = self.numbers(4, "nvmlDeviceGetRemappedRows", handle)
        row["remap_banks"] = self.words("nvmlDeviceGetRowRemapperHistogram", handle, "=5I", 20)
        row["sram"] = self.words("nvmlDeviceGetSramEccErrorStatus", handle, "=96xI", 104, 1)
        row["margin"] = self.words("nvmlDeviceGetMarginTemperature", handle, "=4xi", 8, 1)
        row["memory_temperature"] = self.field(handle, MEMORY_TEMPERATURE)
        for field, counter in (("ecc_volatile", 0), ("ecc_aggregate", 1)):
            row[field] = self.number(
                "nvmlDeviceGetTotalEccErrors", handle, 1, counter, of=self.ctypes.c_uint64
            )
        row["memory"] = self.memory(handle)
        row["processes"] = self.processes(handle)
        row["links"] = self.links(handle)
        row["fabric"] = self.fabric(handle)
        started = time.monotonic()
        self.number("nvmlDeviceGetTemperature", handle, 0)
        row["seconds"] = round(time.monotonic() - started, 4)
        return 0

    def pci(self, symbol, *args):
        """The address out of nvmlPciInfo_t (68 bytes), in which the 32 bytes of busId stand last."""
        out = (self.ctypes.c_uint * 17)()
        code = self.call(symbol, *(args + (self.ctypes.byref(out),)))
        return (
            no(code)
            if code
            else bytes(bytearray(out)[36:68]).split(b"\0")[0].decode("ascii", "replace").lower()
        )

    def field(self, handle, number):
        """One unsigned int of nvmlFieldValue_t: id, scope, two 64-bit times, type, code, value."""
        out = (self.ctypes.c_uint64 * 5)()
        out[0] = number
        code = self.call("nvmlDeviceGetFieldValues", handle, 1, self.ctypes.byref(out))
        code = code or out[3] >> 32
        return no(code) if code else out[4] & 0xFFFFFFFF

    def memory(self, handle):
        """[total, reserved by the driver, used by others] in bytes; None as reserved where it is part of used."""
        found = self.words("nvmlDeviceGetMemoryInfo_v2", handle, "=8x4Q", 40, 2)
        if not refused(found):
            return [found[0], found[1], found[3]]
        found = self.words("nvmlDeviceGetMemoryInfo", handle, "=3Q", 24)
        return found if refused(found) else [found[0], None, found[2]]

    def processes(self, handle):
        """[pid, bytes, name] of what computes there; the name is None where /proc knows no such process."""
        import struct

        for symbol in (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetComputeRunningProcesses_v2",
        ):
            room = 64
            for _ in range(3):  # it answers 7 and the number where there are more
                count, out = self.ctypes.c_uint(room), (self.ctypes.c_uint64 * (3 * room))()
                code = self.call(symbol, handle, self.ctypes.byref(count), self.ctypes.byref(out))
                if code != 7:
                    break
                room = min(count.value + 16, 1024)
            if code != 13:
                break
        if code:
            return no(code)
        rows = struct.iter_unpack("=I4xQ8x", bytes(bytearray(out)[: 24 * count.value]))
        return [[pid, used, name_of(pid)] for pid, used in rows]

    def links(self, handle):
        """[link, up, type and address of the other end] for every link that this GPU has."""
        found = []
        for link in range(MAX_LINKS):
            up = self.number("nvmlDeviceGetNvLinkState", handle, link)
            if up in (["no", "not_applicable"], ["no", "nvml_error", 2]):
                if link == 0 or up[1] == "nvml_error":  # no NVLink at all, or past the last one
                    break
                continue
            if isinstance(up, list):
                return up
            far = None
            if up:
                kind = self.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
                far = [kind, self.pci("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link)]
            found.append([link, up, far])
        return found

    def fabric(self, handle):
        """[state, status, clique, health mask, summary] of the fabric; older libraries know neither of the last."""
        for version, size, layout in ((3, 40, "=4x16xiIB3xIB3x"), (2, 36, "=4x16xiIB3xI")):
            found = self.words("nvmlDeviceGetGpuFabricInfoV", handle, layout, size, version)
            if not refused(found):
                status, clique, state, health = found[:4]
                return [state, status, clique, health, found[4] if len(found) > 4 else None]
        found = self.words("nvmlDeviceGetGpuFabricInfo", handle, "=16xiIB3x", 28)
        return found if refused(found) else [found[2], found[0], found[1], None, None]

    def sample(self, handles, rows):
        """The clocks event reasons some times over: a bit that is seen once may be a change of clocks."""
        for number in range(SAMPLES):
            if number and handles:
                time.sleep(PAUSE)
            for index, handle in handles.items():
                bits = no(13)
                for symbol in (
                    "nvmlDeviceGetCurrentClocksEventReasons",
                    "nvmlDeviceGetCurrentClocksThrottleReasons",
                ):
                    if bits == no(13):
                        bits = self.number(symbol, handle, of=self.ctypes.c_uint64)
                rows[index].setdefault("throttle", []).append(bits)

    def pairs(self, handles, rows):
        """What NVLink says of each pair: 0 is fine (nvmlGpuP2PStatus_t)."""
        for index, handle in handles.items():
            rows[index]["p2p"] = [
                [other, self.number("nvmlDeviceGetP2PStatus", handle, far, OVER_NVLINK)]
                for other, far in handles.items()
                if other > index
            ]


def refused(value):
    """Whether a field is a reason."""
    return isinstance(value, list) and value[0] == "no"


def no(code):
    """A field that has no value, and why; the code itself where there is no word for it."""
    return ["no", REASONS[code]] if code in REASONS else ["no", "nvml_error", code]


def name_of(pid):
    """A process's short name."""
    try:
        return read_file("/proc/%d/comm" % pid).strip()
    except (OSError, NoAnswer):
        return None


def install(agent):
    """Register the readers of this part."""
    offer({"nvml": read_nvml}, instant=lambda: not has_library(NVML))
