"""Who belongs together, and how that came about."""

from corymb.report.content import Tab

TAB = Tab(
    "Clusters",
    order=20,
    empty="All clients share one model, or each keeps its own: there are no clusters to draw.",
)
