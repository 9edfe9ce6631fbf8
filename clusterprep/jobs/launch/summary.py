"""Writes down how a launch ended, so that `diagnose` knows what the logs of ranks do not say.

A rank that crashes in native code, or hangs, writes nothing. What launch saw of it stands in
`ended.log` beside the logs of ranks, for people and for `clusterprep diagnose`.
"""

from __future__ import annotations

from clusterprep.model import LaunchedRank, LaunchResult
from clusterprep.model.units import pluralize

NAME = "ended.log"
_BEGIN = "clusterprep launch: "


def summary_lines(result: LaunchResult) -> list[str]:
    """Return one line for each first failure and for each rank that did not finish."""
    if result.verdict == "pass":
        ranks = pluralize(len(result.ranks), "rank")
        return [f"{_BEGIN}all {ranks} ended with exit code 0"]
    sentences = [f"first failure: {culprit.cause}" for culprit in result.culprits]
    if result.message:
        sentences.append(result.message.replace("were ended", "were ended by launch"))
    for row in result.ranks:
        sentences.append(f"rank {row.rank} on {row.node} {_end_of(row)}")
    return [_BEGIN + " ".join(sentence.split()) for sentence in sentences]


def _end_of(row: LaunchedRank) -> str:
    if row.ended == "finished":
        return "ended with exit code 0"
    if row.ended == "failed":
        return f"ended with exit code {row.code}"
    if row.ended == "killed":
        return f"was killed by {row.signal}"
    words = {
        "with-others": "was ended with the others",
        "lost": "was lost with its node",
        "hanging": "still ran at the time limit",
        "not-started": "was not started",
    }
    return words[row.ended]
