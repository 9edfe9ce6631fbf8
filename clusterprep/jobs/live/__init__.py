"""Finds out why a job that runs now does not go on: `clusterprep diagnose --live`.

`command` asks all nodes and judges; begin there. `look` says what is asked and what answers mean,
`grouping` makes jobs of processes, `places` says where each rank is, `connections` matches the ends
of sockets, and `judge` names what holds the job up.
"""
