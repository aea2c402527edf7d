"""The Details tab: how the run was made and how to reproduce it."""

from corymb.report.content import Tab

TAB = Tab("Details", order=70)
