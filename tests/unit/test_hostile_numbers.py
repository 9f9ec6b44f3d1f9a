# SPDX-License-Identifier: Apache-2.0
"""Numbers of a config.json that would cost memory or time in proportion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mkv_ascend.checks import config_defaults
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "tests" / "data" / "configs").glob("*"))
OFTEN = ("DeepSeek-V3", "Qwen3-Next-80B-A3B", "gemma-3-27b")
"""Latents with experts and a predictor; recurrent states; a part of a model with images."""


def tried(folder: Path, number: int, configs: list[Path]) -> list[str]:
    """What the program says: commands that did not end as they should, and how many there were."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.hostile_numbers"),
            *(str(folder), str(number), *map(str, configs)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("number", [10**9, 10**18], ids=["10^9", "10^18"])
def test_no_number_of_a_configuration_costs_more_than_a_sentence(
    number: int, tmp_path: Path
) -> None:
    """In 4 GiB and 60 s: each number of each file, one at a time."""
    *wrong, count = tried(tmp_path, number, [one for one in CONFIGS if one.name in OFTEN])
    assert wrong == []
    assert int(count.removeprefix("commands: ")) > 250


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
