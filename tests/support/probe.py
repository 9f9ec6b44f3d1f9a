# SPDX-License-Identifier: Apache-2.0
"""Functions of tests that run in a process of their own, mostly with an engine in it.

``programs.answer_of(probes.sleep, {...})`` calls the function there. What is asked comes as JSON,
and so goes the answer. Nothing of vLLM is imported before the function runs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any


def started(arguments: dict[str, Any], *, traced: bool = False, records: bool = False) -> Any:
    """``vllm.LLM`` with these arguments.

    Args:
        traced: whether Dynamo may trace its models, which are run as they are written otherwise.
        records: whether its proposals are noted, for which model runner V2 hands them over.
    """
    from tests.support import engine, recorded_proposals

    if not (traced or arguments.get("enforce_eager")):
        engine._do_not_trace()
    if records and engine.runs_v2(os.environ):
        recorded_proposals.hand_over_drafts()
    from vllm import LLM

    return LLM(**arguments)


def greedy(max_tokens: int) -> Any:
    """Sampling of so many tokens, whatever they are."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


def given(prompts: Sequence[list[int]]) -> list[dict[str, Any]]:
    """Prompts of token ids as vLLM takes them."""
    return [{"prompt_token_ids": prompt} for prompt in prompts]


def generated(llm: Any, asked: dict[str, Any]) -> list[list[int]]:
    """Greedy tokens of each of the ``prompts`` in ``asked``."""
    outputs = llm.generate(given(asked["prompts"]), greedy(asked["max_tokens"]), use_tqdm=False)
    return said(outputs)


def said(outputs: Sequence[Any]) -> list[list[int]]:
    """Tokens of vLLM's outputs."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def core_of(llm: Any) -> Any:
    """The engine core in this process."""
    return llm.llm_engine.engine_core.engine_core


def worker_of(llm: Any) -> Any:
    """Its worker, where it has one alone."""
    return core_of(llm).model_executor.driver_worker.worker


def counts(llm: Any) -> dict[str, Any]:
    """``drafts`` that were verified, and how many of their tokens were ``accepted``, by place."""
    from tests.support.engine import _metrics

    metrics = _metrics(llm)
    return {
        "drafts": metrics["vllm:spec_decode_num_drafts"],
        "accepted": metrics["vllm:spec_decode_num_accepted_tokens_per_pos"],
    }


class ProbedEngine:
    """Drafts for the same prompts each time.

    Args:
        case: ``engine``, arguments of ``vllm.LLM``; ``prompts``, token ids of each; ``max_tokens``,
            one number for all, or one for each.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        from tests.support import engine

        engine._do_not_trace()
        self._llm = started(case["engine"])
        self._prompts = given(case["prompts"])
        asked = case["max_tokens"]
        each = asked if isinstance(asked, list) else [asked] * len(self._prompts)
        self._sampling = [greedy(number) for number in each]

    @property
    def runner(self) -> Any:
        """The model runner of its worker."""
        return worker_of(self._llm).model_runner

    @property
    def scheduler(self) -> Any:
        """The scheduler of its core."""
        return core_of(self._llm).scheduler

    def layers(self) -> list[dict[str, Any]]:
        """One row per attention layer, as in ``engine.Result``."""
        rows: list[dict[str, Any]] = self._llm.collective_rpc("attention_layers")[0]
        return rows

    def generate(self) -> dict[str, Any]:
        """``tokens`` of each prompt, and numbers of draft tokens, ``drafted`` and ``accepted``."""
        before = self._counters()
        outputs = self._llm.generate(self._prompts, self._sampling, use_tqdm=False)
        drafted, accepted = (new - old for new, old in zip(self._counters(), before, strict=True))
        return {"tokens": said(outputs), "drafted": drafted, "accepted": accepted}

    def _counters(self) -> list[int]:
        found = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        of_drafts = "vllm:spec_decode_num_{}_tokens"
        return [found[of_drafts.format(which)] for which in ("draft", "accepted")]


def main(name: str, asked: str) -> None:
    """Answer what is ``asked`` by the function ``MODULE:NAME``."""
    module, _, function = name.partition(":")
    answer = getattr(importlib.import_module(module), function)(json.loads(asked))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
