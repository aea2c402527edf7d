"""Built-in models, and `Network`, which turns any `torch.nn.Module` into a model."""

from corymb.models.characters import char_lstm
from corymb.models.cnn import cnn
from corymb.models.ifca_cifar import ifca_cifar
from corymb.models.mlp import mlp
from corymb.models.network import ModelLike, Network
from corymb.models.resnet import resnet9

__all__ = ["ModelLike", "Network", "char_lstm", "cnn", "ifca_cifar", "mlp", "resnet9"]
