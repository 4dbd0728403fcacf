"""Sweeps: many tasks through the same loop, their numbers in one table that says all that they rest on."""
