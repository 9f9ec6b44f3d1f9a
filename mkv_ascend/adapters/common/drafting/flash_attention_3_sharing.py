# SPDX-License-Identifier: Apache-2.0
"""How metadata of flash_attention_3 is shared: its operator takes lengths from the device."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from mkv_ascend.adapters.common.drafting.sharing import GatheredRows, Sharing
from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.draft import LaterPasses


class FlashAttention3Sharing(Sharing):
    """Has the builder of fused_infer_attention; lengths of later passes stay on the device."""

    reads_host_lengths = False

    def reads(self, spec: Any) -> Hashable:
        """See ``Sharing``; metadata is not that of fused_infer_attention."""
        return "flash_attention_3", super().reads(spec)

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        """See ``Sharing``; a list of lengths would have to be copied to the host."""
        made = []
        for lengths in later.lengths:
            other = shallow_copy(built)
            other.seq_lens, other.seq_lens_cpu, other.seq_lens_list = lengths, None, None
            made.append(other)
        return made
