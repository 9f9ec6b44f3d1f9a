# SPDX-License-Identifier: Apache-2.0
"""Numbers of a config.json that would cost memory or time in proportion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mkv_ascend.checks import config_defaults
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "tests" / "data" / "configs").glob("*"))


def test_labels_without_number_are_refused(tmp_path: Path) -> None:
    config = json.loads((CONFIGS[0] / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_labels": 10**9}))
    with pytest.raises(ConfigFileError, match="num_labels is 1000000000; a whole number from 0"):
        read_config_file(tmp_path)


def test_what_no_bound_names_ends_at_the_memory_of_the_process() -> None:
    """Whatever a class of transformers makes of a number: here a name for each label."""
    config = {"model_type": "llama", "num_labels": 10**9, "hidden_size": 64}
    said = r"more than 2 GiB of memory, or 30 s .* largest of them is num_labels, 1000000000: write"
    with pytest.raises(config_defaults.DefaultsError, match=said):
        config_defaults._ask([config])


def test_what_is_long_is_not_handed_over() -> None:
    """Values that fit into the process's memory, and are no configuration."""
    config = {"model_type": "llama", "num_labels": 2 * 10**6}
    with pytest.raises(config_defaults.DefaultsError, match="largest of them is num_labels"):
        config_defaults._ask([config])
