"""The agent: code that is sent to nodes as text, runs there and is never stored there.

It is Python 3.6 grammar and needs the standard library only.
"""
