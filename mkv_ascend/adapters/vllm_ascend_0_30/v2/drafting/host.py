# SPDX-License-Identifier: Apache-2.0
"""How model runner V2 of vllm-ascend 0.30.0 does what differs where drafts are run."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import Host
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.draft import SpeculatorDraft
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.pass_context import PASSES


class HostOfV2(Host):
    """``DraftHost`` of model runner V2; it differs from V1 in how a draft is run."""

    draft = SpeculatorDraft
    passes = PASSES

    def shares_of(self, runner: Any) -> None:
        """See ``DraftHost``; context parallelism is refused."""
        return None


HOST = HostOfV2()
