# SPDX-License-Identifier: Apache-2.0
"""``use_local_argmax_reduction``: which drafts model runner V2 takes it with."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.checks import about_top_tokens
from mkv_ascend.checks.gathering import gather
from mkv_ascend.checks.judging import refusals
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.layout.kind import Role
from tests.support import hosts
from tests.support.host_checks import DEVICE, EQUAL_PAGES

TARGET = "Llama-3.1-8B"


def said(models: dict[str, str], runner: str, **speculative: Any) -> list[str]:
    draft = {"num_speculative_tokens": 3, "use_local_argmax_reduction": True, **speculative}
    engine = {"model": models[TARGET], "speculative_config": draft}
    facts = replace(gather(engine, DEVICE, EQUAL_PAGES), runner=runner)
    found = [one for one in refusals(facts) if "use_local_argmax" in str(one)]
    assert {one.code for one in found} <= {"draft-option"}
    return [str(one) for one in found]


def test_a_class_that_cannot_say_them_is_refused_on_v2_alone(models: dict[str, str]) -> None:
    known, unknown = models[TARGET], models["gpt-oss-20b"]
    assert said(models, "v2", model=known) == []
    (found,) = said(models, "v2", model=unknown, method="draft_model")
    assert "get_top_tokens for " in found
    assert "models and heads of Llama's kind" in found
    assert "leave use_local_argmax_reduction out" in found
    assert said(models, "v1", model=unknown, method="draft_model") == []
    assert said(models, "v2", model=unknown, use_local_argmax_reduction=False) == []
    (found,) = said(models, "v2", model=known, draft_sample_method="probabilistic")
    assert "one of the two" in found


@pytest.mark.parametrize(
    ("method", "architecture", "model_type", "says"),
    [
        ("draft_model", "GptOssForCausalLM", "gpt_oss", False),
        ("eagle", "LlamaForCausalLM", "llama", True),
        ("eagle", "DeepseekV3ForCausalLM", "deepseek_v3", False),
        ("eagle3", "LlamaForCausalLMEagle3", "llama", True),
        ("eagle3", "LlamaForCausalLM", "llama", True),
        ("dflash", "DFlashDraftModel", "qwen3", True),
        ("mtp", "DeepseekV3ForCausalLM", "deepseek_v3", False),
        ("mtp", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", True),
        ("mtp", "Gemma4AssistantForCausalLM", "gemma4_text", True),
    ],
)
def test_classes_by_method(method: str, architecture: str, model_type: str, says: bool) -> None:
    values = {"architectures": [architecture], "model_type": model_type}
    draft = ModelFacts(Role.DRAFT, "/models/draft", values, values)
    assert about_top_tokens.says_top_tokens(method, draft) == says


def vllms_classes() -> tuple[dict[str, str], set[str]]:
    """Names in vLLM's registry with their classes, and the classes that have the method.

    Read, and not imported: that takes half a minute.
    """
    (folder,) = importlib.util.find_spec("vllm").submodule_search_locations
    registry = Path(folder, "model_executor/models/registry.py").read_text()
    named = {
        key.value: value.elts[1].value
        for found in ast.walk(ast.parse(registry))
        if isinstance(found, ast.Dict)
        for key, value in zip(found.keys, found.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)
    }
    bases: dict[str, set[str]] = {}
    having = set()
    for file in Path(folder, "model_executor/models").glob("*.py"):
        for found in ast.walk(ast.parse(file.read_text())):
            if isinstance(found, ast.ClassDef):
                own = bases.setdefault(found.name, set())
                own |= {one.id for one in found.bases if isinstance(one, ast.Name)}
                if any(getattr(one, "name", "") == "get_top_tokens" for one in found.body):
                    having.add(found.name)
            elif isinstance(found, ast.Assign) and isinstance(found.value, ast.Name):
                # A class that has another name for what checks types.
                names = (one.id for one in found.targets if isinstance(one, ast.Name))
                for name in names:
                    bases.setdefault(name, set()).add(found.value.id)
    while more := {name for name in bases if bases[name] & having} - having:
        having |= more
    return named, having


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 gives fewer classes the method")
def test_they_are_vllms() -> None:
    named, having = vllms_classes()
    ours = about_top_tokens.MODELS | about_top_tokens.HEADS
    assert {name for name in ours if named[name] not in having} == set()
    without = ("GptOssForCausalLM", "Gemma3ForCausalLM", "DeepseekV3ForCausalLM", "Qwen3NextMTP")
    assert not {named[name] for name in (*without, "DeepSeekMTPModel")} & having
    assert {named[name] for name in ("Qwen3_5MTP", "Qwen3_5MoeMTP", "Gemma4MTPModel")} <= having
