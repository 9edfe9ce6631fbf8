"""A job without torch: every rank counts seconds; at «two» one rank does what it is told to."""

import os
import signal
import subprocess
import sys
import time

how, who = sys.argv[1], sys.argv[2]
rank = os.environ["RANK"]
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def wait_for_all():
    """What the others do: they wait."""
    while True:
        time.sleep(0.05)


for count in ("one", "two"):
    print(count, flush=True)
    time.sleep(0.3)
if rank == who:
    print("rank", rank, "has had enough", file=sys.stderr, flush=True)
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang":
        time.sleep(600)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "finish":
        sys.exit(0)
if how != "finish":
    wait_for_all()
