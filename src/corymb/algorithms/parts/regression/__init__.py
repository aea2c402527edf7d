"""Parts that moment descent and FedX share for linear models: whitened coordinates, and checks of the final models."""
