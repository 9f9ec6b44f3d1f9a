# SPDX-License-Identifier: Apache-2.0
"""The options of this process, parsed once."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mkv_ascend.config import MkvConfig, parse_config

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MAX_PARSED = 4
"""Mappings whose options are kept; vLLM has one, and copies it for the draft now and then."""

_parsed: list[tuple[Any, Any, MkvConfig]] = []


def options_of(config: VllmConfig) -> MkvConfig:
    """The options in ``config.additional_config``; the same object for the same mapping.

    Raises:
        ConfigError: an option is unknown, of the wrong type or impossible.
    """
    given = config.additional_config
    for mapping, as_parsed, options in _parsed:
        if mapping is given and as_parsed == given:
            return options
    options = parse_config(given)
    _parsed.append((given, copy.deepcopy(given), options))
    del _parsed[:-MAX_PARSED]
    return options
