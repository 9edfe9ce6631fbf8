"""The agent: code that is sent to nodes as text, runs there and is never stored there.

It is Python 3.6 grammar and needs the standard library only; it imports nothing else of ours. The
modules `act`, `disk`, `steps`, `store`, `ranks` and `job` write or start something and are sent
when a command needs that. Begin with `loop`, then `look`.
"""
