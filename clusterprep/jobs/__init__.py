"""Training jobs: test whether one can run, start one, explain one that failed.

`verify` runs collectives on all nodes and names the node, link or rank at fault, `launch` starts a
program on them, and `diagnose` finds causes in logs. It may import `survey` and what `survey`
imports.
"""
