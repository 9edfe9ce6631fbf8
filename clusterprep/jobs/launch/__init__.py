"""`clusterprep launch`: start one command on all nodes with ranks assigned, and show its output.

`command` reads the words, `plan` assigns ranks, `follow` has the agents start them and listens, and
`outcome` says which rank ended first. Begin with `stage`.

Only `follow` and `logs` touch other machines and files; the rest computes.
"""
