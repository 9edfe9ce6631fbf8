"""The stress tier: load GPUs and memory of nodes and time them, in the job's own torch.

`plan` says which process runs which tests, `collect` runs them through the agents, and `results`
turns what processes said into facts, which `checks/stress` judges. Begin with `stage`.
"""
