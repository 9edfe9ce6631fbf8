"""Ask all nodes and judge the answers.

`queries` says what to ask for the chosen checks, `fanout` asks many nodes at once, `port_matrix`
lets nodes dial each other, and `judge` makes findings of the facts. Imports `checks` and what
stands before it. Begin with `fanout.Fanout.survey` and `judge.judge`.
"""
