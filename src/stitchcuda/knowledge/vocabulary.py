"""Words of the field: what is too common to search by, and what abbreviations stand for."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The set of the words in ``text``."""
    return frozenset(text.split())


STOP = words(
    "a about above after again all also am an and any are as at be because been before being below between both "
    "but by can could did do does doing done for from further get gets had has have having he her here how i if "
    "in into is it its just let me more most my no nor not of off on once only or other our out over own same she "
    "should so some such than that the their them then there these they this those through to too under until up "
    "us very was we were what when where which while who whom why will with would you your may might must shall "
    "one want wants"
)

ALIASES = {
    "smem": ("shared", "memory"),
    "gmem": ("global", "memory"),
    "dsmem": ("distributed", "shared", "memory"),
    "rmem": ("register",),
    "regs": ("register",),
    "memcpy": ("copy",),
    "memset": ("set",),
    "malloc": ("allocate",),
    "alloc": ("allocate",),
    "dealloc": ("free",),
    "sync": ("synchronize",),
    "async": ("asynchronous",),
    "attr": ("attribute",),
    "ptr": ("pointer",),
    "config": ("configuration",),
    "desc": ("descriptor",),
    "init": ("initialize",),
    "oom": ("out", "memory"),
    "mma": ("matrix", "multiply"),
    "gemm": ("matrix", "multiply"),
    "matmul": ("matrix", "multiply"),
    "tma": ("tensor", "copy", "bulk"),
    "pdl": ("programmatic", "dependent", "launch"),
    "cas": ("compare", "swap"),
    "regcount": ("register", "count"),
    "maxrregcount": ("register", "maximum"),
    "max": ("maximum",),
    "min": ("minimum",),
}
"""Abbreviations of the field and what they stand for. Parts of symbols are widened by them, so that words find
``cudaMallocAsync`` by "asynchronous"; query words are widened by them at a lower weight."""

WORD_ALIASES = {
    "sm": ("multiprocessor",),
    "sms": ("sm", "multiprocessor"),
    "multiprocessor": ("sm",),
    "multiprocessors": ("sm",),
    "pinned": ("page", "locked"),
    "locked": ("pinned",),
    "uncoalesced": ("coalesced",),
    "unaligned": ("misaligned", "alignment"),
    "misaligned": ("alignment",),
    "nondeterministic": ("determinism", "deterministic"),
    "dram": ("global", "memory"),
    "hbm": ("global", "memory"),
}
"""The same for words of their own, not for parts of symbols (``sm`` in ``sm_90`` is no multiprocessor)."""
