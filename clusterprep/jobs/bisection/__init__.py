"""`clusterprep bisect`: find the nodes at fault by running the user's command on some of them.

`search` says on which nodes to run next and takes how that ended, `pace` says which time is slow
and when a run hangs, `cost` how many runs it takes at most, and `state` what a file has of it.
`stage` makes the runs. Begin with `search`.

Only `stage` touches other machines, and `files` the disk; the rest computes.
"""
