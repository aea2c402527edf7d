"""What is learned: losses and scores of each example."""

from corymb.objectives.classification import Classification
from corymb.objectives.density import Density
from corymb.objectives.regression import LinearRegression, Regression

__all__ = ["Classification", "Density", "LinearRegression", "Regression"]
