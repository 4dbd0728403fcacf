"""Data for training a Coder, and the training."""
