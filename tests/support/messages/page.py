"""Makes docs/reference/messages.md: how many messages of other programs are known, and as what."""

from __future__ import annotations

from tests.support.messages import coverage

HEAD = """# Messages of other programs that diagnose knows

Written by `make format` from the tables and rules in `clusterprep/data/messages/`. A table has the
warnings and errors of a program as they stand in its sources, each with its file and the first and
last version that has it; what is put into a message when it is printed is a gap (…). The rules are
written by hand and say what a message means:

* a **cause**: the message says what went wrong,
* **harmless**: the program goes on with something else,
* an **echo** of a failure that another line tells,
* a mistake of the **program** that called,
* **open**: a call that failed, or a state that should not be; what is behind it stands elsewhere.

What the program itself writes as information needs no rule. gloo has no releases: its versions are
dates. Those of `kubernetes` are the numbers of its library `k8s.io/api`: 0.36 is Kubernetes 1.36.

"""
FOOT = """
`python -m tests.support.messages extract PROJECT SOURCE [VERSION…]` makes a table anew. SOURCE is
a git directory, or a folder with one unpacked release in each folder. After that
`python -m tests.support.messages coverage PROJECT` lists what no rule knows.
"""


def page() -> str:
    return HEAD + coverage.table() + FOOT
