"""What runs on a node: standard library only, Python 3.6 grammar, sent over the channel and never stored there."""
