"""Settings of an algorithm found by trial, judged on training examples that are held out."""
