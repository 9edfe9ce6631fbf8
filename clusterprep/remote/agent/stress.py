"""One process of the stress tier: the program in the job's python that loads a device and times it.

The agent passes this source and one line of JSON through a socket, as to a rank, and then lines
that name the tests to run: {"tests": ["gemm", "copy"], "gpu": true}. «end» ends it. Each test has a
limit, after which the kernel ends this process: a call into a driver that hangs can be ended in no
other way.

Sums are of small whole numbers, which every device adds exactly: so the same chain of products has
the same checksum on all of them, whatever order or kernel they use.
"""

import ctypes
import hashlib
import json
import os
import signal
import time

IMPORT_LIMIT = 120.0  # seconds; environments on network file systems are slow at first
# Seconds for each test, after which the process is ended.
LIMITS = {
    "liveness": 15.0,
    "gemm": 45.0,
    "copy": 30.0,
    "host_copy": 30.0,
    "chain": 90.0,
    "pairs": 180.0,
    "stream": 60.0,
}
TEXT = 500  # characters of an exception that travel
MIB = 1 << 20
LIVENESS_BYTES = 256 * MIB
WARM_UPS = 2
SEED = 20261123
MODULUS, SHIFT = 7, 3  # entries of the chain are -3 to 3
PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXIT_AGENT_GONE = 5


class Channel(object):
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
        line = json.dumps(data).encode("ascii") + b"\n"
        while line:
            line = line[os.write(self._out, line) :]


# ---------------------------------------------------------------- devices


class HostDevice(object):
    """The processor, with sizes that it works through in a moment."""

    kind = "cpu"
    seconds = 0.7  # that a rate is taken over
    gemm_size = 1024
    chain_size = 256
    chain_steps = 24
    chain_seconds = 0.7
    copy_bytes = 64 * MIB
    host_copy_bytes = 32 * MIB

    def __init__(self, torch):
        self.place = torch.device("cpu")
        self.places = [self.place]
        self.type = torch.float32

    def describe(self):
        """Return the model of the processor as the kernel tells it."""
        try:
            with open("/proc/cpuinfo") as source:
                for line in source:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip()
        except OSError:
            pass
        return os.uname()[4]

    def synchronize(self):
        """Do nothing: calls return when they are done."""

    def host_buffer(self, torch, size):
        """Return memory of the host to copy from and to."""
        return torch.zeros(size, dtype=torch.uint8)


class CudaDevice(object):
    """A GPU; `places` are all that this process sees."""

    kind = "cuda"
    seconds = 4.0
    gemm_size = 8192
    chain_size = 4096
    chain_steps = 200
    chain_seconds = 20.0
    copy_bytes = 2048 * MIB
    host_copy_bytes = 256 * MIB

    def __init__(self, torch):
        self._cuda = torch.cuda
        self.places = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
        self.place = self.places[0]
        torch.cuda.set_device(self.place)
        # By the hardware: torch takes an emulated bfloat16 for supported, too.
        major, _ = torch.cuda.get_device_capability(self.place)
        self.type = torch.bfloat16 if major >= 8 else torch.float16
        # Sums that are split over blocks stay in 32 bits, and so exact.
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        if hasattr(matmul, "allow_bf16_reduced_precision_reduction"):
            matmul.allow_bf16_reduced_precision_reduction = False

    def describe(self):
        return self._cuda.get_device_name(self.place)

    def synchronize(self):
        for place in self.places:
            self._cuda.synchronize(place)

    def host_buffer(self, torch, size):
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)


# ---------------------------------------------------------------- tests


def rate(device, work, amount, seconds=None):
    """Return `amount` per second of `work`, called for the device's seconds after two warm-ups."""
    for _ in range(WARM_UPS):
        work()
    device.synchronize()
    seconds = seconds or device.seconds
    count = 0
    began = time.perf_counter()
    elapsed = 0.0
    while elapsed < seconds:
        work()
        device.synchronize()
        count += 1
        elapsed = time.perf_counter() - began
    return count * amount / elapsed


class Tests(object):
    """The tests by name; each returns its values by the name of the value."""

    def __init__(self, torch, device):
        self.torch = torch
        self.device = device

    def liveness(self):
        """Allocate 256 MB, multiply, and look whether all of the product is finite."""
        torch, device = self.torch, self.device
        memory = torch.ones(LIVENESS_BYTES // 4, dtype=torch.float32, device=device.place)
        square = memory[: 512 * 512].view(512, 512)
        product = square @ square
        if not bool(torch.isfinite(product).all()) or float(product.sum()) != 512.0**3:
            raise ArithmeticError("a product of ones is wrong")
        return {"alive": 1.0}

    def gemm(self):
        """Return TFLOP/s of a square matrix product in the type of training."""
        torch, device = self.torch, self.device
        size = device.gemm_size
        left = torch.ones((size, size), dtype=device.type, device=device.place)
        right = torch.ones_like(left)
        out = torch.empty_like(left)

        def multiply():
            torch.mm(left, right, out=out)

        operations = 2.0 * size**3
        per_second = rate(device, multiply, operations)
        return {"gemm": per_second / 1e12}

    def copy(self):
        """Return GB/s of a copy within the device's memory: what is read and what is written."""
        torch, device = self.torch, self.device
        size = device.copy_bytes
        source = torch.zeros(size, dtype=torch.uint8, device=device.place)
        target = torch.empty_like(source)
        return {"copy": rate(device, lambda: target.copy_(source), 2.0 * size) / 1e9}

    def host_copy(self):
        """Return GB/s from the host to the device, and back."""
        torch, device = self.torch, self.device
        size = device.host_copy_bytes
        host = device.host_buffer(torch, size)
        near = torch.zeros(size, dtype=torch.uint8, device=device.place)
        seconds = device.seconds / 2
        return {
            "to_device": rate(device, lambda: near.copy_(host, non_blocking=True), size, seconds)
            / 1e9,
            "to_host": rate(device, lambda: host.copy_(near, non_blocking=True), size, seconds)
            / 1e9,
        }

    def chain(self):
        """Return the checksum of a chain of products, and how many of its repetitions differed."""
        began = time.perf_counter()
        first = self._chain_once()
        repeated, differing = 1, 0
        while time.perf_counter() - began < self.device.chain_seconds or repeated < 3:
            repeated += 1
            if self._chain_once() != first:
                differing += 1
        return {"checksum": first, "repeated": repeated, "differing": differing}

    def _chain_once(self):
        torch, device = self.torch, self.device
        size = device.chain_size
        generator = torch.Generator().manual_seed(SEED)  # of the host: equal on all devices
        entries = torch.randint(
            -SHIFT,
            SHIFT + 1,
            (2, size, size),
            generator=generator,
        )
        state, factor = entries.to(device.type).to(device.place)
        for _ in range(device.chain_steps):
            product = torch.mm(state, factor)
            state = torch.remainder(product, MODULUS) - SHIFT
        last = state.to(torch.int8).cpu().contiguous()
        data = ctypes.string_at(last.data_ptr(), last.numel())
        return hashlib.sha256(data).hexdigest()[:16]

    def pairs(self):
        """Return GB/s of copies from each device to each other one, as [from, to, rate]."""
        torch, device = self.torch, self.device
        size = device.copy_bytes // 4
        rows = []
        for number, near in enumerate(device.places):
            source = torch.zeros(size, dtype=torch.uint8, device=near)
            for other, far in enumerate(device.places):
                if other == number:
                    continue
                target = torch.empty(size, dtype=torch.uint8, device=far)
                speed = rate(device, _copy(target, source), size, seconds=0.2)
                rows.append([number, other, round(speed / 1e9, 2)])
        return {"pairs": rows}

    def stream(self):
        """Return GB/s of STREAM's triad over all processors: two arrays read and one written."""
        torch = self.torch
        count = stream_elements()
        left = torch.ones(count, dtype=torch.float64)
        right = torch.ones(count, dtype=torch.float64)
        out = torch.zeros(count, dtype=torch.float64)
        host = HostDevice(torch)
        speed = rate(host, lambda: torch.add(left, right, alpha=3.0, out=out), 24.0 * count, 2.0)
        return {"stream": speed / 1e9, "threads": torch.get_num_threads()}


def _copy(target, source):
    return lambda: target.copy_(source)


def stream_elements():
    """Return how many doubles an array has: above any cache, and at most 1/16 of free memory.

    1 GiB at most, as more takes longer and tells no more; 32 MiB at least.
    """
    available = 0
    try:
        with open("/proc/meminfo") as source:
            for line in source:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:
        pass
    size = min(max(available // 16, 32 * MIB), 1024 * MIB)
    return size // 8


# ---------------------------------------------------------------- the life of the process


def limit(seconds):
    """Have the kernel end this process after so many seconds; 0 takes the limit away."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def open_device(torch, on_gpu):
    """Return the device to load. Raises RuntimeError if torch cannot use the GPU."""
    if not on_gpu:
        return HostDevice(torch)
    if torch.version.cuda is None:
        raise RuntimeError("torch is a build for CPUs only")
    return CudaDevice(torch)


def run_tests(channel, tests, names):
    """Run tests and report the values of each, or why it has none."""
    for name in names:
        channel.tell("begins", test=name)
        limit(LIMITS[name])
        try:
            values = getattr(tests, name)()
            channel.tell("value", test=name, values=values)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to this test
            memory = "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)
            kind = type(error).__name__
            text = str(error)[:TEXT]
            channel.tell("failed", test=name, memory=memory, type=kind, text=text)
        limit(0)
    channel.tell("done")


def live(channel):
    """Import torch, bind the device, and run the tests that are asked for, until «end»."""
    limit(IMPORT_LIMIT)
    try:
        import torch
    except ImportError as error:
        channel.tell("no_torch", text=str(error)[:TEXT])
        channel.hear()
        return
    limit(0)
    channel.tell("imported", torch=torch.__version__, cuda=torch.version.cuda)
    tests = None
    line = channel.hear()
    while line != "end":
        task = json.loads(line)
        if not task["tests"]:  # the turn of another process
            line = channel.hear()
            continue
        try:
            if tests is None:
                limit(LIMITS["liveness"])
                channel.tell("begins", test="bind")
                tests = Tests(torch, open_device(torch, task["gpu"]))
                device = tests.device
                limit(0)
                channel.tell("bound", kind=device.kind, model=device.describe())
        except Exception as error:  # noqa: BLE001 - as above
            limit(0)
            channel.tell("unbound", type=type(error).__name__, text=str(error)[:TEXT])
            channel.hear()
            return
        run_tests(channel, tests, task["tests"])
        line = channel.hear()


def main(fd):
    """Run the process. The call is the last line of what is sent."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
    channel = Channel(fd)
    channel.hear()  # the settings of all processes, of which there are none
    channel.tell("started", pid=os.getpid())
    live(channel)
    os._exit(0)  # destructors of a broken device may wait for ever
