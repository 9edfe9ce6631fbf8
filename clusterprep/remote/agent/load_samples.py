"""Samples of this node while a job loads it: GPUs, and links of GPUs and network cards.

A child process takes them, as NVML is other people's code and a card's firmware may not answer. It
keeps the library open: to start it for each sample could cost a second. Samples stay here until
they are asked for, and of many every second one is dropped, so that what the controller gets is
small however long the job takes.

Operations: `sample` {interval} starts the child, `sampled` {} ends it and returns {"described":
GPUs by index, "why": why there are none, "totals": [at first, at last], "samples": […]}.
"""

import os
import select
import time

from clusterprep.remote.agent.devices import LINK, PCI, read_all_small, read_small
from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.look import kill_group
from clusterprep.remote.agent.nvml import NUMBERS, TEXTS, open_nvml, refused
from clusterprep.remote.agent.readers import NoAnswer, names_in

MOST = 64  # samples that are kept
LEAST_INTERVAL = 0.2  # seconds
END_LIMIT = 3.0  # seconds that the child gets for its last sample
MAX_DEVICES = 64  # whose links are sampled
# Of each GPU once, in MHz and °C.
LIMITS = {"clock_max": NUMBERS["clock_max_graphics"], "slowdown": NUMBERS["slowdown"]}
# What NVML tells of a GPU at one moment. Utilisation in %, clocks in MHz, °C, mW.
SAMPLED = (
    "utilization",
    "state",
    "clock",
    "clock_memory",
    "throttle",
    "temperature",
    "power",
)


# ---------------------------------------------------------------- the child


class SampledGpus(object):
    """The GPUs that NVML shows; `why` says why there are none, None if it shows some."""

    def __init__(self):
        self.handles = {}
        self.described = {}
        self.why = None
        try:
            self.nvml = open_nvml()
            if self.nvml is None:
                raise NoAnswer("missing_tool", "there is no NVML library")
            self.handles, rows = self.nvml.handles()
        except NoAnswer as no:
            self.why = [no.reason, no.why]
            return
        for row in rows:
            index = row["index"]
            described = row
            if index in self.handles:
                described = self._describe(self.handles[index])
            self.described[str(index)] = described

    def _describe(self, handle):
        row = self.nvml.numbers_of(handle, LIMITS)
        row["pci"] = self.nvml.pci("nvmlDeviceGetPciInfo_v3", handle)
        row["model"] = self.nvml.text(TEXTS["name"], handle)
        return {field: known(value) for field, value in row.items()}

    def sample(self):
        """Return a row for each GPU: SAMPLED in its order, None for what NVML refuses."""
        rows = {}
        for index, handle in self.handles.items():
            row = self.nvml.changing(handle)
            rows[str(index)] = [known(row[field]) for field in SAMPLED]
        return rows

    def totals(self):
        """Return what of each GPU only grows."""
        rows = []
        for index, handle in self.handles.items():
            rows.append(dict(self.nvml.totals(handle), index=index))
        return rows


def known(value):
    """Return a value, None if NVML refused it."""
    return None if refused(value) else value


def _linked_devices():
    """Return the addresses of GPUs and network controllers."""
    addresses = []
    for address in names_in(PCI):
        kind = read_small(PCI + address + "/class") or ""
        if kind[:4] in ("0x02", "0x03"):
            addresses.append(address)
    return addresses[:MAX_DEVICES]


def take_samples(control, sink, interval):
    """Write samples to `sink`, one line each, until `control` is closed at its other end."""
    parent = os.getppid()
    gpus = SampledGpus()
    devices = _linked_devices()
    began = time.monotonic()

    def write(body):
        line = dumps(body).encode("ascii") + b"\n"
        while line:
            line = line[os.write(sink, line) :]

    def sample():
        links = {}
        for address in devices:
            links[address] = read_all_small(PCI + address, LINK)
        return {"t": time.monotonic() - began, "links": links, "gpus": gpus.sample()}

    write({"described": gpus.described, "why": gpus.why, "totals": gpus.totals()})
    while os.getppid() == parent:
        write(sample())
        ended, _, _ = select.select([control], [], [], interval)
        if ended:
            write(sample())
            write({"totals": gpus.totals()})
            return


# ---------------------------------------------------------------- the agent's side


class Sampling(object):
    """The child that takes samples, and what it has said."""

    def __init__(self, agent, interval):
        self.agent = agent
        self.described, self.why = {}, ["garbled", "the sampling process ended early"]
        self.totals = []  # at the start, and at the end
        self.samples = []
        self._stride, self._skipped = 1, 0  # each so many-th sample is kept
        self._last = None
        self._line = b""
        self._request = None
        self._until = 0.0
        read_end, control = os.pipe()
        self._fd, sink = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _become_child(read_end, sink, (control, self._fd), interval)
        os.close(read_end)
        os.close(sink)
        self._control = control
        agent.watch(self._fd, self._hear)
        agent.endings.append(self.close)

    def _hear(self, data):
        if not data:
            self._finish()
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()
        for line in lines:
            self._take(loads(line.decode("ascii")))

    def _take(self, said):
        if "totals" in said:
            self.totals.append(said["totals"])
        if "described" in said:
            self.described, self.why = said["described"], said["why"]
        if "t" not in said:
            return
        self._last = said
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.samples.append(said)
        if len(self.samples) > MOST:
            del self.samples[1::2]
            self._stride *= 2

    def end(self, request):
        """Ask the child for its last sample; the answer is sent once it has come."""
        self._request = request
        self._until = time.monotonic() + END_LIMIT
        if self._pid is None:  # it has ended by itself
            self._answer()
            return
        self._close_control()
        self.agent.polls.append(self._poll)

    def _poll(self, now):
        if now > self._until:
            self.why = ["hung", "no sample within %g s" % END_LIMIT]
            self._finish()

    def _finish(self):
        self.close()
        if self._request is not None:
            self._answer()

    def _answer(self):
        if self._poll in self.agent.polls:
            self.agent.polls.remove(self._poll)
        request, self._request = self._request, None
        samples = self.samples
        if self._last is not None and self._last is not samples[-1]:
            samples = samples + [self._last]
        self.agent.answer(
            request,
            described=self.described,
            why=self.why,
            totals=self.totals,
            samples=without_repetition(samples),
        )

    def _close_control(self):
        if self._control is not None:
            os.close(self._control)
            self._control = None

    def close(self):
        """End the child, whatever it does."""
        if self._pid is None:
            return
        self.agent.unwatch(self._fd)
        os.close(self._fd)
        self._close_control()
        kill_group(self._pid)
        self._pid = None


def without_repetition(samples):
    """Return the samples, each with the links alone that differ from those of the one before."""
    rows = []
    known = {}
    for sample in samples:
        links = {}
        for address, link in sample["links"].items():
            if known.get(address) != link:
                links[address] = link
        known.update(links)
        rows.append(dict(sample, links=links))
    return rows


def _become_child(control, sink, others, interval):
    try:
        os.setsid()
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        for fd in others:
            os.close(fd)
        for fd in (0, 1, 2):  # the channel belongs to the agent alone
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        take_samples(control, sink, interval)
    finally:
        os._exit(0)


class Samplings(object):
    """The operations of this part, and the one sampling that can run at a time."""

    def __init__(self):
        self._sampling = None

    def sample(self, agent, request):
        if self._sampling is not None:
            self._sampling.close()
        interval = max(float(request["interval"]), LEAST_INTERVAL)
        self._sampling = Sampling(agent, interval)
        return {}

    def sampled(self, agent, request):
        sampling, self._sampling = self._sampling, None
        if sampling is None:
            return {"no": "not_asked", "why": "no samples were asked for"}
        sampling.end(request)
        return None


def install(agent):
    """Register the operations of this part."""
    samplings = Samplings()
    agent.ops.update(sample=samplings.sample, sampled=samplings.sampled)
