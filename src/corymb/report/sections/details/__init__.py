"""How the run was made, and how to make it again."""

from corymb.report.content import Tab

TAB = Tab("Details", order=70)
