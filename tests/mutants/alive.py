"""Why no test can find some mutants: what they change cannot be seen. They count as alive."""

from __future__ import annotations

# The change as docs/mutants.md has it, and the reason.
EQUIVALENT: dict[str, str] = {
    '- domain, _, rest = address.lower().partition(":")\n'
    '+ domain, _, rest = address.lower().rpartition(":")': (
        "as only zeros at the very front are taken off, and both parts are joined again"
    ),
    "- unknown = next((part for part in parts if part.gbs is None), None)\n+ unknown = None": (
        "as the minimum behind it counts an unknown part as 0 and takes it all the same"
    ),
    "- at, probes = 0, []\n+ at, probes = 1, []": (
        "as any of the good nodes may be the first that is added to a group"
    ),
}
