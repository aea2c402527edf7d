"""The Overview tab: the run at a glance."""

from corymb.report.content import Tab

TAB = Tab("Overview", order=10)
