# SPDX-License-Identifier: Apache-2.0
"""Sizes of graphs that nobody asks for serve as many requests as there may be at once."""

import pytest
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from vllm.engine.arg_utils import EngineArgs

from tests.support import hosts
from tests.support.tiny_models import model_directory

pytestmark = [pytest.mark.core, pytest.mark.host("0.23")]


def sizes(requests, k, asked=None, **limits):
    """The sizes of graphs, in tokens, of an engine for so many requests that verify K tokens."""
    draft = {"model": str(model_directory("llama_draft")), "num_speculative_tokens": k}
    config = EngineArgs(
        model=str(model_directory("llama_target")),
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=requests,
        compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", **(asked or {})},
        speculative_config=draft if k else None,
        **{"max_num_batched_tokens": 512, **limits},
    ).create_engine_config()
    made = config.compilation_config
    assert made.cudagraph_capture_sizes[-1] == made.max_cudagraph_capture_size
    return made.cudagraph_capture_sizes


@pytest.mark.parametrize(
    ("requests", "k"), [(4, 2), (6, 5), (12, 2), (20, 8), (12, 0), (20, 0), (32, 3)]
)
def test_the_largest_graph_serves_all_requests(requests, k):
    assert sizes(requests, k)[-1] == requests * (k + 1)


def test_the_largest_graph_has_no_more_tokens_than_a_step():
    assert sizes(250, 2)[-1] == 512
    assert sizes(12, 2, max_num_batched_tokens=30, enable_chunked_prefill=True)[-1] == 30


def test_sizes_that_are_asked_for_are_taken():
    assert sizes(12, 2, {"cudagraph_capture_sizes": [8, 16]}) == [8, 16]


@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 adds the largest graph to its own default alone")
def test_a_largest_size_that_is_asked_for_is_captured():
    assert sizes(32, 2, {"max_cudagraph_capture_size": 36})[-1] == 36
