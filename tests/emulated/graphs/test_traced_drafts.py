# SPDX-License-Identifier: Apache-2.0
"""Engines with drafts in vLLM's default mode: Dynamo traces target and draft.

Most tests in graphs leave tracing out, because it takes long. Here nothing is asked for but sizes:
steps with prompts run in pieces, verify steps and proposals from full graphs. Tokens, every
proposal and what is accepted are those of plain loops. ``test_draft_graphs.py``,
``test_auxiliary_states.py``, ``models/test_deepseek_v4.py`` and
``platform/test_default_settings.py`` have more pairs, on one device.
"""

import pytest

from tests.support import engine
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.stages import STAGES
from tests.support.stock import each_runner

pytestmark = needs_float32
RANKS = {"tensor_parallel_size": 2}
SHARED_EXPERTS = {**RANKS, "enable_expert_parallel": True}


def run_traced(target, draft, method, runner, *, models=2, **options) -> engine.Result:
    """``models``: that are traced on all ranks together."""
    result = assert_reference(
        target,
        draft,
        method,
        3,
        runner,
        engine={"enforce_eager": False, **options},
        traced=True,
    )
    assert "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE" in result.log
    assert result.log.count("AscendCompiler hash factors") == models
    assert result.draft_replays > 5
    return result


@pytest.mark.nightly(
    "a draft model on two ranks that share experts stays",
    cases=["*-v1", "dflash-*", "draft_model-*", "eagle-*", "mtp-*"],
)
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", id="mtp"),
        pytest.param("gpt_oss", "gpt_oss_dflash", "dflash", id="dflash"),
        pytest.param("llama_target", "llama_eagle", "eagle", id="eagle"),
        pytest.param("llama_target", "deepseek_v2_draft", "draft_model", id="draft_model"),
        # Its layers read the target's keys. Where vLLM finds Triton, a kernel is in its graph. No
        # method is asked for: the head's class says it.
        pytest.param("gemma4", "gemma4_mtp", None, id="queries"),
    ],
)
def test_on_one_device(target, draft, method, runner):
    run_traced(target, draft, method, runner)


@pytest.mark.host("0.23", cases=["*-up-v1"])
@pytest.mark.host("0.30", cases=["eagle3-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["draft_model-*", "eagle3-v2", "experts-*"])
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method", "options"),
    [
        pytest.param("gpt_oss", "gpt_oss_eagle3", "eagle3", RANKS, id="eagle3"),
        pytest.param("gemma3", "gemma3_draft", "draft_model", RANKS, id="draft_model"),
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", SHARED_EXPERTS, id="experts"),
        # Steps are filled up with rows that no dense layer would write, and experts read them.
        pytest.param("gpt_oss", "gpt_oss_draft", "draft_model", SHARED_EXPERTS, id="filled-up"),
    ],
)
def test_on_two_ranks(target, draft, method, options, runner):
    run_traced(target, draft, method, runner, models=4, **options)


@pytest.mark.nightly("stages are traced on model runner V2, which stays", cases=["*-v1", "mtp-*"])
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        pytest.param("gemma3", "gemma3_draft", "draft_model", id="draft_model"),
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", id="mtp"),
    ],
)
def test_over_two_stages(target, draft, method, runner):
    """Each stage traces its own layers, the last one the draft, too."""
    run_traced(target, draft, method, runner, models=3, **STAGES)
