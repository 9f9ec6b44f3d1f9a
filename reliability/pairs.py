# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of any classes, random options: each token judged by Hugging Face.

A seed and a number draw a target and a draft of any text class that vLLM and transformers both
have, their weights, options of an engine and its requests. Judged are the target's tokens, each
draft token behind the accepted context, what each step accepted, lengths and logprobs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.host import RUNNERS, installed
from benchmarks.matrix import refusals
from benchmarks.matrix.running import FAILS, REFUSED, WORKS
from reliability import class_table
from reliability.pair_judging import LONGEST, SHORTEST, Judge, Judgement, rows_of
from reliability.random_configs import BFLOAT16_ONLY
from reliability.random_models import LEAST_POWER, RandomModel, families, write_random_model
from tests.support import engine
from tests.support.stock import STOCK
from tests.support.tiny_models.tokenizer import NUM_BYTES

HOST, UNJUDGED = "host", "not judged"
"""Verdicts of pairs that fail without the plugin, too, and of those without enough power."""
PARTNER = "llama"
"""Beside which ``--each`` runs every family."""
TRIES = 8
"""Families tried for a model, until one has a tiny form whose tokens depend on single keys."""
NGRAM = "ngram"
ASCII = 128
SAME, OTHER = "same weights", "other weights"


@dataclass(frozen=True)
class Drawn:
    """A pair with its engine. ``draft`` is None for methods without a draft's layers."""

    number: int
    target: RandomModel
    draft: RandomModel | None
    scenario: engine.Scenario

    def describe(self) -> str:
        """One line."""
        scenario = self.scenario
        options = {
            "K": scenario.num_speculative_tokens,
            "requests": len(scenario.prompts),
            "tokens": scenario.max_tokens,
            "graphs": scenario.graphs,
            "rounds": scenario.repeats,
            "preempted": scenario.force_preemption,
            **scenario.engine,
            **scenario.sampling,
        }
        models = f"{self.target.family} + {self.draft.family if self.draft else 'none'}"
        return f"{self.number}: {models}: " + ", ".join(f"{k} {v}" for k, v in options.items())


@dataclass(frozen=True)
class Verdict:
    """How a pair ended."""

    number: int
    case: str
    result: str
    reason: str = ""
    repeat: str = ""
    power: dict[str, float] = field(default_factory=dict)
    judgement: dict[str, Any] = field(default_factory=dict)
    stock: str = ""
    seconds: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn with (1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first pair (0)")
    parser.add_argument("--count", type=int, default=10, help="how many pairs (10)")
    parser.add_argument("--target", metavar="FAMILY", help="model_type of every target")
    parser.add_argument("--draft", metavar="FAMILY", help="model_type of every draft")
    parser.add_argument(
        "--each",
        action="store_true",
        help="every family once as target and once as draft, beside Llama; --count is not asked",
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="keep the verdicts of --each as a table in FILE"
    )
    parser.add_argument(
        "--stock",
        action="store_true",
        help="run what fails without the plugin, too: the pair, the target alone, the draft alone",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep verdicts and go on where it stopped"
    )


def run(asked: argparse.Namespace) -> int:
    """Run them; returns the exit status."""
    numbered = list(_numbered(asked))
    found = [_kept_or_judged(number, one) for number, one in numbered]
    if asked.each and asked.table:
        roles = [class_table.ROLES[number % 2] for number, _ in numbered]
        class_table.keep(
            asked.table,
            f"{installed()} {asked.runner}",
            (
                (getattr(one, role), role, verdict.result, verdict.reason)
                for role, (_, one), verdict in zip(roles, numbered, found, strict=True)
            ),
        )
    if asked.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    counts = Counter(one.result for one in found)
    ties = sum(sum(one.judgement.get("ties", {}).values()) for one in found)
    judged = sum(sum(one.judgement.get("judged", {}).values()) for one in found)
    print(f"{dict(counts)}; {judged} judged, {ties} not judged (near ties)", file=sys.stderr)
    return 1 if counts[FAILS] else 0


def _numbered(asked: argparse.Namespace) -> Iterator[tuple[int, argparse.Namespace]]:
    """Numbers of the pairs, each with the families that it is to have."""
    if not asked.each:
        yield from ((asked.first + number, asked) for number in range(asked.count))
        return
    pairs = itertools.chain.from_iterable(
        ({"target": one, "draft": PARTNER}, {"target": PARTNER, "draft": one}) for one in families()
    )
    for number, pair in enumerate(pairs):
        if number >= asked.first:
            yield number, argparse.Namespace(**{**vars(asked), **pair})


def _kept_or_judged(number: int, asked: argparse.Namespace) -> Verdict:
    name = f"{installed()}-{asked.runner}-{asked.seed}-{number}.json"
    kept = asked.keep / name if asked.keep else None
    if kept is not None and kept.exists():
        return Verdict(**json.loads(kept.read_text(encoding="utf-8")))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            verdict = judged(draw(number, asked, Path(folder)), asked)
        except LookupError as error:
            verdict = Verdict(number, f"{number}: no pair", UNJUDGED, str(error))
        verdict = replace(verdict, seconds=round(time.monotonic() - began, 1))
        rows_of.cache_clear()
    print(f"{verdict.result} in {verdict.seconds:.0f} s  {verdict.case}", file=sys.stderr)
    if verdict.result in (FAILS, HOST):
        print(f"  {verdict.reason}\n  {verdict.stock}\n  {verdict.repeat}", file=sys.stderr)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(verdict), indent=1), encoding="utf-8")
    return verdict


def draw(number: int, asked: argparse.Namespace, folder: Path) -> Drawn:
    """The pair of this number; its models are written into ``folder``."""
    seed = f"{asked.seed} {number}"
    chance = random.Random(seed)
    of = _families(asked.target, f"{asked.seed} targets", number)
    target = _model(folder / "target", of, seed)
    kind = chance.choice((NGRAM, SAME, OTHER, "any", "any", "any", "any", "any", "any"))
    draft: RandomModel | None = None
    if asked.draft or kind == "any":
        of = _families(asked.draft, f"{asked.seed} drafts", number)
        draft = _model(folder / "draft", of, f"{seed} draft")
    elif kind == SAME:
        draft = target
    elif kind == OTHER:
        draft = _model(folder / "draft", [target.family], f"{seed} draft")
    scenario = _scenario(chance, target, draft)
    return Drawn(number, target, draft, replace(scenario, environment=RUNNERS[asked.runner]))


def _families(asked: str | None, seed: str, number: int) -> list[str]:
    """The family of this number, which all have in turn, before the others."""
    known = [asked] if asked else families()
    random.Random(seed).shuffle(known)
    first = number % len(known)
    return known[first:] + known[:first]


def _model(folder: Path, known: Sequence[str], seed: str) -> RandomModel:
    said = ""
    for number, family in enumerate(itertools.islice(itertools.cycle(known), TRIES)):
        try:
            model = write_random_model(folder / str(number), family, f"{seed} {number}")
        except ValueError as error:
            said = str(error)
            continue
        if model.power >= LEAST_POWER:
            return model
        said = f"power of {family} is {model.power:.2f}"
    raise LookupError(f"no model in {TRIES} tries, the last: {said}")


def _scenario(
    chance: random.Random, target: RandomModel, draft: RandomModel | None
) -> engine.Scenario:
    measured = all("bfloat16" in model.gaps for model in (target, draft) if model is not None)
    rounded = chance.random() < 0.15 and measured
    rounded |= any(one is not None and one.family in BFLOAT16_ONLY for one in (target, draft))
    k = chance.choice((1, 2, 3, 4, 5, 6, 8, 11, 15))
    requests = chance.choice((1, 2, 3, 4, 8))
    options: dict[str, Any] = {
        "dtype": "bfloat16" if rounded else "float32",
        "max_num_seqs": requests,
        "max_num_batched_tokens": max(requests * (k + 1), chance.choice((48, 64, 200, 512))),
        "max_model_len": chance.choice((150, 260, 400, 512)),
        "enable_prefix_caching": chance.random() < 0.6,
    }
    if chance.random() < 0.4:
        options["long_prefill_token_threshold"] = chance.choice((7, 33, 129))
    if chance.random() < 0.3:
        options["block_size"] = chance.choice((128, 256))
    if draft is None:
        options["speculative_config"] = {
            "method": NGRAM,
            "num_speculative_tokens": k,
            "prompt_lookup_min": SHORTEST,
            "prompt_lookup_max": LONGEST,
        }
    sampling: dict[str, Any] = {}
    if chance.random() < 0.3:
        sampling["logprobs"] = chance.choice((0, 3))
    if chance.random() < 0.25:
        sampling |= {"temperature": 0.7, "top_k": 1, "n": chance.choice((1, 2, 3))}
        sampling["seed"] = chance.choice((None, 7))
    stopped = chance.choice(("", "", "", "tokens", "text"))
    if stopped == "tokens":
        sampling["stop_token_ids"] = [chance.randrange(NUM_BYTES) for _ in range(12)]
    if stopped == "text":
        sampling |= {"stop": [chr(one) for one in chance.sample(range(33, 127), 12)]}
        sampling["detokenize"] = True
        options["skip_tokenizer_init"] = False
    graphs = chance.choice((None, None, None, "FULL_DECODE_ONLY"))
    # vLLM has no asynchronous scheduler for tokens that its host looks up.
    if asynchronous := chance.random() < 0.15 and draft is not None:
        options["async_scheduling"] = True
    return engine.Scenario(
        model=target.folder,
        draft=draft.folder if draft else None,
        num_speculative_tokens=k,
        prompts=_prompts(chance, int(options["max_model_len"]), again=draft is None),
        max_tokens=chance.choice((2, k + 1, 12, 24, 40)),
        sampling=sampling,
        engine=options,
        repeats=chance.choice((1, 1, 2)),
        graphs=graphs,
        capture_sizes=tuple(sorted({(k + 1) * rows for rows in (1, 2, 4)})),
        record_drafts=True,
        record_steps=not asynchronous,
        force_preemption=not asynchronous and chance.random() < 0.1,
    )


def _prompts(chance: random.Random, longest: int, *, again: bool) -> list[list[int]]:
    """Of any length up to the longest context, some with a beginning in common, some twice.

    ``again``: of few tokens, so that what follows one may be looked up.
    """
    # Of bytes that are no text vLLM gives those of a prompt with its first token, stops included.
    letters = chance.sample(range(ASCII), 6) if again else range(ASCII)
    common = [chance.randrange(ASCII) for _ in range(chance.choice((0, 128, 261)))]
    found: list[list[int]] = []
    for _ in range(chance.randint(1, 6)):
        if found and chance.random() < 0.2:
            found.append(chance.choice(found))
            continue
        begun = common if chance.random() < 0.5 else []
        length = chance.choice((chance.randint(1, 40), chance.randint(1, 300), longest))
        prompt = [*begun, *(chance.choice(letters) for _ in range(length))]
        found.append(prompt[: longest - chance.choice((2, 3, 8, 20))])
    return found


def judged(pair: Drawn, asked: argparse.Namespace) -> Verdict:
    """Run the engine, judge it, and where that is asked for see whether the host does the same."""
    result, reason, found = outcome(pair, pair.scenario)
    stock = ""
    if result == FAILS and asked.stock:
        print(f"{reason}\n  now without the plugin", file=sys.stderr)
        result, stock = _on_stock(pair, reason)
    power = {"target": pair.target.power}
    if pair.draft is not None:
        power["draft"] = pair.draft.power
    return Verdict(
        number=pair.number,
        case=pair.describe(),
        result=result,
        reason=reason,
        repeat=_command(pair.number, asked),
        power=power,
        judgement=asdict(found) if found else {},
        stock=stock,
    )


def outcome(pair: Drawn, scenario: engine.Scenario) -> tuple[str, str, Judgement | None]:
    """``WORKS``, ``REFUSED`` or ``FAILS``, why, and what was judged if it ran."""
    try:
        result = engine.run(scenario)
    except engine.EngineFailedError as error:
        if (known := refusals.known_refusal(str(error))) is not None:
            return REFUSED, known.reason, None
        words = refusals.last_words(str(error))
        return (REFUSED if "this cannot be served" in words else FAILS), words, None
    dtype = scenario.engine["dtype"]
    judge = Judge(Path(scenario.model), pair.target.gaps[dtype])
    if pair.draft is not None and scenario.draft is not None:
        judge = replace(judge, draft=Path(scenario.draft), draft_gap=pair.draft.gaps[dtype])
    found = judge.judge(scenario, result)
    return (FAILS if found.problems else WORKS), "; ".join(found.problems), found


def _on_stock(pair: Drawn, reason: str) -> tuple[str, str]:
    """The verdict, and what the host does without the plugin with the pair and its models alone."""
    environment = {**pair.scenario.environment, **STOCK}
    stock = replace(pair.scenario, environment=environment)
    whole = outcome(pair, stock)
    parts = {"pair": whole}
    unassisted = {k: v for k, v in stock.engine.items() if k != "speculative_config"}
    alone = replace(stock, draft=None, engine=unassisted, record_drafts=False)
    parts["target alone"] = outcome(replace(pair, draft=None), alone)
    if pair.draft is not None and pair.draft != pair.target:
        draft = replace(pair, target=pair.draft, draft=None)
        parts["draft alone"] = outcome(draft, replace(alone, model=pair.draft.folder))
    said = "; ".join(f"stock, {name}: {one[0]} {one[1][:200]}" for name, one in parts.items())
    fails_alone = any(one[0] == FAILS for name, one in parts.items() if name != "pair")
    same = fails_alone or (whole[0] == FAILS and whole[1] == reason)
    return (HOST if same else FAILS), said


def _command(number: int, asked: argparse.Namespace) -> str:
    python = os.path.relpath(sys.executable)
    words = [
        "mkv-ascend emulate --strict --float32-compute --",
        f"{python} -m reliability pairs --seed {asked.seed} --first {number} --count 1",
        f"--runner {asked.runner}",
    ]
    words += [f"--{name} {value}" for name in ("target", "draft") if (value := vars(asked)[name])]
    return " ".join(words)
