"""Client by client."""

from corymb.report.content import Tab

TAB = Tab("Clients", order=60)
