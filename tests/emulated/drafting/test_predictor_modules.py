# SPDX-License-Identifier: Apache-2.0
"""A target's own layers that draft (``mtp``): what is built, and how it is configured. No engine.

``test_own_output_matrix.py`` drafts with such a head.
"""

from types import SimpleNamespace

import pytest
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from transformers import PretrainedConfig

from tests.support import hosts
from tests.support.tiny_models import model_directory

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


@pytest.mark.parametrize("asked", [None, 200])
def test_layers_of_a_target_rotate_as_it_does_when_its_context_is_lengthened(asked):
    """vLLM reads their configuration again, without the values of ``--hf-overrides``."""
    from vllm.engine.arg_utils import EngineArgs

    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    }
    speculative = {"method": "mtp", "num_speculative_tokens": 3}
    made = EngineArgs(
        model=str(model_directory("qwen3_next_mtp")),
        skip_tokenizer_init=True,
        dtype="float16",
        max_model_len=1024,
        hf_overrides={"rope_parameters": rope, "max_position_embeddings": 1024},
        speculative_config={**speculative, **({"max_model_len": asked} if asked else {})},
    )
    config = made.create_engine_config()
    draft = config.speculative_config.draft_model_config
    text = config.model_config.hf_text_config
    assert text.rope_parameters["rope_type"] == "yarn"
    assert draft.hf_text_config.rope_parameters == text.rope_parameters
    assert draft.max_model_len == (asked or 1024)
