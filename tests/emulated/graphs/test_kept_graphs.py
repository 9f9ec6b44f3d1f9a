# SPDX-License-Identifier: Apache-2.0
"""Graphs that vLLM keeps for the next start, in ``VLLM_CACHE_ROOT``.

They are taken by a hash of the configuration, without a look at the model. On the emulated NPU
nothing is kept by default (``emulated_npu.launch``); these tests ask for what the PyTorch of a
device does, 2.10: what Dynamo traced is kept, and compiled at each start.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import LlamaConfig

from tests.support import engine, reference, speculation
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario, with_config
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.heads import Eagle3Head

KEEPS = {"VLLM_DISABLE_COMPILE_CACHE": "0", "VLLM_USE_MEGA_AOT_ARTIFACT": "0"}
TAKEN = "Directly load AOT compilation from path"
TARGET, HEAD = "llama_target", "llama_eagle3"
BLUNT = 0.5
"""An epsilon of norms that changes what a head says. Dynamo makes it a constant of the graph."""


def own_rows(head: Path, target: Path):
    """The logits of a head by its weights and the numbers in its config.json."""
    module = Eagle3Head(reference.load_model(target), LlamaConfig.from_pretrained(head))
    module.load_weights(load_file(head / "model.safetensors"))

    def rows(context, drafted):
        known = module.known(speculation.hidden_states_of(target, tuple(context[:-1])))
        return speculation.rows_of_head(module, known, context, drafted)

    return rows


def judged(case, target: Path) -> engine.Result:
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    report = reference.judge(
        own_rows(Path(case.draft), target), result.proposals, reference.NEAR_TIE
    )
    assert report.checked == case.num_speculative_tokens * len(result.proposals) > 60
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert result.num_accepted > 0 < result.draft_replays
    return result


@needs_float32
@each_runner
def test_a_head_is_not_given_another_ones_graph(runner, tmp_path):
    """Two heads of one class for one target."""
    target, other = model_directory(TARGET), tmp_path / "head"
    other.mkdir()
    case = scenario(
        TARGET,
        HEAD,
        max_tokens=16,
        speculative={"method": "eagle3"},
        engine={"enforce_eager": False, "max_num_seqs": 2},
        traced=True,
        environment={**runner, **KEEPS, "VLLM_CACHE_ROOT": str(tmp_path / "kept")},
    )
    case = replace(case, prompts=case.prompts[::4])
    first = judged(case, target)
    blunt = replace(case, draft=with_config(HEAD, other, rms_norm_eps=BLUNT))
    second = judged(blunt, target)
    assert first.log.count(TAKEN) == second.log.count(TAKEN) == 0
    assert first.proposals != second.proposals


@needs_float32
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        # States of layers are gathered by hooks, which are traced with them.
        pytest.param("gemma3", "gemma3_eagle3", "eagle3", id="eagle3"),
        pytest.param("gpt_oss", "gpt_oss_dflash", "dflash", id="dflash"),
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", id="mtp"),
        pytest.param("llama_target", "llama_draft", "draft_model", id="draft_model"),
    ],
)
def test_a_second_start_drafts_as_the_first(target, draft, method, runner, tmp_path):
    """Which traces nothing."""
    kept = {**runner, **KEEPS, "VLLM_CACHE_ROOT": str(tmp_path)}
    for taken in (0, 2):
        result = assert_reference(
            target, draft, method, 3, kept, traced=True, engine={"enforce_eager": False}
        )
        assert result.log.count(TAKEN) == taken
        assert result.draft_replays > 5
