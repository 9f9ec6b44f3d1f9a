# SPDX-License-Identifier: Apache-2.0
"""Heads of several modules (method ``mtp``): which of them are built. No engine.

``test_own_output_matrix.py`` drafts with such a head.
"""

from types import SimpleNamespace

import pytest
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from transformers import PretrainedConfig

from tests.support import hosts

_architecture = hosts.module("patches.draft_architecture")


def test_of_several_modules_of_a_head_the_first_is_built():
    """Those of Qwen3.5 are counted in the configuration of its language model."""
    text = PretrainedConfig(mtp_num_hidden_layers=3)
    whole = PretrainedConfig(n_predict=3, num_nextn_predict_layers=2)
    _architecture.keep_first_module(
        SimpleNamespace(hf_config=whole, hf_text_config=text, model="a head")
    )
    assert (text.mtp_num_hidden_layers, whole.num_nextn_predict_layers, whole.n_predict) == (
        1,
        1,
        3,
    )


@pytest.mark.parametrize(
    ("method", "in_turn", "kept"),
    [("mtp", False, 1), ("mtp", True, 3), ("eagle", False, 3), ("dspark", False, 3)],
)
def test_modules_of_other_heads_are_all_built(method, in_turn, kept):
    """Step-3.5's run in turn, and stages of DSpark one after the other."""
    config = PretrainedConfig(num_nextn_predict_layers=3)
    speculative = SimpleNamespace(
        target_model_config=None,
        method=method,
        use_step3p5_mtp=lambda: in_turn,
        draft_model_config=SimpleNamespace(hf_config=config, hf_text_config=config, model="a head"),
    )
    (function,) = _architecture.keep_the_architecture.functions.values()
    function(lambda _: None, speculative)
    assert config.num_nextn_predict_layers == kept
