"""The Stability tab: how settled the clusters are."""

from corymb.report.content import Tab

TAB = Tab(
    "Stability",
    order=40,
    empty="There are no assignments to follow: one cluster, one round, or none that the server knows.",
)
