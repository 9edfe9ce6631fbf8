"""`clusterprep launch`: start one command on all nodes with ranks assigned, and show its output."""
