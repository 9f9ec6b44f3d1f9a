# SPDX-License-Identifier: Apache-2.0
"""Assertions as hosts have them: pytest gives words to those that stand in a test's own file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pydantic.dataclasses import dataclass


def with_cache(dtype: str) -> Any:
    return SimpleNamespace(cache_config=SimpleNamespace(cache_dtype=dtype))


def refuse_fp8(config: Any) -> None:
    if config.cache_config.cache_dtype == "fp8":
        assert not config
    else:
        raise AssertionError


def refuse_all(config: Any) -> None:
    assert not config


def refuse_with_words() -> None:
    raise AssertionError("the words of a host")


@dataclass
class Checked:
    """As ``VllmConfig``, which has the platform check it."""

    name: str = ""

    def __post_init__(self) -> None:
        refuse_fp8(with_cache("fp8"))
