"""The model-free Planner and Coder: rewrites that need no language model."""
