# SPDX-License-Identifier: Apache-2.0
"""Sleep mode with a draft: what a worker must not lose while it sleeps, and must not find then.

vllm-ascend takes the memory of weights and caches away. Level 1 keeps the weights on the host.
Level 2 keeps nothing, because a trainer sends the target's weights again; few send a draft's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.drafting.assembly import Assembly

KEEPS_NO_WEIGHTS = 2
"""vLLM's level of sleep that keeps weights nowhere."""
WEIGHTS, CACHES = "weights", "kv_cache"
"""vLLM's tags of memory that is woken up."""


class SleepingDraft:
    """The draft's weights on the host, while its device has none.

    Attributes:
        is_asleep: whether the memory of weights was taken away.
    """

    def __init__(self) -> None:
        self.is_asleep = False
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def fall_asleep(
        self, level: int, runner: Any, proposer: Any, assembly: Assembly | None
    ) -> None:
        """Before memory is taken away: drop graphs that sleep, and keep what is lost else.

        Args:
            level: of sleep.
            runner: the model runner.
            proposer: what drafts; None without speculation.
            assembly: whose graphs sleep; None if none do.
        """
        self.is_asleep = True
        if assembly is not None:
            assembly.drop_captured()
        self.keep(level, getattr(proposer, "model", None), runner.model, runner.kv_caches)

    def keep(self, level: int, draft: nn.Module | None, target: nn.Module, caches: Any) -> None:
        """Copy what is the draft's own to the host, if nothing else keeps it.

        Args:
            level: of sleep.
            draft: None without a draft that is a model.
            target: whose tensors are loaded again.
            caches: KV caches of all layers, tensors in tuples and lists.
        """
        self._kept = []
        if level != KEEPS_NO_WEIGHTS or draft is None:
            return
        others = {_memory(tensor) for tensor in tensors_of(target)}
        others |= {_memory(tensor) for tensor in tensors_in(caches)}
        self._kept = [
            (tensor, tensor.to("cpu", copy=True))
            for tensor in tensors_of(draft)
            if _memory(tensor) not in others
        ]

    def wake_up(self, tags: Collection[str] | None, caches: Any) -> None:
        """Give what has memory again its content.

        Caches are zeroed, as when they were allocated: an operator multiplies keys that it masks by
        zero, and memory of another process may hold what is no number.

        Args:
            tags: of the memory that was woken up; None: of all.
            caches: as for ``keep``.
        """
        if tags is None or WEIGHTS in tags:
            for tensor, kept in self._kept:
                tensor.copy_(kept)
            self._kept = []
            self.is_asleep = False
        if tags is None or CACHES in tags:
            zero(tensors_in(caches))


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers, and what layers made of their weights and keep as attributes."""
    yield from tensors_in([*model.parameters(), *model.buffers()])
    for module in model.modules():
        for holder in (module, getattr(module, "impl", None)):
            yield from tensors_in(list(vars(holder).values()) if holder is not None else ())


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """All tensors of nested tuples and lists."""
    if isinstance(values, torch.Tensor):
        yield values.detach()
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)


def zero(tensors: Iterable[torch.Tensor]) -> None:
    """Set all bytes of the memory behind tensors to zero, also those that no tensor reaches."""
    storages = {_memory(tensor): tensor for tensor in tensors}
    for tensor in storages.values():
        every_byte = torch.empty(0, dtype=torch.int8, device=tensor.device)
        every_byte.set_(tensor.untyped_storage()).zero_()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
