# SPDX-License-Identifier: Apache-2.0
"""Steps and chunks beside blocks at whose end states are kept, at the borders of what is served."""

import pytest

from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.about_kept_states import short_steps
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.kind import Role

BLOCK, K, REQUESTS = 128, 4, 3


def refused(method=None, options=None, **engine):
    """Whether steps of a block of 128 tokens are refused."""
    target = ModelFacts(Role.TARGET, "T", {}, {})
    device = DeviceFacts(1, None, DeviceGeneration.A2, "a test")
    draft = None if method is None else SpeculationFacts(method, K, options or {})
    engine = {"max_num_seqs": REQUESTS, **engine}
    facts = ServeFacts(engine, MkvConfig(), target, device, draft, kept_block=BLOCK)
    return [refusal.code for refusal in short_steps(facts)]


@pytest.mark.parametrize(
    ("method", "options", "kept_of_each"),
    [
        (None, {}, 0),
        ("mtp", {}, 0),
        ("draft_model", {}, 1),
        ("draft_model", {"parallel_drafting": True}, K),
        ("eagle3", {"parallel_drafting": True}, K - 1),
        ("dflash", {}, K - 1),
    ],
)
def test_a_step_has_a_block_beside_what_drafts_keep(method, options, kept_of_each):
    least = BLOCK + REQUESTS * kept_of_each
    assert refused(method, options, max_num_batched_tokens=least) == []
    assert refused(method, options, max_num_batched_tokens=least - 1) == ["step-size"]


def test_a_chunk_has_a_block():
    assert refused(long_prefill_token_threshold=BLOCK) == []
    assert refused(long_prefill_token_threshold=BLOCK - 1) == ["step-size"]
    assert refused(long_prefill_token_threshold=0) == []
