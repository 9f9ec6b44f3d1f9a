# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend check`` tells the mode of graphs that vLLM and vllm-ascend come to, and sizes.

An engine is not started: vLLM's own configuration says both.
"""

import pytest

from mkv_ascend.checks.engine_arguments import asked_of
from mkv_ascend.checks.gathering import gather
from mkv_ascend.checks.graph_modes import graph_mode
from mkv_ascend.checks.judging import refusals
from tests.support import hosts
from tests.support.tiny_models import model_directory

ASKED = [
    {},
    {"optimization_level": 0},
    {"optimization_level": 1},
    {"enforce_eager": True, "compilation_config": {"cudagraph_mode": "FULL"}},
    {"optimization_level": 0, "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
    {"optimization_level": 0, "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
    *(
        {"compilation_config": {"mode": mode, **graphs}}
        for mode in (0, "none", 1, 2, 3)
        for graphs in (
            {},
            {"cudagraph_mode": "piecewise"},
            {"cudagraph_mode": "FULL_DECODE_ONLY"},
            {"cudagraph_mode": "FULL_AND_PIECEWISE"},
        )
    ),
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_mode_is_the_one_of_vllms_configuration(asked):
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
    from vllm.engine.arg_utils import EngineArgs

    model = str(model_directory("llama_target"))
    arguments = EngineArgs(model=model, skip_tokenizer_init=True, dtype="float16", **asked)
    told = graph_mode(asked_of(arguments), hosts.ADAPTER.RULES)
    made = arguments.create_engine_config()
    assert told == made.compilation_config.cudagraph_mode.name


@pytest.mark.parametrize(
    ("sizes", "most", "more", "refused"),
    [
        ([8, 64, 512], 512, {}, True),
        ([8, 64, 512], 64, {}, False),
        ([64, 8], 64, {}, False),
        ([8, 64], 32, {}, True),
        ([8, 64], None, {}, False),
        ([], None, {}, True),
        ([8, 64], 32, {"enforce_eager": True}, False),
        ([8, 64], 32, {"mode": 2, "cudagraph_mode": "PIECEWISE"}, False),
        ([8, 64], 32, {"max_num_batched_tokens": None}, True),
    ],
)
def test_sizes_of_captures_are_refused_as_by_vllm(sizes, most, more, refused):
    import vllm_ascend.ops  # noqa: F401  before the rest of it
    from vllm.engine.arg_utils import EngineArgs

    from mkv_ascend.adapters.common.early_checks import front_check

    modes = {name: more[name] for name in ("mode", "cudagraph_mode") if name in more}
    others = {name: more[name] for name in more.keys() - modes.keys()}
    arguments = EngineArgs(
        model=str(model_directory("llama_target")),
        skip_tokenizer_init=True,
        dtype="float16",
        compilation_config={
            "cudagraph_capture_sizes": sizes,
            "max_cudagraph_capture_size": most,
            **modes,
        },
        **{"max_num_batched_tokens": 256, "max_num_seqs": 8, **others},
    )
    engine, rules = asked_of(arguments), hosts.ADAPTER.RULES
    codes = [one.code for one in refusals(gather(engine, front_check.devices(), rules))]
    assert codes == (["capture-sizes"] if refused else [])
    try:
        arguments.create_engine_config()
    except (ValueError, AssertionError):
        assert refused
    else:
        assert not refused
