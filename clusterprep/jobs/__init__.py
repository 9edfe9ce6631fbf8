"""What has to do with training jobs: try one, start one, explain one that failed.

`verify` runs collectives on all nodes and names the node, link or rank at fault, `launch` starts a
program on them, `diagnose` reads logs. Imports `survey` and what stands before it.
"""
