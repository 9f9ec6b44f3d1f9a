# SPDX-License-Identifier: Apache-2.0
"""What checks read of vLLM's EngineArgs, here a dataclass of its form."""

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from mkv_ascend.checks.engine_arguments import asked_of


class Backend(Enum):
    MLA = 1


@dataclass
class Speculation:
    model: str = "draft"
    num_speculative_tokens: int = 3
    object_of_vllm: Any = None


@dataclass
class Arguments:
    model: str
    max_model_len: int | None = None
    dtype: str = "auto"
    additional_config: dict[str, Any] = field(default_factory=dict)
    speculative_config: Any = None
    attention_backend: Any = None
    attention_config: Any = None
    compilation_config: Any = field(default_factory=dict)
    load_format: Any = "auto"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, {}),
        ({"max_model_len": 4096, "dtype": "auto"}, {"max_model_len": 4096}),
        ({"attention_backend": Backend.MLA}, {"attention_backend": "MLA"}),
        (
            {"attention_config": SimpleNamespace(backend=Backend.MLA)},
            {"attention_backend": "MLA"},
        ),
        (
            {"speculative_config": Speculation()},
            {"speculative_config": {"model": "draft", "num_speculative_tokens": 3}},
        ),
        (
            {"compilation_config": SimpleNamespace(cudagraph_mode=Backend.MLA)},
            {"compilation_config": {"cudagraph_mode": "MLA"}},
        ),
        ({"compilation_config": SimpleNamespace(cudagraph_mode=None)}, {}),
        (
            {
                "compilation_config": SimpleNamespace(
                    mode=0, cudagraph_capture_sizes=[8], max_cudagraph_capture_size=None
                )
            },
            {"compilation_config": {"mode": 0, "cudagraph_capture_sizes": [8]}},
        ),
        ({"load_format": object()}, {}),
        (
            {"additional_config": MappingProxyType({"layout": 1})},
            {"additional_config": {"layout": 1}},
        ),
        ({"compilation_config": {"mode": 3}}, {"compilation_config": {"mode": 3}}),
    ],
)
def test_plain_values_of_what_is_not_the_default(given, asked):
    assert asked_of(Arguments("target", **given)) == {"model": "target", **asked}
