# SPDX-License-Identifier: Apache-2.0
"""Method dflash whose configuration says that no mask token sees a later one."""

import dataclasses
from pathlib import Path

from tests.support import speculation
from tests.support.loop_judgement import assert_every_draft_token
from tests.support.marks import needs_float32
from tests.support.pairs import prompts_of, scenario, with_config
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

pytestmark = needs_float32
TARGET, HEAD, METHOD = "gpt_oss", "gpt_oss_dflash", "dflash"


@each_runner
def test_every_draft_token_of_causal_layers_is_the_heads_own(runner, tmp_path):
    options = {"mask_token_id": 263, "target_layer_ids": [0, 1, 2], "causal": True}
    draft = with_config(HEAD, tmp_path, dflash_config=options)
    case = scenario(
        TARGET,
        HEAD,
        prompts=prompts_of(TARGET, [70, 40, 5]),
        max_tokens=32,
        speculative={"method": METHOD},
        environment=runner,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8),
    )
    k = case.num_speculative_tokens
    drafter = speculation.DraftBlock(Path(draft), model_directory(TARGET), k)
    assert_every_draft_token(dataclasses.replace(case, draft=draft), drafter, least=20 * k)
