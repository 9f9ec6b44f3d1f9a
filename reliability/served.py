# SPDX-License-Identifier: Apache-2.0
"""Servers of tiny models: which pairs there are, and how ``vllm serve`` is started with one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.host import RUNNERS
from reliability import adapters
from reliability.adapters import Adapter
from reliability.scenarios import Pair
from tests.support import engine
from tests.support.tiny_models import model_directory

LONGEST = 512
"""Tokens of a context, at most."""
REQUESTS = 8
"""That a server runs at once, unless asked otherwise."""
STEP_TOKENS = 25
"""Of a step for each of them: prompts are read in chunks beside requests that decode."""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc's own thresholds (mallopt(3)), which it moves by itself unless they are given. Then large
buffers come from the heap, which grows in steps although it has pieces left, and what is held for
ever cannot be told from that. The environment may say otherwise."""
CACHE_BYTES = 8 << 20
"""Of the KV cache for each of them."""


@dataclass(frozen=True)
class ServedPair:
    """A pair that is served.

    Attributes:
        pair: its models.
        k: draft tokens of a proposal.
        blocks: of the KV cache for ``REQUESTS``, so few that long requests preempt each other.
        about: what is special about it.
        grammars: whether requests may ask for one.
    """

    pair: Pair
    k: int
    blocks: int
    about: str
    grammars: bool = True


PAIRS = {
    "dense": ServedPair(
        Pair("gemma3", "gemma3_draft", "draft_model"), 3, 16, "attention in two KV groups"
    ),
    "mla": ServedPair(
        Pair("deepseek_v2_target", "gemma3_window_draft", "draft_model"),
        3,
        16,
        "an MLA target, and a draft with a window",
    ),
    "recurrent": ServedPair(
        Pair("llama_target", "qwen3_next_draft", "draft_model"), 3, 30, "a draft with states"
    ),
    "states": ServedPair(
        Pair("qwen3_next", "llama_draft", "draft_model"), 3, 30, "a target with states"
    ),
    "dflash": ServedPair(
        Pair("gpt_oss", "gpt_oss_dflash", "dflash"),
        3,
        30,
        "a draft of whole blocks",
        # vLLM reads GPT-OSS by tokens such as <|end|>, which the tiny tokenizer does not have: the
        # engine of 0.23.0 dies of the first grammar.
        grammars=False,
    ),
}
"""By name on the command line."""
MODES: dict[str, list[str]] = {
    "eager": ["--enforce-eager"],
    "graphs": [],
    "default": [],
}
"""``graphs`` of whole decode steps, not traced; ``default``: what ``vllm serve`` does by itself."""


@dataclass(frozen=True)
class Setting:
    """How a server is started.

    Attributes:
        served: what it serves.
        mode: one of ``MODES``.
        runner: vLLM's model runner.
        ranks: of tensor parallelism.
        with_draft: whether it drafts.
        priorities: whether it schedules by the priority of a request.
        target: folder of another target in place of the pair's.
        draft: folder of another draft in place of the pair's.
        adapters: name -> adapter (LoRA) of the target.
        running: requests at once; steps and the KV cache grow with them.
        options: further arguments of ``vllm serve``.
        variables: further ones of its environment.
    """

    served: ServedPair
    mode: str = "eager"
    runner: str = "v1"
    ranks: int = 1
    with_draft: bool = True
    priorities: bool = False
    target: Path | None = None
    draft: Path | None = None
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    running: int = REQUESTS
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The folder of the target, which is its name in requests too."""
        return str(self.target or model_directory(self.served.pair.target))

    @property
    def reference(self) -> Path:
        """The folder of the model that Hugging Face runs in place of the target."""
        return self.target or Path(model_directory(self.served.pair.reference))

    @property
    def draft_folder(self) -> Path:
        """The folder of the draft."""
        return self.draft or Path(model_directory(self.served.pair.draft))

    def arguments(self) -> list[str]:
        """Of ``vllm serve``."""
        found = [self.model, "--dtype", engine.compared_dtype()]
        found += ["--max-model-len", str(LONGEST), "--max-num-seqs", str(self.running)]
        found += ["--max-num-batched-tokens", str(STEP_TOKENS * self.running)]
        found += ["--tensor-parallel-size", str(self.ranks)]
        found += ["--num-gpu-blocks-override", str(self.served.blocks * self.running // REQUESTS)]
        found += ["--kv-cache-memory-bytes", str(CACHE_BYTES * self.running)]
        found += ["--disable-uvicorn-access-log"]
        found += MODES[self.mode]
        if self.mode == "graphs":
            found += ["--compilation-config", json.dumps(self._graphs())]
        if self.priorities:
            found += ["--scheduling-policy", "priority"]
        if self.adapters:
            found += [*adapters.OPTIONS, str(len(self.adapters))]
        if self.with_draft:
            found += ["--speculative-config", json.dumps(self._speculation())]
        return [*found, *self.options]

    def environment(self, folder: Path) -> dict[str, str]:
        """Of the server; its temporary files go to ``folder``."""
        untraced = {"TORCHDYNAMO_DISABLE": "1", "VLLM_USE_AOT_COMPILE": "0"}
        return {
            **MALLOC,
            **os.environ,
            **RUNNERS[self.runner],
            **(untraced if self.mode == "graphs" else {}),
            "NUMBA_NUM_THREADS": "1",
            "TMPDIR": str(folder),
            **(adapters.VARIABLES if self.adapters else {}),
            **self.variables,
        }

    def _graphs(self) -> dict[str, object]:
        rows = self.served.k + 1 if self.with_draft else 1
        counts = {self.running, *(2**n for n in range(self.running.bit_length()))}
        sizes = [rows * requests for requests in sorted(counts)]
        return {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}

    def _speculation(self) -> dict[str, object]:
        pair = self.served.pair
        return {
            "method": pair.method,
            "model": str(self.draft_folder),
            "num_speculative_tokens": self.served.k,
        }
