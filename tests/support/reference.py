# SPDX-License-Identifier: Apache-2.0
"""The judge: what Hugging Face transformers says, in float32, with its eager attention.

Everything is computed by whole forward passes without a KV cache, so that no cache can be wrong.
Answers are kept on disk by content (checkpoint, prompts, versions), so a test pays for them once.

Greedy decoding here never stops at an end-of-sequence token: engines are compared with
``ignore_eos=True``. A *near tie* is a step whose two largest logits differ by less than
``NEAR_TIE``: there another order of summation may pick the other token, and neither is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkv_ascend import envs

if TYPE_CHECKING:
    import torch

NEAR_TIE = 1e-3
"""Difference of the two largest logits under which an argmax decides nothing."""

CACHE_VERSION = 1
"""Raise when what the cached answers mean changes."""

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class GreedyOutput:
    """Greedy continuation of one prompt.

    ``gaps[i]`` is the difference of the two largest logits where ``tokens[i]`` was chosen.
    """

    tokens: list[int]
    gaps: list[float]

    @property
    def near_ties(self) -> list[int]:
        """Positions in ``tokens`` whose choice was a near tie."""
        return [index for index, gap in enumerate(self.gaps) if gap < NEAR_TIE]


@dataclass(frozen=True)
class DraftProposal:
    """What a drafter proposed after an accepted context: token ids, the context without padding."""

    context: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class DraftDeviation:
    """One proposed token that is not the draft model's own choice."""

    proposal: int
    position: int
    proposed: int
    expected: int
    gap: float

    def __str__(self) -> str:
        return (
            f"proposal {self.proposal}, position {self.position}: proposed {self.proposed}, the "
            f"draft model says {self.expected} (its two largest logits differ by {self.gap:.3g})"
        )


@dataclass(frozen=True)
class DraftReport:
    """Result of ``check_drafts``: ``wrong`` must be empty, ``near_ties`` may be excused."""

    checked: int
    wrong: list[DraftDeviation]
    near_ties: list[DraftDeviation]


@lru_cache(maxsize=4)
def load_model(directory: Path) -> Any:
    """The checkpoint in ``directory`` in float32, eager attention, in evaluation mode.

    Raises:
        ValueError: the model has weights that the checkpoint has not. transformers would make them
            up: it reads a DeepSeek-V3 with the routing of DeepSeek-V2 as another model.
    """
    from transformers import AutoModelForCausalLM

    from tests.support.tiny_models import further_models

    further_models.register()
    return load_whole(AutoModelForCausalLM, directory)


def load_whole(family: Any, directory: Path) -> Any:
    """As ``load_model``, by one of transformers' families of classes; not kept."""
    import torch

    model, found = family.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{directory} is no reference: it has no {', '.join(missing)}")
    return model.eval()


@lru_cache(maxsize=4)
def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of the checkpoint in ``directory``."""
    from transformers import AutoTokenizer

    from tests.support.tiny_models import further_models

    # It reads the model's configuration, of which lists of Step-3.5 are none for transformers.
    further_models.register()
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def token_ids(directory: str | Path, prompt: Prompt) -> list[int]:
    """Ids of ``prompt``; a text gets ``<bos>`` in front as in the engine, ids stay as they are."""
    if isinstance(prompt, str):
        return list(load_tokenizer(Path(directory))(prompt)["input_ids"])
    return list(prompt)


def logits_of(directory: str | Path, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after each token, float32 ``[len(tokens), vocabulary]``."""
    import torch

    with torch.inference_mode():
        output = load_model(Path(directory))(
            input_ids=torch.tensor([list(tokens)]), use_cache=False
        )
    return output.logits[0].float()


def choice(row: torch.Tensor) -> tuple[int, float]:
    """The argmax of one row of logits and its lead over the second."""
    largest = row.topk(2).values
    return int(row.argmax()), float(largest[0] - largest[1])


def greedy(
    directory: str | Path, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[GreedyOutput]:
    """Greedy continuations of ``prompts`` by ``max_new_tokens`` tokens each, with their gaps."""
    contexts = [token_ids(directory, prompt) for prompt in prompts]

    def compute() -> list[dict[str, Any]]:
        return [
            asdict(greedy_continuation(directory, context, max_new_tokens)) for context in contexts
        ]

    question = {"greedy": contexts, "max_new_tokens": max_new_tokens}
    return [GreedyOutput(**answer) for answer in cached_answer([directory], question, compute)]


def greedy_continuation(directory: str | Path, context: Sequence[int], count: int) -> GreedyOutput:
    """``greedy`` for one context of token ids, computed anew."""
    tokens, gaps = list(context), []
    for _ in range(count):
        token, gap = choice(logits_of(directory, tokens)[-1])
        tokens.append(token)
        gaps.append(gap)
    return GreedyOutput(tokens[len(context) :], gaps)


def greedy_tokens(
    directory: str | Path, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[list[int]]:
    """The tokens of ``greedy`` alone."""
    return [output.tokens for output in greedy(directory, prompts, max_new_tokens)]


def draft_tokens(directory: str | Path, context: Sequence[int], k: int) -> list[int]:
    """The ``k`` tokens that the draft model itself proposes after ``context``."""
    return greedy_continuation(directory, context, k).tokens


def check_drafts(
    directory: str | Path, proposals: Sequence[DraftProposal], near_tie: float = NEAR_TIE
) -> DraftReport:
    """Judge every proposed token by the draft model in ``directory``; see ``judge``."""

    def rows(context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        return logits_of(directory, [*context, *tokens])[len(context) - 1 :]

    return judge(rows, proposals, near_tie)


def judge(
    rows_of: Callable[[Sequence[int], Sequence[int]], torch.Tensor],
    proposals: Sequence[DraftProposal],
    near_tie: float = NEAR_TIE,
) -> DraftReport:
    """Judge every proposed token by the logits that ``rows_of(context, tokens)`` gives it.

    Token ``i`` is judged by row ``i``: after the context and the proposed tokens before it, so one
    deviation does not make those behind it wrong. ``near_tie`` is for proposals that were not made
    in float32.
    """
    wrong: list[DraftDeviation] = []
    near_ties: list[DraftDeviation] = []
    checked = 0
    for index, proposal in enumerate(proposals):
        if not proposal.tokens:
            continue
        rows = rows_of(proposal.context, proposal.tokens)
        for position, proposed in enumerate(proposal.tokens):
            checked += 1
            expected, gap = choice(rows[position])
            if proposed != expected:
                deviation = DraftDeviation(index, position, proposed, expected, gap)
                excused = _is_within(rows[position], proposed, near_tie)
                (near_ties if excused else wrong).append(deviation)
    return DraftReport(checked, wrong, near_ties)


def _is_within(row: torch.Tensor, token: int, near_tie: float) -> bool:
    """Whether ``token`` itself is in a near tie with the best, not just any other two tokens."""
    return float(row.max() - row[token]) < near_tie


def cached_answer(
    directories: Sequence[str | Path], question: dict[str, Any], compute: Callable[[], Any]
) -> Any:
    """``compute()``, or what it returned before for the same checkpoints, question and versions."""
    import torch
    import transformers

    digest = hashlib.sha256()
    for directory in directories:
        digest.update(checkpoint_digest(Path(directory)).encode())
    versions = [CACHE_VERSION, torch.__version__, transformers.__version__]
    digest.update(json.dumps([versions, question], sort_keys=True).encode())
    path = envs.CACHE.get() / "reference" / f"{digest.hexdigest()}.json"
    if path.is_file():
        return json.loads(path.read_text())
    answer = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed, so that a process that is stopped leaves no half answer behind.
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(answer))
    aside.replace(path)
    return answer


def checkpoint_digest(directory: Path) -> str:
    """SHA-256 of the configuration and the weights in ``directory``, as hexadecimal text."""
    files = sorted([directory / "config.json", *directory.glob("*.safetensors")])
    return _digest_of_files(tuple((str(file), file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=32)
def _digest_of_files(files: tuple[tuple[str, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, _ in files:
        digest.update(Path(name).name.encode())
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()
