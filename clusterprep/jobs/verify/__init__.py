"""Verify: run a real trial over all ranks.

`schedule` plans it, `collect` runs it, and `tally`, `culprits` and `blame` judge it. Only `collect`
and the modules *_measurement and *_trials talk to nodes; all others compute. Begin with `stage`.

The ranks run as the job's user in the job's interpreter. Their program (`remote/agent/trial.py`
with `sums`, `collectives` and `belongings`) is sent through a socket, so torch is imported on nodes
alone. What ranks say about their peers is not read, because in a broken collective each rank blames
others. Data is the exception: there all other ranks have to say the same of one rank.

`sums` tells from a wrong sum whose share is missing or doubled; where it cannot, `collectives` lets
one rank after the other give its share alone. A collective that a backend refuses is left out by
all ranks, and the report says so.
"""
