# SPDX-License-Identifier: Apache-2.0
"""How model runner V2 of vllm-ascend 0.30.0 does what differs where drafts are run."""

from __future__ import annotations

from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import Host
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.draft import SpeculatorDraft
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.pass_context import PASSES


class HostOfV2(Host):
    """``DraftHost`` of model runner V2; it differs from V1 in how a draft is run."""

    draft = SpeculatorDraft
    passes = PASSES


HOST = HostOfV2()
