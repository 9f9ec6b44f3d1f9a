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
from tests.support.tiny_models import model_directory

SOURCE = "openpangu_mtp"
NEAR_TIE = 0.15
"""As ``eight_bit_pairs.near_tie_of`` of models that round their inputs."""
# openPangu's checkpoints bring code for their configuration along.
ENGINE = {"block_size": 128, "trust_remote_code": True}


@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 decodes by an operator of a package of CANN's own")
@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_drafts_of_a_node_that_decodes(method, tmp_path):
    source = model_directory(SOURCE)
    target = decoded_latents.described(source, tmp_path / "target")
    draft = target if method == "mtp" else model_directory("llama_draft")
    folder = tmp_path / "caches"
    folder.mkdir()

    def case(role, **fields):
        return case_of(
            target,
            draft,
            prompts=candidate_prompts(source),
            speculative={"method": method},
            engine={**ENGINE, "kv_transfer_config": transfer(folder, role)},
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
    assert_accepted_as_counted(decoding, result)
