"""Models that come with the library, and how any `torch.nn.Module` becomes one."""

from corymb.models.cnn import cnn
from corymb.models.mlp import mlp
from corymb.models.network import ModelLike, Network

__all__ = ["ModelLike", "Network", "cnn", "mlp"]
