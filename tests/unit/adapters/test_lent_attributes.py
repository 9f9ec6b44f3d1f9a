# SPDX-License-Identifier: Apache-2.0
"""Attributes that are lent to a configuration for the time of a call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.patching import lent


def test_what_is_lent_is_gone_afterwards() -> None:
    config = SimpleNamespace()

    def call() -> None:
        with lent(config, "image_token_index", 7):
            assert config.image_token_index == 7
            raise KeyError

    with pytest.raises(KeyError):
        call()
    assert vars(config) == {}


def test_an_attribute_of_its_own_is_left_alone() -> None:
    config = SimpleNamespace(image_token_index=3)
    with lent(config, "image_token_index", 7):
        assert config.image_token_index == 3
    assert config.image_token_index == 3
