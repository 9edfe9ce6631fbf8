"""Finds out why a job that runs now does not go on: `clusterprep diagnose --live`.

`command` asks all nodes and judges; begin there. `look` says what is asked and what answers mean,
`grouping` makes jobs of processes, `places` says where each rank is, `connections` matches the ends
of sockets, and `judge` names what holds the job up.

`clusterprep watch --job` follows one job with the same looks: `target` says which one, `job_watch`
what is told of it, with `resends` for its links and `began` for the kernels' logs.
"""
