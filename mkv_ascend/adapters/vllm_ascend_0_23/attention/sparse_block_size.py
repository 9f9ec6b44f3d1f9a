# SPDX-License-Identifier: Apache-2.0
"""Builders of sparse MLA with the block size of their own KV group, as those of dense MLA."""

from __future__ import annotations

from mkv_ascend.adapters.common.attention import backends
from mkv_ascend.adapters.patching import record
from mkv_ascend.layout.kind import Kind

OF_THE_GROUP = record(
    name="block size of sparse attention's builders",
    target="vllm_ascend.attention.sfa_v1:AscendSFABackend.get_builder_cls",
)


def read_it_from_the_group() -> None:
    """Derive those builders, too (``backends.builder_of_group_blocks``)."""
    backends.builders_of_one_block_size.add(Kind.SPARSE_MLA)
