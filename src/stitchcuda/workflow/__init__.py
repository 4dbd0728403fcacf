"""The loop: state, routes, budget, journal, events."""
