"""What is known about NCCL: which interfaces and rails a job uses, and the environment it needs.

`environment` puts together what `variables` derive and what the inventory declares; `lint` judges
settings that others wrote; `launch_paths` says which ways to start a job have the variables.
Computes only. Imports `facts` and what stands before it. Begin with `environment.render`.
"""
