"""A small real training experiment: does GRPO on two skills teach a 135M model to write kernels, and does a rubric keep
it from cheating? What is asked and how it is judged was written down first, in PREREGISTRATION.md; README.md says how
to run it. Needs torch and numpy alone, so that it runs on a bare GPU machine.
"""
