"""Shapes of recurrent layers without stepping through time, so that capturing one takes no minutes.

PyTorch decomposes a recurrent layer into its time steps to find the result's shape on fake tensors; while
``quick_shapes`` is active, formulas stand in. The captured graph is the same: one node per recurrent layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def quick_shapes() -> Iterator[None]:
    """Replace the decompositions of lstm, gru and rnn on fake tensors, and put them back."""
    from torch._decomp import decomposition_table

    aten = torch.ops.aten
    formulas: dict[Any, Callable[..., Any]] = {
        aten.lstm.input: _lstm,
        aten.gru.input: _one_state,
        aten.rnn_tanh.input: _one_state,
        aten.rnn_relu.input: _one_state,
    }
    saved: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(table: dict[Any, Any], key: Any, value: Any) -> None:
        saved.append((table, key, table[key]))
        table[key] = value

    try:
        for overload, formula in formulas.items():
            for key in list(overload.py_kernels):
                put(overload.py_kernels, key, formula)
            if overload in decomposition_table:
                put(decomposition_table, overload, formula)
            overload._dispatch_cache.clear()
        yield
    finally:
        for table, key, value in reversed(saved):
            table[key] = value
        for overload in formulas:
            overload._dispatch_cache.clear()


def _output(x: torch.Tensor, width: int, bidirectional: bool, batch_first: bool) -> torch.Tensor:
    """Sequence output as the library lays it out: time first in memory, also when batch is the first dimension."""
    size = width * (2 if bidirectional else 1)
    if batch_first:
        return x.new_empty((x.shape[1], x.shape[0], size)).transpose(0, 1)
    return x.new_empty((*x.shape[:2], size))


def _lstm(
    x: torch.Tensor,
    hx: list[torch.Tensor],
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden, cell = hx
    return _output(x, hidden.shape[-1], bidirectional, batch_first), x.new_empty(hidden.shape), x.new_empty(cell.shape)


def _one_state(
    x: torch.Tensor,
    hx: torch.Tensor,
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _output(x, hx.shape[-1], bidirectional, batch_first), x.new_empty(hx.shape)
