"""Five stories of jobs that died or hung, made again on hosts of the lab.

Each test says what clusterprep must have reported before the start. One file per story. The
inventories have no `require:`, as people with such a story have none.
"""
