"""The Communication tab: bytes sent and received."""

from corymb.report.content import Tab

TAB = Tab("Communication", order=50)
