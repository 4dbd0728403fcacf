"""The numbers at which ``profiling.kernel_rules`` turns, each with its reason; ``docs/bottlenecks.md`` lists them.

Sources: the rules that Nsight Compute ships beside its sections (60 % and 80 % of speed of light, stalls of 30 %, issue
slots of 80 %) and the CUDA C++ Best Practices Guide (coalescing, bank conflicts, occupancy).
"""

from __future__ import annotations

UNIT_BUSY = 0.60
"""A unit used this share of the time is what binds; below 60 % of every peak Nsight Compute calls it latency."""
TENSOR_BUSY = 0.40
"""The same for tensor cores: mma.sync reaches about 63 % of their peak on Hopper at best (arXiv 2501.12084)."""
L2_BUSY = 0.45
"""The same for the L2: its slices and the crossbar let no kernel see much more than two thirds of the nominal peak."""
ISSUE_BUSY = 0.80
"""Schedulers that issue in this share of cycles have no waits left to hide."""
IDLE_DEVICE = 0.70
"""Multiprocessors that have work less than this share of the kernel's time: blocks are too few, uneven or end late."""
FEW_BLOCKS = 0.75
"""Fewer blocks than this share of the multiprocessors."""
EVEN_WAVES = 0.80
"""Waves of blocks that fill the device less than this on average explain idle multiprocessors."""
TAIL_SLACK = 0.20
"""Where multiprocessors idle this much more than equal blocks would leave them, blocks are not equal."""
SHORT = 8e-6
"""Seconds. In shorter kernels the launch itself leaves multiprocessors idle for a large part."""
LOCAL_SHARE = 0.25
"""Local memory's share of the sectors of loads and stores from which spilled values are what is moved."""
ATOMIC_SHARE = 0.30
"""Atomics' share of the requests to global memory from which their serialisation is what is waited for."""
CONFLICT_SHARE = 0.40
"""Share of shared memory wavefronts that conflicts add: two-way conflicts everywhere give 0.5."""
SHARED_SHARE = 0.30
"""Shared memory's part of the L1 data path from which its conflicts can be what is waited for."""
SECTOR_USE = 0.50
"""Bytes used of the sectors touched. A warp that reads every second float uses 0.5."""
ABSORBED = 1.5
"""Traffic of up to so many times what was asked for: a cache before it has put the pieces together again."""
NEARLY = 0.80
"""Share of the busiest memory unit's use from which another one counts as what binds too."""
MEMORY_USED = 0.40
"""A memory unit used this much makes wasted traffic matter; below, latency does."""
FEW_LANES = 16.0
"""Threads on, of 32, in the average instruction: fewer and half the arithmetic is idle."""
WORKING = 0.35
"""Issue or a pipe used this much: the kernel computes rather than waits."""
LOW_OCCUPANCY = 0.50
"""Share of the warps that could be resident: the Best Practices Guide sees little to gain above."""
WAIT_SHARE = 0.30
"""Share of warps' time in one wait that makes it the reason."""
UNEVEN_OCCUPANCY = 0.50
"""Resident warps over time, of those that fit: less means that blocks end at different times."""
MATRIX_BUSY = 0.40
"""A matrix product on the fp32 pipe gains from tensor cores long before the pipe is full."""
MATRIX_FFMA = 0.90
"""Multiply-adds among fp32 operations of a matrix product or convolution."""
MATRIX_DENSITY = 0.40
"""Multiply-adds among all instructions of one that is tiled well enough to be bound by the pipe."""
FEW_FP32 = 0.15
"""fp32 arithmetic among the instructions of a kernel that keeps the multiply-add pipe busy with integer products."""
LESS_WORK = 2.0
"""What removing or sharing arithmetic is taken to gain at most where a pipe is full."""
TENSOR_GAIN = 3.0
"""A matrix product on tensor cores with fp16 or tf32 parts against the fp32 pipe, where no rates were measured."""
FUSION_SAVES = 0.5
"""Fusing a kernel at the memory's limit with its neighbour saves about half of what it moves."""
