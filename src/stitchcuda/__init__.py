"""StitchCUDA: a PyTorch program in, a faster one in CUDA C++ out, proven correct and measured honestly.

Importing this package is cheap on purpose: torch, pydantic and the model clients are
imported by the rooms that need them (``stitchcuda --help`` answers in well under half a second).
"""

__version__ = "0.1.0"
