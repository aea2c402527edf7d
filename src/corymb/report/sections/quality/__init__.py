"""The Quality tab: how well the models serve the clients."""

from corymb.report.content import Tab

TAB = Tab("Quality", order=30)
