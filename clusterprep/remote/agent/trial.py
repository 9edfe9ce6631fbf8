"""One rank of the trial: the program that the job's own python runs to show that collectives finish and are exact.

The agent passes this source, and then one line of JSON, through a socket; on the same socket the rank says line by
line how far it has come, so that a dead collective never blinds the report. The rank waits for its task once torch is
imported and its device is bound: who it is among which others, and what they do together. Then it waits for «part»,
after which another task may come, or for «end»: who leaves early looks to its peers like a second fault.
"""

import datetime
import inspect
import json
import os
import signal
import sys
import time

from clusterprep.remote.agent.belongings import belongings
from clusterprep.remote.agent.collectives import RankContext, measure

TEXT = 2048  # characters of an exception that travel
LATER = (
    30.0  # seconds that torch's own watchdog waits longer than we do; it would abort the process
)
EXIT_NO_TORCH = 3
EXIT_FORSAKEN = 5


class RankChannel(object):
    """The socket to the agent: lines of JSON out, single words in."""

    def __init__(self, fd):
        self._in, self._out = os.fdopen(os.dup(fd), "rb"), fd

    def hear(self):
        """The next line; ends this process when the agent is gone."""
        line = self._in.readline()
        if not line:
            os._exit(EXIT_FORSAKEN)
        return line.decode("ascii").strip()

    def tell(self, what, **data):
        data.update(what=what, t=time.monotonic())
        line = json.dumps(data).encode("ascii") + b"\n"
        while line:
            line = line[os.write(self._out, line) :]


# ---------------------------------------------------------------- devices


class Cpu(object):
    """Collectives on memory of the host; they return when they are done."""

    name = "cpu"

    def __init__(self, torch, local_rank):
        self._torch = torch

    def bind(self):
        return None

    def timed(self, collective, limit):
        """Seconds of one collective; gloo raises by itself after the time limit of the group."""
        start = time.perf_counter()
        collective(async_op=False)
        return time.perf_counter() - start

    def group_options(self, limit):
        return {"timeout": datetime.timedelta(seconds=limit)}

    def barrier_options(self):
        return {}

    def room(self):
        """Bytes of memory that this rank may think of as its own; no guess where the kernel does not tell."""
        with open("/proc/meminfo") as source:
            rows = dict(line.split(":", 1) for line in source)
        return (
            int(rows.get("MemAvailable", "0 kB").split()[0])
            * 1024
            // int(os.environ["LOCAL_WORLD_SIZE"])
        )


class Cuda(object):
    """Collectives on one GPU; the host only looks whether they are done, so that it can give up."""

    def __init__(self, torch, local_rank, identify=None):
        self._torch = torch
        self._index, self._identify = local_rank, identify or identify_gpu
        self.name = "cuda:%d" % local_rank

    def bind(self):
        """Make the GPU current before anything else touches CUDA, and say which one it is."""
        self._torch.cuda.set_device(self._index)
        self._torch.zeros(1, device=self.name)
        return self._identify(self._index)

    def timed(self, collective, limit):
        """Seconds of one collective by the GPU's own clock. Raises after `limit` seconds."""
        start, end = [self._torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._torch.cuda.synchronize()
        start.record()
        collective(async_op=True).wait()  # makes the stream wait, not the host
        end.record()
        give_up = time.monotonic() + limit
        while not end.query():
            if time.monotonic() > give_up:
                raise RuntimeError("the collective did not finish within %g s" % limit)
            time.sleep(0.0002)
        return start.elapsed_time(end) / 1000.0

    def group_options(self, limit):
        """Eager connection where torch knows device_id (2.3 and later), so that init fails where the fault is."""
        options = {"timeout": datetime.timedelta(seconds=limit + LATER)}
        if "device_id" in inspect.signature(self._torch.distributed.init_process_group).parameters:
            options["device_id"] = self._torch.device(self.name)
        return options

    def barrier_options(self):
        return {"device_ids": [self._index]}

    def room(self):
        return self._torch.cuda.mem_get_info(self._index)[0]


def identify_gpu(ordinal):
    """UUID, PCI address and NUMA node of a visible GPU, asked of the driver: torch tells them only lately."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    device, uuid, pci = (
        ctypes.c_int(),
        ctypes.create_string_buffer(16),
        ctypes.create_string_buffer(32),
    )
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetPCIBusId(pci, 32, device)
    cuda.cuDeviceGetUuid(uuid, device)
    digits = "".join("%02x" % byte for byte in bytearray(uuid.raw))
    parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
    address = pci.value.decode("ascii").lower()
    return {
        "uuid": "GPU-" + "-".join(parts),
        "index": physical_index(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES")),
        "pci": address,
        "numa": numa_node(address),
    }


def physical_index(ordinal, visible):
    """The index on the node of the visible GPU number `ordinal`."""
    names = [name.strip() for name in visible.split(",")] if visible else []
    if ordinal < len(names) and names[ordinal].isdigit():
        return int(names[ordinal])
    return ordinal


def numa_node(address, root="/sys"):
    """The NUMA node of a PCI device, None where the kernel knows none (-1)."""
    try:
        with open("%s/bus/pci/devices/%s/numa_node" % (root, address)) as source:
            number = int(source.read())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


# ---------------------------------------------------------------- the life of a rank


class Rank(object):
    """One rank from import to the end; `stage` says where it is when something is raised."""

    def __init__(self, channel, config):
        self.channel, self.config = channel, config
        self.stage = "import"
        self._torch = self._device = None

    def get_ready(self):
        """Import torch and bind the device; whether the rank can go on."""
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            if getattr(error, "name", None) != "torch":
                raise
            self.channel.tell("no_torch", python=sys.executable, text=str(error)[:TEXT])
            return False
        self._torch = torch
        version = getattr(torch, "version", None)
        self.channel.tell(
            "imported", torch=torch.__version__, cuda=version.cuda, python=sys.executable
        )
        if not dist.is_available():
            raise RuntimeError("this torch was built without torch.distributed")
        self._show_belongings()
        return self._bind(version.cuda)

    def _show_belongings(self):
        """What has to be equal on all ranks is told before any of them waits for another."""
        self.stage = "belongings"
        for piece in belongings(self.config["same_files"]):
            self.channel.tell("holds", **piece)

    def _bind(self, cuda):
        self.stage = "device"
        if self.config["gpus"] and cuda is None:
            self.channel.tell(
                "no_cuda", torch=self._torch.__version__, text="torch is a build for CPUs only"
            )
            return False
        device = Cuda if self.config["backend"] == "nccl" else Cpu
        self._device = device(self._torch, int(os.environ["LOCAL_RANK"]))
        self.channel.tell("ready", gpu=self._device.bind(), nccl=self._nccl_version())
        return True

    def _nccl_version(self):
        if self.config["backend"] != "nccl":
            return None
        version = self._torch.cuda.nccl.version()
        return (
            ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)
        )

    def meet(self, task):
        """Reach the store, then the other ranks."""
        self.stage, dist = "store", self._torch.distributed
        rank, world, limit = task["rank"], task["world"], task["timeout"]
        store = dist.TCPStore(
            task["address"],
            task["port"],
            world,
            rank == 0,
            timeout=datetime.timedelta(seconds=limit),
            wait_for_workers=False,  # else rank 0 would not say that it arrived before all have
        )
        self.channel.tell("store")
        self.stage = "rendezvous"
        options = self._device.group_options(limit)
        dist.init_process_group(
            self.config["backend"], store=store, rank=rank, world_size=world, **options
        )
        self.channel.tell("joined")
        self.stage = "first collective"
        job = RankContext(self._torch, self._device, rank, world)
        job.spread(0.0, limit)
        self.channel.tell("met")
        return job

    def work(self, job, task):
        for step in task["steps"]:
            self.stage = "%(op)s of %(bytes)d bytes of %(dtype)s" % step
            measure(job, self.channel, step, task["timeout"])
        self.channel.tell("finished")

    def part(self):
        """Leave the group in order; nobody waits for it, the agent ends what does not end."""
        self._torch.distributed.destroy_process_group()


def live(channel, config):
    """The whole life of a rank; its exit code."""
    rank = Rank(channel, config)
    try:
        if not rank.get_ready():
            return EXIT_NO_TORCH
        word = channel.hear()
        while word != "end":
            task = json.loads(word)
            rank.work(rank.meet(task), task)
            word = channel.hear()
            rank.part()
            if word == "part":
                channel.tell("parted")  # nobody may meet anew before the old store is gone
                word = channel.hear()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the report needs its words
        channel.tell("error", stage=rank.stage, type=type(error).__name__, text=str(error)[:TEXT])
        channel.hear()
        return 1
    return 0


def main(fd):
    """Entered by the last line of what the agent sends."""
    die_with_parent()
    channel = RankChannel(fd)
    config = json.loads(channel.hear())
    channel.tell("started", pid=os.getpid(), python=sys.version.split()[0])
    code = live(channel, config)
    sys.stdout.flush()
    os._exit(code)  # the destructors of a broken group may wait for ever


def die_with_parent():
    """The agent asked for this already; where the job's python is a wrapper that forks, it has to be said again."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        pass
