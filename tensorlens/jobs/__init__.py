"""Comparison of the ranks of a distributed job, from one record of each."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "merge": ("job_report", "merged"),
        "rank_report": ("RankReport", "rank_of"),
        "report": ("ItemDifference", "Spread"),
    },
)
