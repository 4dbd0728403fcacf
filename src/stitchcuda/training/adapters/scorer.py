"""Who scores completions for an adapter: the reward service, in this process or behind a ``server``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from stitchcuda.reward.score import Item, RewardOutcome
from stitchcuda.reward.service import Backend, ServiceSettings
from stitchcuda.reward.service_blocking import BlockingService


class Scorer(Protocol):
    """Gives outcomes in the items' order; a RewardService is one, for one event loop."""

    async def score_all(self, items: Sequence[Item]) -> list[RewardOutcome]:
        """The outcomes of all items."""
        ...


class AnyLoop:
    """A BlockingService as a Scorer for any event loop; a call waits in a thread of its own, not in the loop."""

    def __init__(self, service: BlockingService) -> None:
        self.service = service

    async def score_all(self, items: Sequence[Item]) -> list[RewardOutcome]:
        """See ``Scorer``."""
        return await asyncio.to_thread(self.service.score_all, items)


def scorer_of(service: Scorer | BlockingService) -> Scorer:
    """The service as a Scorer."""
    return AnyLoop(service) if isinstance(service, BlockingService) else service


@contextmanager
def open_service(
    where: str,
    kind: Literal["cuda", "cpu"] = "cuda",
    *,
    settings: ServiceSettings | None = None,
    cache: Path | None = None,
) -> Iterator[BlockingService]:
    """The reward service over a compute place ('local', 'spool:DIR', 'ray:ADDRESS'), or over 'recorded:PATH'.

    Raises what ``open_compute`` and ``RecordedEvaluations`` do, and InfrastructureError when no worker answers.
    """
    from stitchcuda.compute import open_compute
    from stitchcuda.reward.service_backends import ComputeBackend, RecordedEvaluations

    name, _, rest = where.partition(":")
    if name == "recorded":
        backend: Backend = RecordedEvaluations(Path(rest))
        with BlockingService(backend, settings, cache=cache) as service:
            yield service
        return
    with (
        open_compute(where) as compute,
        BlockingService(ComputeBackend.on(compute, kind), settings, cache=cache) as service,
    ):
        yield service
