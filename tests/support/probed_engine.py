# SPDX-License-Identifier: Apache-2.0
"""An engine in this process, for programs that break something in it and look at the result.

Such a program sets ``VLLM_ENABLE_V1_MULTIPROCESSING`` to 0 before it imports vLLM.
"""

from __future__ import annotations

from typing import Any

from tests.support import engine


class ProbedEngine:
    """Drafts for the same prompts each time.

    Args:
        case: ``engine``, arguments of ``vllm.LLM``; ``prompts``, token ids of each; ``max_tokens``,
            one number for all, or one for each.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams

        engine._do_not_trace()
        self._llm = LLM(**case["engine"])
        self._prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
        asked = case["max_tokens"]
        self._sampling = [
            SamplingParams(temperature=0.0, max_tokens=number, ignore_eos=True, detokenize=False)
            for number in (asked if isinstance(asked, list) else [asked] * len(self._prompts))
        ]

    @property
    def runner(self) -> Any:
        """The model runner of its worker."""
        core = self._llm.llm_engine.engine_core.engine_core
        return core.model_executor.driver_worker.worker.model_runner

    @property
    def scheduler(self) -> Any:
        """The scheduler of its core."""
        return self._llm.llm_engine.engine_core.engine_core.scheduler

    def layers(self) -> list[dict[str, Any]]:
        """One row per attention layer, as in ``engine.Result``."""
        rows: list[dict[str, Any]] = self._llm.collective_rpc("attention_layers")[0]
        return rows

    def generate(self) -> dict[str, Any]:
        """``tokens`` of each prompt, and numbers of draft tokens, ``drafted`` and ``accepted``."""
        before = self._counters()
        outputs = self._llm.generate(self._prompts, self._sampling, use_tqdm=False)
        drafted, accepted = (new - old for new, old in zip(self._counters(), before, strict=True))
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        return {"tokens": tokens, "drafted": drafted, "accepted": accepted}

    def _counters(self) -> list[int]:
        found = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        of_drafts = "vllm:spec_decode_num_{}_tokens"
        return [found[of_drafts.format(which)] for which in ("draft", "accepted")]
