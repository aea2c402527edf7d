"""How well clients are served."""

from corymb.report.content import Tab

TAB = Tab("Quality", order=30)
