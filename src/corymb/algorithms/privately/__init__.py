"""Rounds of averaging whose models are differentially private."""
