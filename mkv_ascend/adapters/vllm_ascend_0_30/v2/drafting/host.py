# SPDX-License-Identifier: Apache-2.0
"""How model runner V2 of vllm-ascend 0.30.0 does what differs where drafts are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.utils import enable_sp

from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import Host
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.options import refuse_options
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.draft import SpeculatorDraft
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.pass_context import PASSES

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HostOfV2(Host):
    """``DraftHost`` of model runner V2; it differs from V1 in how a draft is run."""

    draft = SpeculatorDraft
    passes = PASSES

    def refuse_options(self, config: VllmConfig) -> None:
        """See ``DraftHost``; tokens may be drawn at random there."""
        for asked, is_asked in {
            "lmhead_tensor_parallel_size": self.splits_vocabulary(),
            "sequence parallelism (flashcomm)": enable_sp(config),
        }.items():
            if is_asked:
                raise NotImplementedError(
                    f"{asked} with a draft on model runner V2: the passes of a draft are not "
                    "split over ranks there. Leave that option out, or set "
                    "VLLM_USE_V2_MODEL_RUNNER=0."
                )
        refuse_options(config, get_ascend_config().draft_window_size, draws=True)


HOST = HostOfV2()
