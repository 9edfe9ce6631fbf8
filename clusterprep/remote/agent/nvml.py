"""Reads all that the driver reports of all GPUs, with NVIDIA's management library and ctypes.

Each field is its value or ["no", reason]; a GPU that does not answer hides nothing of the others.
"""

import time

from clusterprep.remote.agent.readers import NoAnswer, has_library, names_in, offer, read_file

NVML = b"libnvidia-ml.so.1"
# Flag of nvmlInitWithFlags: do not fail without GPUs. Not 2, «do not attach GPUs»: all of them are
# asked here, and nvml.h does not say what a GPU that is not attached answers.
NO_GPUS = 1
SAMPLES, PAUSE = 3, 0.05  # of the clocks event reasons, and the seconds between them
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
# Values of nvmlReturn_t.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
CORRECTED, UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
PROCESS_SIZE, LONG_PROCESS_SIZE = 24, 32  # bytes of nvmlProcessInfo_t
OVER_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
MOST_PROCESSES = 4096  # of one GPU that are listed

# Values of nvmlReturn_t that have a reason of their own: nvml.h, enum nvmlReturn_enum.
REASONS = {
    3: "not_applicable",
    4: "denied",
    8: "power_cables",
    9: "no_driver",
    11: "interrupts",
    12: "missing_tool",
    13: "missing_tool",
    14: "corrupted_inforom",
    15: "gpu_lost",
    16: "reset_required",
    17: "denied",
    18: "driver_library_mismatch",
}
# Of these, the ones that mean the same where the library does not start or lists no GPUs; all other
# codes are then NOT_STARTED, since a call that everything depends on cannot «not apply».
GENERAL = (4, 9, 15, 16, 17, 18)
NOT_STARTED = "nvml_not_started"

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
    "slowdown": ("nvmlDeviceGetTemperatureThreshold", 1),
    "state": ("nvmlDeviceGetPerformanceState",),
    "clock": ("nvmlDeviceGetClockInfo", 1),
}
PAIRS = {
    "capability": "nvmlDeviceGetCudaComputeCapability",
    "ecc": "nvmlDeviceGetEccMode",
    "mig": "nvmlDeviceGetMigMode",
}
# Fields of nvmlDeviceGetFieldValues: NVML_FI_DEV_MEMORY_TEMP, RETIRED_SBE, RETIRED_DBE,
# RETIRED_PENDING, GET_GPU_RECOVERY_ACTION.
FIELDS = {
    "memory_temperature": 82,
    "retired_single": 29,
    "retired_double": 30,
    "retired_pending": 31,
    "recovery": 230,
}
# What changes while a GPU works: its P-state, clocks in MHz, power in mW.
CHANGING = {
    "state": NUMBERS["state"],
    "clock": NUMBERS["clock"],
    "clock_memory": ("nvmlDeviceGetClockInfo", 2),
    "power": ("nvmlDeviceGetPowerUsage",),
}
# Nanoseconds for which a limit held the clocks down, since the driver was loaded:
# NVML_FI_DEV_PERF_POLICY_*. The newer NVML_FI_DEV_CLOCKS_EVENT_REASON_* have changed their
# numbers: 251 to 253 in drivers 575 and 580.65, 269 to 271 from 580.82 on.
VIOLATIONS = {
    "power": 74,
    "thermal": 75,
    "board_limit": 77,
    "reliability": 79,
}
# Errors of a link since the driver was loaded, by NVML_FI_DEV_NVLINK_*: up to Hopper
# (ERROR_DL_REPLAY and the two after it), and from Blackwell on (COUNT_*).
LINK_ERRORS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed": 206,
    "overrun": 207,
    "received": 208,
    "integrity": 211,
    "discarded": 212,
    "recovered": 213,
    "not_recovered": 214,
    "effective": 219,
    "symbol": 221,
}
LINK_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED, MB/s
# nvmlNvLinkErrorCounter_t, for drivers that do not know the fields 161 to 163; data and flow
# control have a counter of CRC errors each.
OLDER_LINK_ERRORS = {
    "replay": (0,),
    "recovery": (1,),
    "crc": (2, 3),
}


def read_nvml():
    """Return driver, CUDA of the driver and GPUs.

    None if this node has no NVML library, and no GPUs that a driver has.
    """
    nvml = open_nvml()
    if nvml is None:
        missing_library()
        return None
    try:
        return nvml.everything()
    finally:
        nvml.close()


def missing_library():
    """Raise NoAnswer if a driver gives this node GPUs.

    /proc/driver is that of the host in every container; /dev has only the GPUs that it was given.
    """
    bound = names_in("/proc/driver/nvidia/gpus")
    given = [name for name in names_in("/dev") if name[:6] == "nvidia" and name[6:].isdigit()]
    if bound and given:
        why = "no libnvidia-ml.so.1 here, although the driver has GPUs: %d" % len(bound)
        raise NoAnswer("no_nvml_library", why)


def open_nvml():
    """Return the library, initialised; None if this node has none. Raises NoAnswer.

    For samples over time: `handles, _ = nvml.handles()`, then `nvml.changing(handle)` of each GPU
    as often as wanted, `nvml.totals(handle)` at first and at last, and `nvml.close()`. Calls may
    hang with the driver, so all this belongs into a process of its own.
    """
    if not has_library(NVML):
        return None
    import ctypes

    try:
        nvml = NvmlLibrary(ctypes.CDLL("libnvidia-ml.so.1"), ctypes)
    except OSError as error:
        raise NoAnswer("missing_tool", str(error))
    nvml.start()
    return nvml


class NvmlLibrary(object):
    """The library, and how its functions return texts, numbers and structures."""

    def __init__(self, library, ctypes, pause=PAUSE):
        self.library = library
        self.ctypes = ctypes
        self.pause = pause

    def start(self):
        """Initialise the library; releases before 418 know no flags."""
        code = self.call("nvmlInitWithFlags", NO_GPUS)
        if code == FUNCTION_NOT_FOUND:
            code = self.call("nvmlInit_v2")
        if code:
            raise NoAnswer(general_reason(code), "nvmlInit answered %d" % code)

    def close(self):
        """Give back what `start` took."""
        self.call("nvmlShutdown")

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
            raise NoAnswer(general_reason(code), "%s answered %d" % (symbol, code))

    def number(self, symbol, *args, **kind):
        """Return one number: an unsigned int, or the type `of`."""
        output = kind.get("of", self.ctypes.c_uint)()
        code = self.call_into(symbol, args, [output])
        return no(code) if code else output.value

    def numbers_of(self, handle, calls):
        """Return one number of a GPU for each field of `calls`, such as NUMBERS."""
        row = {}
        for field, call in calls.items():
            row[field] = self.number(call[0], handle, *call[1:])
        return row

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
        handles, rows = self.handles()
        cuda = self.number("nvmlSystemGetCudaDriverVersion_v2", of=self.ctypes.c_int)
        for index, handle in list(handles.items()):
            if not self.describe(handle, rows[index]):
                rows[index] = {
                    "index": index,
                    "no": "gpu_lost",
                    "why": "GPU %d answered 15" % index,
                }
                del handles[index]
        self.sample(handles, rows)
        self.pairs(handles, rows)
        driver = self.text("nvmlSystemGetDriverVersion")
        return {
            "driver": driver,
            "cuda": cuda,
            "gpus": rows,
        }

    def handles(self):
        """Return the handle of each GPU by index, and a row for each GPU that is listed.

        The row of a GPU that gets no handle says why.
        """
        count = self.ctypes.c_uint()
        self.must("nvmlDeviceGetCount_v2", self.ctypes.byref(count))
        handles = {}
        rows = []
        for index in range(count.value):
            row = {"index": index}
            rows.append(row)
            handle = self.ctypes.c_void_p()
            code = self.call_into("nvmlDeviceGetHandleByIndex_v2", [index], [handle])
            if code:
                row["no"] = reason_of(code)
                row["why"] = "GPU %d answered %d" % (index, code)
            else:
                handles[index] = handle
        return handles, rows

    def describe(self, handle, row):
        """Add all fields of one GPU to its row; return False if the GPU is lost."""
        for field, symbol in TEXTS.items():
            row[field] = self.text(symbol, handle)
            if row[field] == ["no", "gpu_lost"]:
                return False
        row["gsp"] = self.text("nvmlDeviceGetGspFirmwareVersion", handle)
        row["pci"] = self.pci("nvmlDeviceGetPciInfo_v3", handle)
        row.update(self.numbers_of(handle, NUMBERS))
        for field, symbol in PAIRS.items():
            row[field] = self.numbers(2, symbol, handle)
        row["temperature"] = self.temperature(handle)
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
        wanted = [(number, 0) for number in FIELDS.values()]
        row.update(zip(FIELDS, self.fields(handle, wanted)))
        row["ecc_aggregate"] = self.ecc_errors(handle, UNCORRECTED, 1)
        row["ecc_corrected_ever"] = self.ecc_errors(handle, CORRECTED, 1)
        row["memory"] = self.memory(handle)
        bar = self.structure("nvmlDeviceGetBAR1MemoryInfo", handle, "=Q16x", 24)
        row["bar"] = bar if refused(bar) else bar[0]
        row["processes"] = self.processes(handle)
        row["utilization"] = self.utilization(handle)
        row["links"] = self.links(handle)
        links = links_up(row["links"])
        row["link_speeds"] = folded(self.fields(handle, [(LINK_SPEED, link) for link in links]))
        row.update(self.counters(handle, links))
        row["fabric"] = self.fabric(handle)
        row["cluster"] = self.cluster(handle)
        started = time.monotonic()
        self.number("nvmlDeviceGetTemperature", handle, 0)
        seconds = time.monotonic() - started
        row["seconds"] = round(seconds, 4)
        return True

    def changing(self, handle):
        """Return what changes from one second to the next while one GPU works: seven calls."""
        row = self.numbers_of(handle, CHANGING)
        row["utilization"] = self.utilization(handle)
        row["throttle"] = self.clocks_event_reasons(handle)
        row["temperature"] = self.temperature(handle)
        return row

    def totals(self, handle):
        """Return what of one GPU only grows, and which one it is, as `describe` names it."""
        row = {"uuid": self.text(TEXTS["uuid"], handle)}
        row["links"] = self.links(handle, with_ends=False)
        row["pcie_replays"] = self.number("nvmlDeviceGetPcieReplayCounter", handle)
        row.update(self.counters(handle, links_up(row["links"])))
        return row

    def counters(self, handle, links):
        """Return what was counted since the driver was loaded, links' errors of these links."""
        return {
            "ecc_volatile": self.ecc_errors(handle, UNCORRECTED, 0),
            "ecc_corrected": self.ecc_errors(handle, CORRECTED, 0),
            "violations": self.violations(handle),
            "link_errors": self.link_errors(handle, links),
        }

    def temperature(self, handle):
        """Return the chip's temperature in °C; API 13 deprecates the older of both functions."""
        degrees = self.number("nvmlDeviceGetTemperature", handle, 0)
        if not refused(degrees) or is_final(degrees):
            return degrees
        newer = self.structure(
            "nvmlDeviceGetTemperatureV",
            handle,
            "=8xi",
            12,
            1,
        )
        return degrees if refused(newer) else newer[0]

    def ecc_errors(self, handle, kind, counter):
        """Return the ECC errors since the driver was loaded (0) or of all time (1)."""
        count = self.ctypes.c_uint64
        return self.number(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            kind,
            counter,
            of=count,
        )

    def violations(self, handle):
        """Return the nanoseconds for which each limit held the clocks down, by its name."""
        values = self.fields(handle, [(number, 0) for number in VIOLATIONS.values()])
        return dict(zip(VIOLATIONS, values))

    def link_errors(self, handle, links):
        """Return the errors of these links by kind: of each in their order, folded.

        Kinds that this generation of NVLink does not count are left out. If no kind is left
        although there are links, the reason is returned instead.
        """
        if not links:
            return {}
        # The first link tells which kinds there are: each field takes the driver some time.
        first = self.fields(handle, [(number, links[0]) for number in LINK_ERRORS.values()])
        kinds = [kind for kind, count in zip(LINK_ERRORS, first) if not is_unknown_here(count)]
        errors = {}
        for kind in kinds:
            counts = self.fields(handle, [(LINK_ERRORS[kind], link) for link in links])
            errors[kind] = folded(counts)
        return errors or self.older_link_errors(handle, links)

    def older_link_errors(self, handle, links):
        """Return the same by the function that was there before the fields."""
        errors = {}
        for kind, counters in OLDER_LINK_ERRORS.items():
            counts = [self.link_error(handle, link, counters) for link in links]
            if all(count == no(NOT_SUPPORTED) for count in counts):
                return no(NOT_SUPPORTED)
            errors[kind] = folded(counts)
        return errors

    def link_error(self, handle, link, counters):
        """Return the sum of some error counters of one link."""
        total = 0
        for counter in counters:
            count = self.number(
                "nvmlDeviceGetNvLinkErrorCounter",
                handle,
                link,
                counter,
                of=self.ctypes.c_uint64,
            )
            if refused(count):
                return count
            total += count
        return total

    def pci(self, symbol, *args):
        """Return the address in nvmlPciInfo_t (68 bytes), of which busId is the last 32 bytes."""
        output = (self.ctypes.c_uint * 17)()
        code = self.call_into(symbol, args, [output])
        if code:
            return no(code)
        bus_id = bytes(bytearray(output)[36:68]).split(b"\0")[0]
        return bus_id.decode("ascii", "replace").lower()

    def fields(self, handle, wanted):
        """Return the values of fields that one call brings; `wanted` has (number, scope) of each.

        The scope is a link, and 0 for fields of the whole GPU. nvmlFieldValue_t is id, scope, two
        64-bit times, type, code and value. Where the call is refused as a whole for one field that
        the library does not know, each is asked by itself.
        """
        if not wanted:
            return []
        output = (self.ctypes.c_uint64 * (5 * len(wanted)))()
        for place, (number, scope) in enumerate(wanted):
            output[5 * place] = number | scope << 32
        code = self.call_into("nvmlDeviceGetFieldValues", [handle, len(wanted)], [output])
        if code in (INVALID_ARGUMENT, NOT_SUPPORTED) and len(wanted) > 1:
            return [self.fields(handle, [one])[0] for one in wanted]
        if code:
            return [no(code)] * len(wanted)
        values = []
        for place in range(len(wanted)):
            kind, code = output[5 * place + 3] & 0xFFFFFFFF, output[5 * place + 3] >> 32
            values.append(no(code) if code else field_value(kind, output[5 * place + 4]))
        return values

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
        if is_final(sizes):
            return sizes
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
        symbol = "nvmlDeviceGetComputeRunningProcesses_v3"
        size = PROCESS_SIZE
        if self.has_long_processes():
            size = LONG_PROCESS_SIZE
        code, data = self._processes(symbol, handle, size)
        if code == FUNCTION_NOT_FOUND:
            size = PROCESS_SIZE
            code, data = self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle, size)
        if code:
            return no(code)
        import struct

        rows = []
        for place in range(0, len(data), size):
            pid, used = struct.unpack_from("=I4xQ", data, place)
            rows.append([pid, used, name_of(pid)])
        return rows

    def has_long_processes(self):
        """Return whether this library's nvmlProcessInfo_t has 32 bytes instead of 24.

        It had from driver 535.43 to 535.86, without another version of the function. Only those
        know the first of these functions and not the second.
        """
        return self.has("nvmlDeviceGetConfComputeMemSizeInfo") and not self.has(
            "nvmlDeviceGetRunningProcessDetailList"
        )

    def has(self, symbol):
        """Return whether the library has a function."""
        try:
            getattr(self.library, symbol)
        except AttributeError:
            return False
        return True

    def _processes(self, symbol, handle, size):
        """Return the code, and the bytes of nvmlProcessInfo_t, of `size` bytes each."""
        room = 64
        # Where there are more, it answers their number, which may grow meanwhile.
        for _ in range(3):
            count = self.ctypes.c_uint(room)
            # Room for the longer kind, whichever it is: the library counts structures, not bytes.
            output = (self.ctypes.c_uint64 * (LONG_PROCESS_SIZE // 8 * room))()
            code = self.call_into(symbol, [handle], [count, output])
            if code != INSUFFICIENT_SIZE:
                break
            room = min(count.value + 16, MOST_PROCESSES)
        listed = min(count.value, room)
        return code, bytes(bytearray(output)[: size * listed])

    def links(self, handle, with_ends=True):
        """Return [link, up, type and address of the other end] for every link that this GPU has."""
        rows = []
        for link in range(MAX_LINKS):
            up = self.number("nvmlDeviceGetNvLinkState", handle, link)
            if up == no(INVALID_ARGUMENT):  # past the last link
                break
            if up == no(NOT_SUPPORTED):
                if link == 0:  # no NVLink at all
                    break
                continue
            if isinstance(up, list):
                return up
            far = None
            if up and with_ends:
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
            if is_final(info):
                return info
            if refused(info):
                continue
            status, clique, state, health = info[:4]
            summary = info[4] if len(info) > 4 else None
            return [state, status, clique, health, summary]
        # Of the 64 cliques that the newest structure has room for, the first is what it was before.
        info = self.structure("nvmlDeviceGetGpuFabricInfo_v4", handle, "=16xi4xI508xB3xIB3x", 548)
        if is_final(info):
            return info
        if not refused(info):
            status, clique, state, health, summary = info
            return [state, status, clique, health, summary]
        info = self.structure("nvmlDeviceGetGpuFabricInfo", handle, "=16xiIB3x", 28)
        if refused(info):
            return info
        status, clique, state = info
        return [state, status, clique, None, None]

    def cluster(self, handle):
        """Return the UUID of the NVLink cluster as 32 hexadecimal digits.

        It stands in front of what `fabric` reads; zeros where NVLink does not leave the machine.
        """
        import binascii

        newest = "nvmlDeviceGetGpuFabricInfoV"
        uuid = self.structure(newest, handle, "=4x16s", 40, 3)
        if refused(uuid):
            uuid = self.structure(newest, handle, "=4x16s", 36, 2)
        if refused(uuid):
            uuid = self.structure("nvmlDeviceGetGpuFabricInfo_v4", handle, "=16s", 548)
        if refused(uuid):
            uuid = self.structure("nvmlDeviceGetGpuFabricInfo", handle, "=16s", 28)
        return uuid if refused(uuid) else binascii.hexlify(uuid[0]).decode("ascii")

    def sample(self, handles, rows):
        """Add the clocks event reasons of several looks.

        A bit that is seen only once may be an ordinary change of clocks.
        """
        for number in range(SAMPLES):
            if number and handles:
                time.sleep(self.pause)
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


def general_reason(code):
    """Return the reason why nothing at all is known."""
    return REASONS[code] if code in GENERAL else NOT_STARTED


def reason_of(code):
    """Return the reason why a GPU gets no handle; none is «not applicable»."""
    return "nvml_error" if code == NOT_SUPPORTED else REASONS.get(code, "nvml_error")


def refused(value):
    """Return whether a field is a reason."""
    return isinstance(value, list) and value[:1] == ["no"]


def is_final(value):
    """Return whether a field says that its GPU is lost or needs a reset: no other call helps."""
    return value in (["no", "gpu_lost"], ["no", "reset_required"])


def no(code):
    """Return a field without a value: its reason, and the code if that has no reason of its own."""
    return ["no", REASONS[code]] if code in REASONS else ["no", "nvml_error", code]


def field_value(kind, bits):
    """Return nvmlValue_t of a type of nvmlValueType_t, given its 64 bits; None for a float."""
    if kind in (1, 5):  # 32 bits, unsigned or signed
        bits &= 0xFFFFFFFF
        return bits - (1 << 32) if kind == 5 and bits >> 31 else bits
    if kind == 6:
        return bits & 0xFFFF
    if kind == 4 and bits >> 63:
        return bits - (1 << 64)
    return None if kind == 0 else bits


def is_unknown_here(value):
    """Return whether a field is one that this driver, or this GPU, does not have."""
    return value in (no(NOT_SUPPORTED), no(INVALID_ARGUMENT), no(FUNCTION_NOT_FOUND))


def folded(values):
    """Return the values of several links, or one value if it is that of all of them."""
    if values and all(value == values[0] for value in values):
        return values[0]
    return values


def links_up(rows):
    """Return the numbers of the links that are up, of the rows of `links`."""
    if refused(rows):
        return []
    return [row[0] for row in rows if row[1]]


def name_of(pid):
    """Return the short name of a process; None if it is gone."""
    try:
        return read_file("/proc/%d/comm" % pid).strip()
    except (OSError, NoAnswer):
        return None


def install(agent):
    """Register the readers of this part."""
    offer({"nvml": read_nvml}, instant=lambda: not has_library(NVML))
