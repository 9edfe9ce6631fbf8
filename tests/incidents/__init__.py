"""Five stories of jobs that died or hung, made again on hosts of the lab.

What must have been said before the start.

One file per story. The inventories have no `require:`, for people who have such a story have none.
"""
