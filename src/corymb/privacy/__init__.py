"""Client-level differential privacy: settings, their cost, and the release of sums. See docs/explanation."""

from corymb.privacy.settings import Privacy

__all__ = ["Privacy"]
