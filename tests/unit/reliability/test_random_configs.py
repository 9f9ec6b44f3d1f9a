# SPDX-License-Identifier: Apache-2.0
"""Random configurations are such as published models have, where vLLM reads what they say."""

import random

import pytest

from reliability import random_models
from reliability.random_configs import tiny_config

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["dots1", "nemotron_h"])
def test_no_window_where_no_layer_has_one(family, seed):
    """vLLM would give it to every layer."""
    assert tiny_config(family, random.Random(seed)).sliding_window is None


@pytest.mark.parametrize("seed", SEEDS)
def test_layers_of_gpt_oss_have_the_order_that_vllm_gives_them(seed):
    types = tiny_config("gpt_oss", random.Random(seed)).layer_types
    windows = [index % 2 == 0 for index in range(len(types))]
    assert [one == "sliding_attention" for one in types] == windows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["gemma3_text", "gemma4_text", "lfm2", "granitemoehybrid"])
def test_each_kind_of_layer_is_there(family, seed):
    assert len(set(tiny_config(family, random.Random(seed)).layer_types)) == 2


def test_a_model_that_is_not_tiny_takes_no_memory(tmp_path, monkeypatch):
    """Classes of pictures and text keep published sizes: 34 billion weights in one of them."""
    monkeypatch.setattr(random_models, "MOST_WEIGHTS", 1000)
    monkeypatch.setattr(random_models, "fill", lambda *_: pytest.fail("it was made"))
    with pytest.raises(ValueError, match=r"llama has no tiny form here: .*\d{4} weights"):
        random_models.write_random_model(tmp_path, "llama", "a seed")
