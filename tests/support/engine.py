# SPDX-License-Identifier: Apache-2.0
"""Run one engine in a process of its own and report what it did.

vLLM and vllm-ascend keep much state per process, so a test that starts an engine inside the test
process changes the next one. ``run(Scenario(...))`` runs it in a process of its own instead, gives
it the scenario as JSON and reads the result back (``programs`` says how the process starts). It has
our environment: under ``mkv-ascend emulate`` it runs on the emulated NPU, on an Ascend host
on the real one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import graph_replays, recorded_proposals
from tests.support.preemption import PreemptionForcer
from tests.support.programs import HANG_SECONDS, run_printing_to
from tests.support.recorded_proposals import VerifyStep
from tests.support.reference import DraftProposal

PROGRAM = "tests.support.engine"


@dataclass(frozen=True)
class Scenario:
    """What to run.

    Attributes:
        model: checkpoint directory of the target.
        draft: checkpoint directory of the draft; None runs without speculation.
        num_speculative_tokens: K, tokens drafted per proposal.
        prompts: token ids, one list per request; all are submitted at once.
        pictures: what each prompt shows, as ``pictures.Picture`` has it, or None; empty: nothing.
        max_tokens: tokens to generate per request; the end token is ignored.
        sampling: further fields of vLLM's SamplingParams; greedy by default.
        seeds: of the prompts, one each; without them sampling is not seeded.
        engine: further arguments of ``vllm.LLM``; they win over ``engine_arguments``.
        speculative: further fields of ``speculative_config``.
        mkv_ascend: our options, ``additional_config["mkv_ascend"]``.
        environment: variables set for the child process.
        repeats: how often the prompts are run one after another (2 shows prefix caching).
        graphs: the mode of ACL graphs to run in, for instance ``"FULL_DECODE_ONLY"``; None: eager.
        capture_sizes: token counts that graphs are captured for.
        traced: whether Dynamo traces the model, which modes with PIECEWISE need. Else graphs are
            captured from the model's own code, which takes less time.
        record_drafts: record every proposal; needs synchronous scheduling, which it sets. With
            asynchronous scheduling, which pipeline stages of model runner V2 have and ``engine``
            may ask for, a worker records them.
        record_steps: record what each step verified and gave, with synchronous scheduling.
        judged_after: proposals after which a draft is judged by what is accepted; None: as usual.
        force_preemption: hold back free blocks until a request is preempted (see ``preemption``).
    """

    model: str
    draft: str | None = None
    num_speculative_tokens: int = 3
    prompts: list[list[int]] = field(default_factory=list)
    pictures: list[Sequence[int] | None] = field(default_factory=list)
    max_tokens: int = 32
    sampling: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    mkv_ascend: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    repeats: int = 1
    graphs: str | None = None
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8)
    traced: bool = False
    record_drafts: bool = False
    record_steps: bool = False
    judged_after: int | None = None
    force_preemption: bool = False

    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of ``vllm.LLM``: small and eager.

        The dtype is float32 where the device takes it, so that tokens can be compared with a
        float32 reference: on the emulated NPU in that mode. A real one takes bfloat16.
        """
        arguments: dict[str, Any] = {
            "model": self.model,
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": compared_dtype(),
            "max_model_len": 512,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,
            "kv_cache_memory_bytes": 64 << 20,
            "disable_log_stats": False,
        }
        if self.draft is not None:
            arguments["speculative_config"] = {
                "method": "draft_model",
                "model": self.draft,
                "num_speculative_tokens": self.num_speculative_tokens,
                **self.speculative,
            }
        if self.graphs is not None:
            arguments["enforce_eager"] = False
            arguments["compilation_config"] = {
                "cudagraph_mode": self.graphs,
                "cudagraph_capture_sizes": list(self.capture_sizes),
            }
        if self.pictures:
            # The processor spells placeholders in a text.
            arguments["skip_tokenizer_init"] = False
            arguments["limit_mm_per_prompt"] = {"image": 1, "video": 0}
        if self.mkv_ascend:
            arguments["additional_config"] = {"mkv_ascend": self.mkv_ascend}
        if self.drafts_stay_in_workers:
            arguments["worker_extension_cls"] = recorded_proposals.IN_WORKERS
        elif self.record_drafts or self.record_steps:
            arguments["async_scheduling"] = False
        return {**arguments, **self.engine}

    @property
    def drafts_stay_in_workers(self) -> bool:
        """Whether proposals are recorded of which a scheduler, an asynchronous one, is not told."""
        stages = self.engine.get("pipeline_parallel_size", 1) > 1 and runs_v2(self.environment)
        asynchronous = stages or bool(self.engine.get("async_scheduling"))
        return self.record_drafts and asynchronous


@dataclass(frozen=True)
class Result:
    """What one engine did.

    Attributes:
        tokens: generated token ids per prompt, one list per repeat, prompt and choice.
        logprobs: of the generated tokens, where asked for by ``sampling``; same shape.
        cached_tokens: prompt tokens taken from the prefix cache, per repeat and prompt.
        num_drafts, num_draft_tokens: proposals, and tokens in them that were verified.
        accepted_per_position: how often the token at each draft position was accepted.
        proposals: every proposal, when recorded.
        steps: what each step verified and gave each request, when recorded.
        draft_replays: proposals that were replayed from a graph, ours or, with model runner V2, the
            host's own.
        draft_passes: of the draft's model, for proposals, in a graph or not.
        draft_waits: how often a proposal let the host wait for lengths.
        target_replays: of full graphs of the target, counted with model runner V2 alone, which does
            not log them for every model.
        layers: one row per attention layer: name, role, kind, backend, chosen_by, kv_group.
        num_gpu_blocks: blocks of the KV cache.
        asynchronous: whether its scheduler went ahead of the tokens.
        preemptions: how often a request was preempted.
        preempted_contexts: its token ids at that moment, where preemption was forced.
        log: what the process printed.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    proposals: list[DraftProposal] = field(default_factory=list)
    steps: list[VerifyStep] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    draft_replays: int = 0
    draft_passes: int = 0
    draft_waits: int = 0
    target_replays: int = 0
    num_gpu_blocks: int = 0
    asynchronous: bool = False
    preemptions: int = 0
    preempted_contexts: list[list[int]] = field(default_factory=list)
    platform: str = ""
    log: str = ""

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens."""
        return sum(self.accepted_per_position)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target step: 1 plus accepted draft tokens per proposal."""
        return 1 + self.num_accepted / self.num_drafts if self.num_drafts else 1.0


def replayed(log: str) -> bool:
    """Whether an engine's log says that graphs were replayed; hosts say it in other words."""
    return "Replaying aclgraph" in log or "ACL graph replay is active" in log


def runs_v2(environment: Mapping[str, str]) -> bool:
    """Whether an engine with these variables runs model runner V2."""
    return environment.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


def compared_dtype() -> str:
    """The dtype nearest to the float32 reference that this process's device takes."""
    import torch_npu

    accepted: frozenset[str] = getattr(torch_npu, "emulated_extra_dtypes", frozenset())
    return "float32" if "float32" in accepted else "bfloat16"


class EngineFailedError(RuntimeError):
    """The engine's process ended with an error; the text holds the end of its log."""


def run(scenario: Scenario, timeout: float = HANG_SECONDS) -> Result:
    """Run one scenario in a new process.

    Raises:
        EngineFailedError: the process failed or took longer than ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        request, answer = Path(directory, "scenario.json"), Path(directory, "result.json")
        request.write_text(json.dumps(dataclasses.asdict(scenario)))
        printed = Path(directory, "log.txt")
        status = run_printing_to(
            printed, printed, PROGRAM, [str(request), str(answer)], scenario.environment, timeout
        )
        log = printed.read_text(errors="replace")
        if status is None:
            raise EngineFailedError(f"no result after {timeout} s\n{log[-20000:]}")
        if not answer.exists():
            raise EngineFailedError(log[-20000:])
        fields = json.loads(answer.read_text())
    proposals = [DraftProposal(**proposal) for proposal in fields.pop("proposals")]
    steps = [VerifyStep(**step) for step in fields.pop("steps")]
    return Result(proposals=proposals, steps=steps, log=log, **fields)


def _metrics(llm: Any) -> dict[str, Any]:
    found = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", None)
        found[metric.name] = value if value is not None else getattr(metric, "values", None)
    return found


def _add_to_policies(scenario: Scenario) -> None:
    """As vllm serve does before it reads options: vllm-ascend's policy is then one of vLLM's."""
    if "eplb_config" in scenario.engine:
        from vllm.platforms import current_platform

        current_platform.pre_register_and_update()


def _do_not_trace() -> None:
    """Run models as they are written where vLLM would have Dynamo trace them."""
    import torch._dynamo

    torch._dynamo.config.disable = True
    # For worker processes, and for vLLM, which else asks Dynamo for what it compiled.
    os.environ.update(TORCHDYNAMO_DISABLE="1", VLLM_USE_AOT_COMPILE="0")


def _judge_drafts_after(proposals: int) -> None:
    """Let a draft be judged by fewer proposals than it is worth waiting for with users."""
    from mkv_ascend.adapters.common.patches import acceptance_by_count
    from mkv_ascend.drafting.counts import DraftWorth

    vars(acceptance_by_count)["DraftWorth"] = functools.partial(DraftWorth, proposals)


def _execute(scenario: Scenario) -> Result:
    if scenario.graphs is not None and not scenario.traced:
        _do_not_trace()
    if (scenario.record_drafts or scenario.record_steps) and runs_v2(scenario.environment):
        recorded_proposals.hand_over_drafts()
    if scenario.judged_after is not None:
        _judge_drafts_after(scenario.judged_after)
    if scenario.pictures:
        from tests.support import pictures

        pictures.load_without_torchvision()
    from vllm import LLM
    from vllm.platforms import current_platform

    _add_to_policies(scenario)
    llm = LLM(**scenario.engine_arguments())
    core = llm.llm_engine.engine_core.engine_core
    proposals = recorded_proposals.begin(llm, scenario)
    steps = recorded_proposals.verify_steps(core.scheduler) if scenario.record_steps else []
    target_replays = graph_replays.of_target(core.model_executor)
    host_replays = graph_replays.of_host_proposals(core.model_executor)
    forcer = PreemptionForcer(core.scheduler) if scenario.force_preemption else None
    prompts, sampling = _prompts(scenario), _sampling(scenario)
    outputs = []
    for _ in range(scenario.repeats):
        outputs += llm.generate(prompts, sampling, use_tqdm=False)
    metrics = _metrics(llm)
    per_position = metrics.get("vllm:spec_decode_num_accepted_tokens_per_pos") or []
    platform, replays = type(current_platform), _draft_replays(llm)
    return Result(
        tokens=[list(one.token_ids) for output in outputs for one in output.outputs],
        logprobs=[_chosen_logprobs(one) for output in outputs for one in output.outputs],
        cached_tokens=[output.num_cached_tokens or 0 for output in outputs],
        num_drafts=int(metrics.get("vllm:spec_decode_num_drafts") or 0),
        num_draft_tokens=int(metrics.get("vllm:spec_decode_num_draft_tokens") or 0),
        accepted_per_position=[int(count) for count in per_position],
        proposals=proposals(),
        steps=steps,
        layers=_layers(llm),
        draft_replays=replays["replays"] + len(host_replays),
        draft_passes=replays["passes"],
        draft_waits=replays["host_waits"],
        target_replays=len(target_replays),
        num_gpu_blocks=core.vllm_config.cache_config.num_gpu_blocks or 0,
        asynchronous=bool(core.vllm_config.scheduler_config.async_scheduling),
        preemptions=int(metrics.get("vllm:num_preemptions") or 0),
        preempted_contexts=forcer.contexts if forcer else [],
        platform=f"{platform.__module__}.{platform.__qualname__}",
    )


def _sampling(scenario: Scenario) -> list[Any]:
    """vLLM's SamplingParams of each prompt."""
    from vllm import SamplingParams

    seeds: list[int | None] = [*scenario.seeds] or [None] * len(scenario.prompts)
    return [
        SamplingParams(
            **{
                "temperature": 0.0,
                "max_tokens": scenario.max_tokens,
                "ignore_eos": True,
                "detokenize": False,
                "seed": seed,
                **scenario.sampling,
            }
        )
        for seed in seeds
    ]


def _prompts(scenario: Scenario) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = [{"prompt_token_ids": ids} for ids in scenario.prompts]
    if scenario.pictures:
        from tests.support.pictures import Picture

        for prompt, picture in zip(prompts, scenario.pictures, strict=True):
            if picture is not None:
                prompt["multi_modal_data"] = {"image": Picture(*picture).image()}
    return prompts


def _chosen_logprobs(completion: Any) -> list[float]:
    if not completion.logprobs:
        return []
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return [position[token].logprob for token, position in pairs]


def _draft_replays(llm: Any) -> dict[str, Any]:
    from vllm.platforms import current_platform

    if type(current_platform).__module__.split(".")[0] != "mkv_ascend":
        return {"replays": 0, "host_waits": 0, "passes": 0}
    # The last rank has the draft: of a pipeline no other stage has.
    answer: dict[str, Any] = llm.collective_rpc("draft_replays")[-1]
    return answer


def _layers(llm: Any) -> list[dict[str, Any]]:
    from vllm.platforms import current_platform

    if type(current_platform).__module__.split(".")[0] != "mkv_ascend":
        return []  # stock vllm-ascend has no such table
    answers: list[list[dict[str, Any]]] = llm.collective_rpc("attention_layers")
    # Ranks of one stage have the same layers.
    return list({row["name"]: row for rows in answers for row in rows}.values())


def main(request: str, answer: str) -> None:
    """Run the scenario in the file ``request`` and write its result to the file ``answer``."""
    scenario = Scenario(**json.loads(Path(request).read_text()))
    result = dataclasses.asdict(_execute(scenario))
    result.pop("log")
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
