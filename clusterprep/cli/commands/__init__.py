"""One module per command: a list of stages, and the report that they lead to."""
