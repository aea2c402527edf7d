"""Objectives: losses, scores and predictions per example."""

from corymb.objectives.augmented import Augmented, Crop, Cutout, Flip, Light, Translate
from corymb.objectives.classification import Classification
from corymb.objectives.density import Density
from corymb.objectives.regression import LinearRegression, Regression

__all__ = [
    "Augmented",
    "Classification",
    "Crop",
    "Cutout",
    "Density",
    "Flip",
    "Light",
    "LinearRegression",
    "Regression",
    "Translate",
]
