"""The Stability tab: how settled the clusters are."""

from corymb.report.content import Tab

TAB = Tab("Stability", order=40, empty="With one cluster or one round, assignments cannot change.")
