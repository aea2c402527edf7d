"""Should I cluster at all? One model, clusters and training alone, tried on held-out training examples."""
