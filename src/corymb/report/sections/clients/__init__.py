"""The Clients tab: every client in detail."""

from corymb.report.content import Tab

TAB = Tab("Clients", order=60)
