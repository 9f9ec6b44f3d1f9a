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

from tests.support import engine, hosts, reference, speculation
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


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
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


@pytest.mark.nightly("two engines; that heads are told apart stays")
@needs_float32
@hosts.only_on(
    "vllm_ascend_0_23", "in engines forked from one process 0.30.0rc2 hashes two EPLB policies"
)
def test_a_second_start_drafts_as_the_first(tmp_path):
    """Which traces nothing."""
    kept = {**KEEPS, "VLLM_CACHE_ROOT": str(tmp_path)}
    for taken in (0, 2):  # The target's and the head's.
        result = assert_reference(
            TARGET, HEAD, "eagle3", 3, kept, traced=True, engine={"enforce_eager": False}
        )
        assert result.log.count(TAKEN) == taken
        assert result.draft_replays > 5
