# SPDX-License-Identifier: Apache-2.0
"""Which methods a draft's class fits: the table of all methods and all kinds of drafts.

vLLM compares them for no method but ``draft_model``. What it makes of a wrong pair is a late error,
or a draft of which no token is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.checks.speculation import METHODS
from mkv_ascend.checks.weight_files import TensorFiles, is_of_predictor, tensors_of

__all__ = ["CHECKS", "fitting_methods"]

NAMED = (
    ("eagle3", re.compile(r"Eagle3$|^Eagle3|^P[Ee]agle"), "an EAGLE-3 head"),
    ("eagle", re.compile(r"^Eagle"), "an EAGLE head"),
    ("dflash", re.compile(r"^DFlash|DFlash$|^MuseGlimmerAssistant"), "a DFlash head"),
    ("dspark", re.compile(r"DSpark"), "a DSpark head"),
    ("mtp", re.compile(r"MTP|Gemma4\w*Assistant"), "multi-token prediction layers"),
    ("medusa", re.compile(r"^Medusa"), "Medusa heads"),
    ("mlp_speculator", re.compile(r"^MLPSpeculator"), "an MLP speculator"),
)
"""Method, the names of classes that are drafts of it alone, and what such a draft is."""
MADE_BY_METHOD = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}
"""What vLLM puts in front of a class of another name (``EAGLEConfig``)."""
ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
UNCOUNTED = re.compile(r"nextn|mtp|n_predict")
"""In fields of configurations whose model has prediction layers."""
REWRITTEN = ("deepseek", "glm_moe_dsa", "mistral")
"""Families of which vLLM takes the class of a head from another table (``hf_config_override``)."""


def fitting_methods(draft: ModelFacts, tensors: TensorFiles | None) -> tuple[str, ...]:
    """Methods that a draft can be asked for with.

    Args:
        tensors: of its files of weights; None where they are not there.
    """
    if str(draft.values.get("model_type")) in ASSISTANTS:
        return ("mtp",)
    if draft.model_type in ("medusa", "mlp_speculator"):
        return (draft.model_type,)
    for method, pattern, _ in NAMED:
        if any(pattern.search(name) for name in draft.architectures[:1]):
            return (method,)
    whole = tuple(method for method, fits in _of_whole_model(draft, tensors).items() if fits)
    if tensors is None or tensors.problems or tensors.missing:
        # Published EAGLE heads name the class of a whole Llama.
        return (*whole, *MADE_BY_METHOD)
    head = _head_by_tensors(tensors)
    return whole if head is None else (head,)


def _of_whole_model(draft: ModelFacts, tensors: TensorFiles | None) -> dict[str, bool]:
    """The methods of a model that has no class of a head."""
    counted = any(UNCOUNTED.search(name) for part in (draft.values, draft.text) for name in part)
    layers = draft.number("num_hidden_layers")
    seen = tensors is not None and any(is_of_predictor(name, layers) for name in tensors.shapes)
    # DeepSeek-V4's own checkpoints have heads of method dspark.
    return {
        "draft_model": True,
        "mtp": counted or draft.has_predictor or seen,
        "dspark": draft.is_compressed,
    }


def _head_by_tensors(tensors: TensorFiles) -> str | None:
    """The method of a head by what its files have; None for a model of its own."""
    names = [name.removeprefix("model.") for name in tensors.shapes]
    if not tensors.has_fc:
        return None
    if any("d2t" in name or "midlayer" in name or ".hidden_norm." in name for name in names):
        return "eagle3"
    return "dflash" if any(name.startswith("hidden_norm.") for name in names) else "eagle"


def method_and_class(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft of a class that is not the method's."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None:
        return
    method = speculation.method
    if method == "mtp" and speculation.options.get("model") is None:
        # ``own_predictor`` judges the target's own.
        return
    fitting = fitting_methods(draft, tensors_of(draft.name))
    if method in fitting:
        yield from _class_of_method(facts, method, draft)
        return
    what = next((what for name, _, what in NAMED if (name,) == fitting), "a model of its own")
    asked = f"method {method} is asked for"
    if speculation.options.get("method") is None:
        asked = f"no method is asked for, which means {method}"
    other = f"choose a draft of method {method}"
    served = fitting[0] in METHODS
    yield Refusal(
        "draft-class",
        f"{asked}, and the draft {draft.name} ({', '.join(draft.architectures) or 'no class'}) is "
        f"{what}",
        f"this draft with method {' or '.join(fitting)}" if served else "drafts of another class",
        f'write "method": "{fitting[0]}", or {other}' if served else other,
    )


def _class_of_method(facts: ServeFacts, method: str, draft: ModelFacts) -> Iterator[Refusal]:
    """A model whose class, made a head by the method, the installed vLLM lacks."""
    rules, names = facts.rules, draft.architectures[:1]
    if method not in MADE_BY_METHOD or rules is None or not names:
        return
    if not host_versions.runs_vllm(rules.vllm):
        return
    if draft.model_type.startswith(REWRITTEN) or any(p.search(names[0]) for _, p, _ in NAMED):
        return
    made = MADE_BY_METHOD[method] + names[0]
    if host_versions.model_classes() and made not in host_versions.model_classes():
        yield Refusal(
            "draft-class",
            f"method {method} makes {made} of the draft {draft.name} ({names[0]}), and "
            f"{host_versions.vllm()} has no such class",
            f"drafts that were trained for method {method}, or a model of its own by draft_model",
            f"choose a draft of method {method}, or another method",
        )


CHECKS = (method_and_class,)
