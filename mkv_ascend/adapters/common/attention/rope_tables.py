# SPDX-License-Identifier: Apache-2.0
"""Rotary tables per model, where vllm-ascend 0.23.0 keeps one set per process.

``vllm_ascend.ops.rotary_embedding`` holds the cosine and sine tables, and the buffers that
metadata builders fill from them, in module globals. Building a second model overwrites some of
them (``_record_cos_and_sin_cache``) and is ignored by others
(``_record_cos_and_sin_cache_interleaved``, ``_record_cos_sin_cache``, ``set_cos_and_sin``), so a
draft with another rotary base or dimension either spoils the target's tables or gets them.

``RopeTables`` is one model's set. Inside ``with tables.active():`` the module's globals are that
model's; afterwards the previous ones are restored. The tensors themselves are never copied, because
a captured graph keeps their addresses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm_ascend.ops import rotary_embedding

from mkv_ascend.adapters.common.attention.records import OF_ONE_MODEL

GLOBALS = tuple(
    target.partition(":")[2]
    for target in OF_ONE_MODEL.targets
    if ".ops.rotary_embedding:" in target
)
"""Every module global of vllm-ascend's rotary embedding that belongs to one model."""

TABLES = ("_cos_cache", "_sin_cache", "_cos_sin_cache")
"""The globals that rotary modules record when they are made; the others are buffers."""


class DeferredRows:
    """Placeholder for tables and rows that are filled in later; any part of it is itself."""

    shape = (1,)
    """vllm-ascend 0.30.0 asks whether rows have any size."""

    def __getitem__(self, _: Any) -> DeferredRows:
        return self

    def __setitem__(self, _: Any, __: Any) -> None:
        """Ignore the value."""

    def unsqueeze(self, _: int) -> DeferredRows:
        """Like a tensor's method."""
        return self


class RopeTables:
    """The rotary tables and buffers of one model, empty until a model is built inside."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = dict.fromkeys(GLOBALS)
        self._depth = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this set the one that vllm-ascend reads and writes. May be nested."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        others = _read()
        _write(self._values)
        try:
            yield
        finally:
            self._values = _read()
            _write(others)
            self._depth -= 1

    @contextlib.contextmanager
    def with_deferred_rows(self) -> Iterator[None]:
        """Let builders take ``DeferredRows`` for rows, and launch nothing for them."""
        with self.active():
            tables = _read()
            _write(dict.fromkeys(GLOBALS, DeferredRows()))
            try:
                yield
            finally:
                _write(tables)

    def rows(
        self, positions: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines at ``positions`` int32 [n], each [n, 1, 1, rope dimension], for MLA.

        This uses ``index_select``, which takes int32. Indexing would first convert the positions,
        once for each table.

        Args:
            out: tensors to write to; None for new ones.
        """
        with self.active():
            tables = rotary_embedding._cos_cache, rotary_embedding._sin_cache
        if out is not None:
            for table, rows in zip(tables, out, strict=True):
                torch.index_select(table, 0, positions, out=rows[:, 0, 0])
            return out
        cosines, sines = (torch.index_select(table, 0, positions) for table in tables)
        return cosines[:, None, None], sines[:, None, None]

    def share_what_was_not_recorded(self) -> None:
        """Take the process's tables where building the model recorded none.

        A model without rotary embeddings (MLA of Kimi-Linear) records nothing. vllm-ascend's
        metadata has rows of the tables all the same, which no layer of it turns anything by.
        """
        for name in TABLES:
            if self._values[name] is None:
                self._values[name] = getattr(rotary_embedding, name)


BY_BUILDER: dict[type[Any], RopeTables] = {}
"""Class of metadata builders that is bound to a draft -> the rotary tables of its model."""


def rope_tables_of(builder: Any) -> RopeTables:
    """The rotary tables of the draft whose metadata ``builder`` makes; layers have bound ones."""
    return BY_BUILDER[type(builder)]


def _read() -> dict[str, Any]:
    return {name: getattr(rotary_embedding, name) for name in GLOBALS}


def _write(values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(rotary_embedding, name, value)
