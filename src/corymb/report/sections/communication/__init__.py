"""What was sent."""

from corymb.report.content import Tab

TAB = Tab("Communication", order=50)
