"""Forms of `launch --print`: one file for each program that starts a job by itself.

Each has `render(plan, cluster)`, which returns the text for that program. What several of them
write is in `jobs/launch/shell_text.py`.
"""
