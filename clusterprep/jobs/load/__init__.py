"""Look at nodes while a job loads them: what grew, appeared or fell is found by comparing samples.

`sampling` asks the agents, `samples` has the values, `findings` judges them by the checks, and
`growth` what no check judges; the last three are pure. Begin with `sampling`.
"""
