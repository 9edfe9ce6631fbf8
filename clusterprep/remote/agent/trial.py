"""One rank of the trial: the program in the job's python that checks collectives.

The agent passes this source, and then one line of JSON, through a socket. On the same socket the
rank reports line by line how far it has come, so that the report has facts also when a collective
hangs. The rank waits for its task once torch is imported and its device is bound: which rank of
which world it is, and what the ranks do together. Then it waits for «part», after which another
task may come, or for «end»: to its peers, a rank that leaves early looks like a second fault.
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
# Seconds that torch's own watchdog waits longer than the rank itself: it would abort the process.
LATER = 30.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXIT_NO_TORCH = 3
EXIT_AGENT_GONE = 5  # the agent is gone; clusterprep.jobs.verify.culprits knows the number
DEVICE_QUERY_PAUSE = 0.0002  # seconds between two looks whether a collective is done


class RankChannel(object):
    """The socket to the agent: lines of JSON out, lines of text in."""

    def __init__(self, fd):
        self._in = os.fdopen(os.dup(fd), "rb")
        self._out = fd

    def hear(self):
        """Return the next line; end this process if the agent is gone."""
        line = self._in.readline()
        if not line:
            os._exit(EXIT_AGENT_GONE)
        return line.decode("ascii").strip()

    def tell(self, what, **data):
        """Report that `what` happened just now."""
        data["what"] = what
        data["t"] = time.monotonic()
        line = json.dumps(data).encode("ascii") + b"\n"
        while line:
            sent = os.write(self._out, line)
            line = line[sent:]


# ---------------------------------------------------------------- devices


class Cpu(object):
    """Collectives in host memory: the calls return when the collectives are done."""

    name = "cpu"

    def __init__(self, torch, local_rank):
        self._torch = torch

    def bind(self):
        """Return None: there is no GPU to be described."""

    def timed(self, collective, limit, blocks=False):
        """Return the seconds of one collective; gloo raises after the time limit of the group."""
        start = time.perf_counter()
        collective(async_op=False)
        return time.perf_counter() - start

    def group_options(self, limit):
        return {"timeout": datetime.timedelta(seconds=limit)}

    def barrier_options(self):
        return {}

    def room(self):
        """Return this rank's share of the free memory in bytes.

        0 if the kernel does not report it.
        """
        with open("/proc/meminfo") as source:
            rows = dict(line.split(":", 1) for line in source)
        kibibytes = rows.get("MemAvailable", "0 kB").split()[0]
        ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        return int(kibibytes) * 1024 // ranks


class Cuda(object):
    """Collectives on one GPU; the host only polls whether they are done, so that it can give up.

    It cannot while NCCL connects the ranks: only the agent ends that, when the controller says so.
    """

    def __init__(self, torch, local_rank, identify=None):
        self._torch = torch
        self._index = local_rank
        self._identify = identify or identify_gpu
        self.name = "cuda:%d" % local_rank

    def bind(self):
        """Make the GPU current before anything else touches CUDA, and return its description."""
        self._torch.cuda.set_device(self._index)
        self._torch.zeros(1, device=self.name)
        return self._identify(self._index)

    def timed(self, collective, limit, blocks=False):
        """Return the seconds of one collective by the GPU's clock. Raises after `limit` seconds.

        With `blocks`, torch's wait() stops the host until the collective is done, as it does for a
        barrier over NCCL. So it is called once that is so.
        """
        cuda = self._torch.cuda
        start = cuda.Event(enable_timing=True)
        end = cuda.Event(enable_timing=True)
        cuda.synchronize()
        start.record()
        work = collective(async_op=True)
        if blocks:
            poll(work.is_completed, limit)
        work.wait()  # makes the stream wait, and the host if the collective blocks
        end.record()
        poll(end.query, limit)
        return start.elapsed_time(end) / 1000.0

    def group_options(self, limit):
        """Return the options of the group for init_process_group.

        `device_id` (torch 2.3 and later) makes NCCL connect at once, so that a fault shows in the
        initialization.
        """
        options = {"timeout": datetime.timedelta(seconds=limit + LATER)}
        init = self._torch.distributed.init_process_group
        if "device_id" in inspect.signature(init).parameters:
            options["device_id"] = self._torch.device(self.name)
        return options

    def barrier_options(self):
        return {"device_ids": [self._index]}

    def room(self):
        """Return the bytes of free memory of the GPU."""
        return self._torch.cuda.mem_get_info(self._index)[0]


def poll(is_done, limit):
    """Wait until `is_done()`. Raises RuntimeError after `limit` seconds."""
    give_up = time.monotonic() + limit
    while not is_done():
        if time.monotonic() > give_up:
            raise RuntimeError("the collective did not finish within %g s" % limit)
        time.sleep(DEVICE_QUERY_PAUSE)


def identify_gpu(ordinal):
    """Return UUID, index, PCI address and NUMA node of a visible GPU.

    They come from the driver: torch reports them only in recent releases.
    """
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    uuid = ctypes.create_string_buffer(16)
    pci = ctypes.create_string_buffer(32)
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetPCIBusId(pci, 32, device)
    cuda.cuDeviceGetUuid(uuid, device)
    address = pci.value.decode("ascii").lower()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "uuid": "GPU-" + uuid_text(uuid.raw),
        "index": index_on_node(address, ordinal, visible),
        "pci": address,
        "numa": numa_node(address),
    }


def uuid_text(raw):
    """Return 16 bytes as the text of a UUID."""
    digits = "".join("%02x" % byte for byte in bytearray(raw))
    parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
    return "-".join(parts)


def index_on_node(address, ordinal, visible, root="/proc"):
    """Return the index of a GPU on its node as nvidia-smi counts: by the order of PCI addresses.

    CUDA may count otherwise, and CUDA_VISIBLE_DEVICES (`visible`) may have UUIDs, which say nothing
    about the index. Without the driver's list of GPUs the index is that of `visible`, or None.
    """
    try:
        addresses = sorted(name.lower() for name in os.listdir(root + "/driver/nvidia/gpus"))
    except OSError:
        addresses = []
    if address in addresses:
        return addresses.index(address)
    names = visible.split(",") if visible else []
    if ordinal >= len(names):
        return ordinal
    name = names[ordinal].strip()
    return int(name) if name.isdigit() else None


def numa_node(address, root="/sys"):
    """Return the NUMA node of a PCI device, None if the kernel knows none (-1)."""
    path = "%s/bus/pci/devices/%s/numa_node" % (root, address)
    try:
        with open(path) as source:
            number = int(source.read())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


# ---------------------------------------------------------------- the life of a rank


class Rank(object):
    """One rank from import to the end; `stage` is what it was doing when an exception is raised."""

    def __init__(self, channel, config):
        self.channel = channel
        self.config = config
        self.stage = "import"
        self._torch = self._device = None

    def get_ready(self):
        """Import torch and bind the device; return whether the rank can go on."""
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            if getattr(error, "name", None) != "torch":
                raise
            self.channel.tell("no_torch", python=sys.executable, text=str(error)[:TEXT])
            return False
        self._torch = torch
        cuda = torch.version.cuda
        self.channel.tell("imported", torch=torch.__version__, cuda=cuda, python=sys.executable)
        if not dist.is_available():
            raise RuntimeError("this torch was built without torch.distributed")
        self._report_belongings()
        return self._bind(cuda)

    def _report_belongings(self):
        """Report what has to be equal on all ranks, before any rank waits for another."""
        self.stage = "belongings"
        for piece in belongings(self.config["same_files"]):
            self.channel.tell("holds", **piece)

    def _bind(self, cuda):
        self.stage = "device"
        if self.config["gpus"] and cuda is None:
            why = "torch is a build for CPUs only"
            self.channel.tell("no_cuda", torch=self._torch.__version__, text=why)
            return False
        device = Cuda if self.config["backend"] == "nccl" else Cpu
        local_rank = int(os.environ["LOCAL_RANK"])
        self._device = device(self._torch, local_rank)
        gpu = self._device.bind()
        self.channel.tell("ready", gpu=gpu, nccl=self._nccl_version())
        return True

    def _nccl_version(self):
        if self.config["backend"] != "nccl":
            return None
        version = self._torch.cuda.nccl.version()
        if isinstance(version, tuple):
            return ".".join(str(part) for part in version)
        return str(version)

    def meet(self, task):
        """Connect to the store, then to the other ranks; return what their collectives share."""
        dist = self._torch.distributed
        rank, world, limit = task["rank"], task["world"], task["meeting"]
        self.stage = "store"
        store = dist.TCPStore(
            task["address"],
            task["port"],
            world,
            rank == 0,
            timeout=datetime.timedelta(seconds=limit),
            wait_for_workers=False,  # otherwise rank 0 would report it only after all have come
        )
        self.channel.tell("store")
        self.stage = "rendezvous"
        dist.init_process_group(
            self.config["backend"],
            store=store,
            rank=rank,
            world_size=world,
            **self._device.group_options(max(limit, task["timeout"])),
        )
        self.channel.tell("joined")
        self.stage = "first collective"
        context = RankContext(self._torch, self._device, rank, world)
        context.spread(0.0, limit)
        self.channel.tell("met")
        return context

    def work(self, context, task):
        """Run the steps of a task."""
        for step in task["steps"]:
            self.stage = "%(op)s of %(bytes)d bytes of %(dtype)s" % step
            measure(context, self.channel, step, task["timeout"])
        self.channel.tell("finished")

    def part(self):
        """Leave the group in order; the agent ends a rank for which this takes too long."""
        self._torch.distributed.destroy_process_group()


def live(channel, config):
    """Run a rank from start to end; return its exit code."""
    rank = Rank(channel, config)
    try:
        if not rank.get_ready():
            return EXIT_NO_TORCH
        line = channel.hear()
        while line != "end":
            task = json.loads(line)
            context = rank.meet(task)
            rank.work(context, task)
            line = channel.hear()
            rank.part()
            if line == "part":
                channel.tell("parted")  # no rank may meet again before the old store is gone
                line = channel.hear()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the report needs its text
        kind = type(error).__name__
        channel.tell("error", stage=rank.stage, type=kind, text=str(error)[:TEXT])
        channel.hear()
        return 1
    return 0


def main(fd):
    """Run a rank that talks to the agent on `fd`. The call is the last line of what is sent."""
    die_with_parent()
    channel = RankChannel(fd)
    config = json.loads(channel.hear())
    channel.tell("started", pid=os.getpid(), python=sys.version.split()[0])
    code = live(channel, config)
    sys.stdout.flush()
    os._exit(code)  # the destructors of a broken group may wait for ever


def die_with_parent():
    """Ask the kernel to kill this process when its parent ends.

    The agent asked for it at the start, but where the job's python is a wrapper that forks, the
    request is not inherited.
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        pass
