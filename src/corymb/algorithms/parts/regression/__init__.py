"""What moment descent and FedX share for linear models: common coordinates, and a verdict at the end."""
