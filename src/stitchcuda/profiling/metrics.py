"""Which hardware counters the rules read, by Nsight Compute's names, and the ratios that follow from them.

Names are those of compute capability 9.0, checked against ``ncu --query-metrics --chips gh100`` of Nsight Compute
2024.1; where versions or chips differ, several names stand for one number and the first that has a value counts.
Running the tool is ``profiling.ncu``; what the numbers mean for a kernel is ``profiling.kernel_rules``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from stitchcuda.profiling.model import KernelCounters

SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy")
"""Sections of Nsight Compute that hold what is no counter to ask for by name; its versions have had them under these
names since 2020."""

STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_SUSTAINED = "avg.pct_of_peak_sustained_active"
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"

NAMES: dict[str, tuple[str, ...]] = {
    "seconds": ("gpu__time_duration.sum",),
    "sm_elapsed": ("sm__cycles_elapsed.max",),
    "sm_active": ("sm__cycles_active.avg",),
    "sm_active_max": ("sm__cycles_active.max",),
    "sm_count": ("launch__sm_count", "device__attribute_multiprocessor_count"),
    "dram": (f"gpu__dram_throughput.{_ELAPSED}", f"dram__throughput.{_ELAPSED}"),
    "dram_read": ("dram__bytes_read.sum",),
    "dram_written": ("dram__bytes_write.sum",),
    "l2": (f"lts__throughput.{_ELAPSED}",),
    "l2_hit": ("lts__t_sector_hit_rate.pct",),
    "l2_sectors": ("lts__t_sectors_srcunit_tex.sum", "lts__t_sectors.sum"),
    "l1": (f"l1tex__throughput.{_ELAPSED}", f"l1tex__throughput.{_SUSTAINED}"),
    "l1_hit": ("l1tex__t_sector_hit_rate.pct",),
    "l1_data": (f"l1tex__data_pipe_lsu_wavefronts.{_ELAPSED}",),
    "l1_wavefronts": ("l1tex__data_pipe_lsu_wavefronts.sum",),
    "shared_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "shared_load_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "shared_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "shared_bytes_per_wavefront": ("smsp__sass_average_data_bytes_per_wavefront_mem_shared.ratio",),
    "load_bytes_per_sector": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",),
    "store_bytes_per_sector": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "store_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "local_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",),
    "local_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",),
    "atomic_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",),
    "reduction_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",),
    "instructions": ("smsp__inst_executed.sum",),
    "ffma": ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",),
    "fadd": ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",),
    "fmul": ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",),
    "tensor_fp16": ("sm__ops_path_tensor_src_fp16.sum",),
    "tensor_bf16": ("sm__ops_path_tensor_src_bf16_dst_fp32.sum",),
    "tensor_tf32": ("sm__ops_path_tensor_src_tf32_dst_fp32.sum",),
    "tensor_fp8": ("sm__ops_path_tensor_src_fp8.sum",),
    "tensor_int8": ("sm__ops_path_tensor_src_int8.sum",),
    "tensor_fp64": ("sm__ops_path_tensor_src_fp64.sum",),
    "pipe_fma": (f"sm__inst_executed_pipe_fma.{_SUSTAINED}", f"sm__pipe_fma_cycles_active.{_SUSTAINED}"),
    "pipe_fma_fp16": (f"sm__inst_executed_pipe_fma_type_fp16.{_SUSTAINED}",),
    "pipe_alu": (f"sm__inst_executed_pipe_alu.{_SUSTAINED}", f"sm__pipe_alu_cycles_active.{_SUSTAINED}"),
    "pipe_xu": (f"sm__inst_executed_pipe_xu.{_SUSTAINED}",),
    "pipe_fp64": (f"sm__inst_executed_pipe_fp64.{_SUSTAINED}", f"sm__pipe_fp64_cycles_active.{_SUSTAINED}"),
    "pipe_tensor": (
        f"sm__pipe_tensor_cycles_active.{_SUSTAINED}",
        f"sm__pipe_tensor_op_hmma_cycles_active.{_SUSTAINED}",
        f"sm__inst_executed_pipe_tensor.{_SUSTAINED}",
    ),
    "issue": (f"smsp__issue_active.{_SUSTAINED}",),
    "lanes": ("smsp__thread_inst_executed_per_inst_executed.ratio",),
    "lanes_on": ("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",),
    "warps_active": ("smsp__warps_active.avg.per_cycle_active",),
    "occupancy": (f"sm__warps_active.{_SUSTAINED}",),
    "occupancy_limit": ("sm__maximum_warps_per_active_cycle_pct",),
    "limit_registers": ("launch__occupancy_limit_registers",),
    "limit_shared": ("launch__occupancy_limit_shared_mem",),
    "limit_warps": ("launch__occupancy_limit_warps",),
    "limit_blocks": ("launch__occupancy_limit_blocks",),
    "registers": ("launch__registers_per_thread",),
    "shared_static": ("launch__shared_mem_per_block_static",),
    "shared_dynamic": ("launch__shared_mem_per_block_dynamic",),
    "grid": ("launch__grid_size",),
    "block": ("launch__block_size",),
    "waves": ("launch__waves_per_multiprocessor",),
    **{f"stall_{name}": (_STALL.format(name),) for name in STALLS},
}
"""The numbers that the rules read, each with the counters that may hold it, best first."""

OF_SECTIONS = ("launch__", "device__", "sm__maximum_warps")
"""Numbers that come with the sections and are no counters to ask for by name."""
WANTED: tuple[str, ...] = tuple(
    dict.fromkeys(name for names in NAMES.values() for name in names if not name.startswith(OF_SECTIONS))
)
"""Every counter to ask for by name."""

SECTOR_BYTES = 32
"""What a cache moves at once."""
WARP = 32
"""Threads of a warp."""
PLACES = 64
"""Warps that a multiprocessor of a data centre GPU since Volta has places for."""
CONFLICTED_BYTES = 72.0
"""Of the 128 bytes that a wavefront of shared memory can carry: two-way conflicts leave half."""
SMALLEST = 1e-9
"""A denominator below this is none."""


@dataclass(frozen=True)
class Facts:
    """One launch's counters as the ratios that rules reason with. A share is 0 to 1; None where it was not measured."""

    counters: KernelCounters

    def get(self, key: str) -> float | None:
        """A number of ``NAMES``; None where no counter has a finite value for it."""
        for name in NAMES[key]:
            value = self.counters.metrics.get(name)
            if value is not None and math.isfinite(value):
                return value
        return None

    def number(self, key: str, default: float = 0.0) -> float:
        """``get`` with a default."""
        value = self.get(key)
        return default if value is None else value

    def share(self, key: str) -> float:
        """A percentage of ``NAMES`` as a share; 0.0 where it was not measured. Rounding above 100 % is cut."""
        return min(max(self.number(key) / 100.0, 0.0), 1.0)

    def pipe(self, key: str) -> float:
        """The largest share over all counters of a pipe: chips count wide instructions in different ones."""
        found = [self.counters.metrics.get(name, 0.0) for name in NAMES[key]]
        return min(max([v / 100.0 for v in found if math.isfinite(v)], default=0.0), 1.0)

    @property
    def seconds(self) -> float:
        """Duration of the launch."""
        return self.number("seconds")

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        x, y, z = self.counters.grid
        return max(x * y * z, 1)

    @property
    def threads_per_block(self) -> int:
        """Threads of a block."""
        x, y, z = self.counters.block
        return max(x * y * z, 1)

    @property
    def dram_bytes(self) -> float:
        """Bytes between the L2 and device memory, both ways."""
        return self.number("dram_read") + self.number("dram_written")

    @property
    def flops(self) -> float:
        """fp32 operations on the CUDA cores; a multiply-add counts two."""
        return 2 * self.number("ffma") + self.number("fadd") + self.number("fmul")

    @property
    def tensor_flops(self) -> dict[str, float]:
        """Operations on the tensor cores by the operands' precision; a multiply-add counts two. Only what is not 0."""
        kinds = ("fp16", "bf16", "tf32", "fp8", "int8", "fp64")
        found = {kind: self.number(f"tensor_{kind}") for kind in kinds}
        return {kind: value for kind, value in found.items() if value > 0}

    @property
    def fp32_instruction_share(self) -> float | None:
        """fp32 arithmetic among all instructions, lanes that were off counted as none."""
        executed = self.number("instructions") * WARP
        if executed < SMALLEST or self.get("ffma") is None:
            return None
        return min((self.number("ffma") + self.number("fadd") + self.number("fmul")) / executed, 1.0)

    @property
    def sm_busy(self) -> float | None:
        """Mean time that a multiprocessor had work, of the kernel's time."""
        active, elapsed = self.get("sm_active"), self.get("sm_elapsed")
        if active is None or elapsed is None or elapsed < SMALLEST:
            return None
        return min(active / elapsed, 1.0)

    @cached_property
    def _asked_and_touched(self) -> tuple[float, float]:
        asked = touched = 0.0
        for kind in ("load", "store"):
            sectors, each = self.number(f"{kind}_sectors"), self.get(f"{kind}_bytes_per_sector")
            # Copies to shared memory (cp.async) touch sectors, and this average does not know them: 0.0 then.
            if each is not None and each > 0 and sectors > 0:
                asked += sectors * min(each, SECTOR_BYTES)
                touched += sectors * SECTOR_BYTES
        return asked, touched

    @property
    def sector_efficiency(self) -> float | None:
        """Bytes that loads and stores asked for, of the bytes of the sectors they touched; None without accesses."""
        asked, touched = self._asked_and_touched
        return asked / touched if touched > 0 else None

    def wasted(self, moved: float, factor: float) -> bool:
        """Whether ``moved`` bytes are more than ``factor`` times what loads and stores asked for; so where unknown."""
        return moved <= 0 or moved > factor * self._asked_and_touched[0]

    @property
    def conflict_share(self) -> float:
        """Shared memory wavefronts that only bank conflicts made necessary."""
        wavefronts = self.number("shared_wavefronts")
        return min(self.number("shared_conflicts") / wavefronts, 1.0) if wavefronts > 0 else 0.0

    @property
    def conflicts_cost(self) -> bool:
        """Whether the machine code's own count agrees that wavefronts carry little: wide accesses look conflicted."""
        carried = self.get("shared_bytes_per_wavefront")
        return carried is None or carried <= CONFLICTED_BYTES

    @property
    def shared_share(self) -> float:
        """Shared memory among all wavefronts of the L1 data path."""
        wavefronts = self.number("l1_wavefronts")
        return min(self.number("shared_wavefronts") / wavefronts, 1.0) if wavefronts > 0 else 0.0

    @property
    def local_share(self) -> float:
        """Local memory (spilled registers, indexed arrays) among the sectors that loads and stores touch."""
        local = self.number("local_load_sectors") + self.number("local_store_sectors")
        everything = local + self.number("load_sectors") + self.number("store_sectors")
        return local / everything if everything > 0 else 0.0

    @property
    def atomic_share(self) -> float:
        """Atomic requests among all requests to global memory."""
        atomic = self.number("atomic_requests") + self.number("reduction_requests")
        everything = atomic + self.number("load_requests") + self.number("store_requests")
        return atomic / everything if everything > 0 else 0.0

    @cached_property
    def stalls(self) -> dict[str, float]:
        """Where a warp's time goes between two instructions, by reason, as shares of it; empty without counters."""
        found = {name: max(self.number(f"stall_{name}"), 0.0) for name in STALLS}
        total = sum(found.values())
        return {name: value / total for name, value in found.items()} if total > SMALLEST else {}

    @property
    def theoretical_occupancy(self) -> float:
        """Warps that could be resident, of those that a multiprocessor has places for; 0.0 where it is not known."""
        told = self.share("occupancy_limit")
        resident = self.resident_blocks
        if told > 0 or resident is None:
            return told
        return min(resident * math.ceil(self.threads_per_block / WARP) / PLACES, 1.0)

    @property
    def waves(self) -> float:
        """Times that the grid fills all places for blocks; 0.0 where it is not known."""
        told, resident, processors = self.get("waves"), self.resident_blocks, self.number("sm_count")
        if told is not None or resident is None or processors < 1:
            return told or 0.0
        return self.blocks / (resident * processors)

    @property
    def resident_blocks(self) -> int | None:
        """Blocks that fit on a multiprocessor at once."""
        limits = [self.get(key) for key in ("limit_registers", "limit_shared", "limit_warps", "limit_blocks")]
        known = [value for value in limits if value is not None and value >= 1]
        return int(min(known)) if known else None
