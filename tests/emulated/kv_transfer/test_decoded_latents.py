# SPDX-License-Identifier: Apache-2.0
"""One node reads prompts with plain latents, another one decodes with latents of 8 bits."""

import re

import pytest

from tests.support import decoded_latents, engine, hosts
from tests.support.eight_bit_pairs import (
    GRAPHS,
    AtOnce,
    assert_accepted_as_counted,
    assert_said,
    case_of,
    rows_of,
    said,
)
from tests.support.kv_transfer import transfer
from tests.support.loop_judgement import candidate_prompts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

SOURCE = "openpangu_mtp"
NEAR_TIE = 0.15
"""As ``eight_bit_pairs.near_tie_of`` of models that round their inputs."""
# openPangu's checkpoints bring code for their configuration along.
ENGINE = {"block_size": 128, "trust_remote_code": True}
DECODES = {} if hosts.NAME == "vllm_ascend_0_23" else {"kv_cache_dtype": "int8"}
"""How a node that decodes is asked for latents of 8 bits, besides by its role."""


@pytest.mark.host("0.23", cases=["mtp-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["draft_model-v2"])
@each_runner
@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_drafts_of_a_node_that_decodes(method, runner, tmp_path):
    source = model_directory(SOURCE)
    target = decoded_latents.described(source, tmp_path / "target")
    draft = target if method == "mtp" else model_directory("llama_draft")
    folder = tmp_path / "caches"
    folder.mkdir()

    def case(role, **fields):
        asked = DECODES if role == "kv_consumer" else {}
        return case_of(
            target,
            draft,
            prompts=candidate_prompts(source),
            speculative={"method": method},
            engine={**ENGINE, **asked, "kv_transfer_config": transfer(folder, role)},
            environment=runner,
            **fields,
        )

    engine.run(case("kv_producer", max_tokens=1))
    decoding = case("kv_consumer", **GRAPHS)
    result = engine.run(decoding)
    assert len(re.findall("got the caches of", result.log)) == len(decoding.prompts)

    read = AtOnce(decoding)

    def target_rows(context, tokens):
        # The last token of a prompt is computed again where it is decoded from.
        return decoded_latents.rows_of(target, source, context, tokens, read.of(context) - 1)

    def head_rows(context, tokens):
        return decoded_latents.rows_of_head(target, source, context, tokens, read.of(context) - 1)

    assert_said(target_rows, said(decoding, result), NEAR_TIE)
    draft_rows = head_rows if method == "mtp" else rows_of(draft, read)
    assert_said(draft_rows, result.proposals, NEAR_TIE)
    # Of vLLM 0.30.0, a request whose prompt came begins with one token, and may be filled up.
    filled_up = 0 if hosts.NAME == "vllm_ascend_0_23" else len(decoding.prompts)
    assert_accepted_as_counted(decoding, result, filled_up)
