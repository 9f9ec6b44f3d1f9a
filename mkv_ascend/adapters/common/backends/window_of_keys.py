# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's layers of uncompressed keys, such as the one of its MTP head."""

from __future__ import annotations

from typing import Any

from vllm_ascend.attention.dsa_v1 import AscendDSAImpl

from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.port import run_builder
from mkv_ascend.drafting.draft import shallow_copy


class WindowOfKeys(Dense):
    """Attention to a window of keys, with lengths on the device.

    Each pass has rows of cosines and sines, and a division of the operator's work, which launches
    of the builder make in buffers of the pass. Nothing of it serves another pass. The builder waits
    for lengths of a prefill, so prefills are not captured.
    """

    shares = False
    reads_host_lengths = False
    builds_in_graphs = True
    implementation = AscendDSAImpl
    prefills: str | None = "a prefill, and decodes"

    def run(self, common: Any, draft_index: int, rows: Any) -> Any:
        """Run the builder; of the lengths it takes only the largest on the host, as a bound.

        Builders keep what layers of several ratios share in arguments. The layer that drafts has
        one ratio, so a new pass shares nothing.
        """
        own = shallow_copy(common)
        own._seq_lens_cpu = own.seq_lens_cpu = common.seq_lens_cpu_upper_bound
        return run_builder(
            self.builder,
            own,
            draft_index,
            block_size=self.builder.kv_cache_spec.block_size,
            prefill_ratio_to_sas_metadata={},
            decode_ratio_to_sas_metadata={},
            common_ratio_to_sas_metadata={},
        )
