"""Hosts of the lab that flap while commands are repeated, and an observer who judges them.

The commands are checks, applies, rollbacks and verifies.

`schedule` says what is done and what goes wrong, from a seed alone; `harm` makes it go wrong;
`commands` runs the command line and `resident` the same many times in one process; `observer` looks
into the hosts without any code of ours; `verdict` holds what it saw against what was told; `table`
counts. `python -m tests.soak` puts them in a row.

`observer` uses no code of ours, so that a fault of the program cannot hide behind the same fault in
its judge.
"""
