"""`clusterprep launch`: one command on all nodes with ranks assigned, what they print, and who ended it."""
