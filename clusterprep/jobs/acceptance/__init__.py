"""Acceptance: the trial of `verify` again and again for a time, and what changed meanwhile.

`rounds` runs them with ranks that stay, `drift` finds what became slower and since when, and
`findings` says it; the last two are pure. Begin with `stage`.
"""
