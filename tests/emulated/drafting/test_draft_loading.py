# SPDX-License-Identifier: Apache-2.0
"""How the weights of a draft are loaded by model runner V1. No engine."""

from copy import copy
from types import SimpleNamespace

import pytest
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

from tests.support import hosts

proposers = hosts.module("drafting.proposers")
HOST = hosts.module("drafting.host").HOST


@pytest.mark.parametrize(("asked", "used"), [("its own", "its own"), (None, "the target's")])
def test_a_draft_model_is_loaded_by_its_own_options(monkeypatch, asked, used):
    """vLLM's proposer of draft models forgets them."""
    target = SimpleNamespace(
        load_config="the target's", speculative_config=SimpleNamespace(draft_load_config=asked)
    )
    monkeypatch.setattr(proposers, "separate_draft_config", lambda *args, **named: copy(target))
    for question in ("has_recurrent_layers", "is_replicated"):
        monkeypatch.setattr(proposers, question, lambda config: False)
    proposer = object.__new__(proposers.DraftModelProposer)
    proposer.vllm_config, proposer.draft_host = target, HOST
    assert proposer._create_draft_vllm_config().load_config == used
    assert target.load_config == "the target's"
