# SPDX-License-Identifier: Apache-2.0
"""Options are parsed once per process, in one place of an adapter."""

import re
from types import SimpleNamespace

import pytest

import foreign_names
from mkv_ascend.adapters.common import options
from mkv_ascend.config import ConfigError, MkvConfig


def engine(**given):
    return SimpleNamespace(additional_config=given)


def test_a_mapping_is_parsed_once_and_again_when_it_changed(monkeypatch):
    parsed = []

    def parse(given):
        parsed.append(given)
        return options.MkvConfig()

    monkeypatch.setattr(options, "parse_config", parse)
    config = engine(mkv_ascend={"attention": {}})
    draft = SimpleNamespace(additional_config=config.additional_config)
    first = options.options_of(config)
    assert all(options.options_of(either) is first for either in (config, draft) * 3)
    assert len(parsed) == 1
    config.additional_config["mkv_ascend"] = {"layout": {}}
    assert options.options_of(config) is not first
    assert len(parsed) == 2


def test_equal_mappings_of_two_engines_are_told_apart():
    one, other = engine(mkv_ascend={"layout": {"shared_pages": False}}), engine()
    assert options.options_of(one).layout.shared_pages is False
    assert options.options_of(other) == MkvConfig()


def test_a_mistake_is_raised_every_time():
    wrong = engine(mkv_ascend={"layuot": {}})
    for _ in range(2):
        with pytest.raises(ConfigError, match="layuot"):
            options.options_of(wrong)


def test_no_other_file_of_an_adapter_parses_options():
    parsing = [
        path.name
        for path in foreign_names.all_sources()
        if re.search(r"\bparse_config\b", path.read_text(encoding="utf-8"))
    ]
    assert parsing == ["options.py"]
