"""A job without torch whose ranks meet, and which fails, hangs or is slow by the hosts it runs on.

    meets.py STEP fails=n2+n5 hangs=n3 slow=n4

It takes STEP seconds, and on a slow host five times as long, for all ranks.
"""

import os
import socket
import sys
import time

rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# torchrun itself listens on the port of the rendezvous.
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)
here = os.uname().nodename


def gather(names):
    """Give and take one line over the rendezvous, as an all-gather does. Return all of them."""
    if rank == 0:
        with socket.create_server(place) as server:
            peers = [server.accept()[0] for _ in range(count - 1)]
        streams = [peer.makefile("rw") for peer in peers]
        names += [stream.readline().strip() for stream in streams]
        for stream in streams:
            stream.write(" ".join(names) + "\n")
            stream.flush()
        return names
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    stream = peer.makefile("rw")
    stream.write(names[0] + "\n")
    stream.flush()
    return stream.readline().split()


step, *faults = sys.argv[1:]
present = gather([here])
for fault in faults:
    kind, _, hosts = fault.partition("=")
    hosts = hosts.split("+")
    if not set(hosts) <= set(present):
        continue
    if kind == "fails" and here == hosts[-1]:
        sys.exit(f"{here} does not like {hosts[0]}")
    if kind in ("fails", "hangs"):
        time.sleep(600)
    if kind == "slow":
        time.sleep(5 * float(step))
time.sleep(float(step))
