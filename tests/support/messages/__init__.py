"""Takes the messages that other programs print out of their sources, into data/messages/.

`python -m tests.support.messages extract PROJECT SOURCE [VERSION…]` writes the table of one
project, `python -m tests.support.messages coverage` says how many messages the rules know.
"""
