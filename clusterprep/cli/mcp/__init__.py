"""The command `clusterprep mcp`: a read-only server of the Model Context Protocol over stdio.

`command` declares its options, `answers` has what its tools return, and `server` speaks the
protocol with the official SDK, which is imported there alone.
"""
