# SPDX-License-Identifier: Apache-2.0
"""Messages of what hosts share name the installed vLLM and vllm-ascend, not one release."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import mkv_ascend
from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks import about_draft
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.kind import Role

PACKAGE = Path(mkv_ascend.__file__).parent
SHARED = ("adapters/common", "attention", "checks", "drafting", "layout")
RELEASE = re.compile(r"\d\.\d+\.\d")


def messages(path: Path) -> Iterator[str]:
    """What a file raises, yields or returns of text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Raise, ast.Yield, ast.Return)):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


@pytest.mark.parametrize("folder", SHARED)
def test_no_message_of_shared_code_names_a_release(folder: str) -> None:
    paths = sorted((PACKAGE / folder).rglob("*.py"))
    found = {path.name: text for path in paths for text in messages(path) if RELEASE.search(text)}
    assert len(paths) > 5
    assert found == {}


def refusal_of_too_many_tokens() -> str:
    device = DeviceFacts(1, None, DeviceGeneration.A2, "a test")
    target = ModelFacts(Role.TARGET, "T", {}, {})
    facts = ServeFacts({}, MkvConfig(), target, device, SpeculationFacts("ngram", 16, {}))
    (refusal,) = about_draft.tokens_per_step(facts)
    return refusal.asked


def test_a_refusal_names_the_installed_release() -> None:
    installed = metadata.version("vllm-ascend").partition("+")[0]
    assert f"attention of vllm-ascend {installed} takes at most 16" in refusal_of_too_many_tokens()


@pytest.mark.parametrize(("version", "named"), [("9.8.7+empty", "vLLM 9.8.7"), (None, "vLLM")])
def test_names_without_a_local_part_or_a_version(
    version: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_versions, "installed_version", lambda _: version)
    assert host_versions.vllm() == named
    assert named.replace("vLLM", "vllm-ascend") in refusal_of_too_many_tokens()
