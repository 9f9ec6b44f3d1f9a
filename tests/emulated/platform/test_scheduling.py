# SPDX-License-Identifier: Apache-2.0
"""What `check` and `advise` take for scheduled ahead is what vLLM's own configuration says.

No engine is started.
"""

import pytest

from mkv_ascend.checks.scheduling import NEVER_AHEAD, is_scheduled_ahead, note_of_waiting
from tests.support import hosts
from tests.support.tiny_models import model_directory

K = 3
DRAFTS = {
    "draft_model": "llama_draft",
    "eagle3": "llama_eagle3",
    "dflash": "gpt_oss_dflash",
    "ngram": None,
}
IN_TURN = {"disable_padded_drafter_batch": True}


def configured(method, more, **asked):
    """Whether vLLM's configuration schedules ahead."""
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
    from vllm.engine.arg_utils import EngineArgs

    speculative = None
    if method is not None:
        speculative = {"method": method, "num_speculative_tokens": K, **more}
        if DRAFTS[method] is not None:
            speculative["model"] = str(model_directory(DRAFTS[method]))
    # Layers whose states the block's head reads are the target's.
    model = str(model_directory("gpt_oss" if method == "dflash" else "llama_target"))
    asked = {"skip_tokenizer_init": True, "dtype": "float16", **asked}
    made = EngineArgs(model=model, speculative_config=speculative, **asked)
    return made.create_engine_config().scheduler_config.async_scheduling


@pytest.mark.parametrize(
    ("method", "more", "asked"),
    [
        (None, {}, None),
        *((method, {}, None) for method in DRAFTS),
        ("eagle3", IN_TURN, None),
        ("eagle3", {}, False),
    ],
    ids=str,
)
def test_by_default_and_where_it_is_switched_off(method, more, asked):
    told = is_scheduled_ahead(asked, method, more, hosts.ADAPTER.RULES)
    assert told == configured(method, more, async_scheduling=asked)


@pytest.mark.parametrize("more", [{}, IN_TURN], ids=str)
def test_where_asking_for_it_would_help(more):
    """It is scheduled ahead when asked to; vLLM refuses that where rows are not padded."""
    rules, method = hosts.ADAPTER.RULES, "draft_model"
    by_default = is_scheduled_ahead(None, method, more, rules)
    try:
        asked = configured(method, more, async_scheduling=True)
    except ValueError:
        asked = False
    assert bool(note_of_waiting(method, more, rules)) == (asked and not by_default)


def test_lookup_is_refused_where_it_is_asked_to_be_scheduled_ahead():
    assert "ngram" in NEVER_AHEAD
    with pytest.raises(ValueError, match="async scheduling is only supported"):
        configured("ngram", {}, async_scheduling=True)
