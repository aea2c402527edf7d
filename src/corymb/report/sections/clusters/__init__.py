"""The Clusters tab: which clients belong together, and how the clusters formed."""

from corymb.report.content import Tab

TAB = Tab(
    "Clusters",
    order=20,
    empty="All clients share one model, or each has its own: there are no clusters to show.",
)
