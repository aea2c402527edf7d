"""Client-level differential privacy: settings, what they cost, and how sums are released. See docs/explanation."""

from corymb.privacy.settings import Privacy

__all__ = ["Privacy"]
