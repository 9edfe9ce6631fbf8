"""Predict, make and undo changes on nodes.

`planner` and `file_plan` compute what would change, `transaction` stages, commits and finalizes
files on all nodes or on none, `step_runner` does the steps of playbooks, and `file_rollback` and
`step_rollback` roll back a run. `resources` has one file per kind of wanted state, `playbook` reads
playbooks. Imports `survey`, `inventory` and what stands before them. Begin with `transaction`.
"""
