# SPDX-License-Identifier: Apache-2.0
"""Calls of a server's API, generated from its OpenAPI schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reliability.traffic import HOSTILE

PATHS = ("/v1/", "/inference/", "/tokenize", "/detokenize")
"""How paths begin that are called. Others tell how the server does, or change it."""
MOST_TOKENS = 16
"""That a call may ask for: the emulated NPU is slow."""
MOST_CHOICES = 3
INPUTS = ("model", "messages", "prompt", "input", "token_ids", "tokens", "sampling_params")
"""Fields that always stay; of the others some calls have few, since a server refuses the first that
is out of range."""
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
CHOICES = ("n", "best_of")


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        body: what JSON can hold; bytes as they are; None for none.
        hostile: whether it asks for what no batch can hold, which ends an engine of stock.
    """

    number: int
    method: str
    path: str
    body: Any
    hostile: bool = False

    @property
    def data(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()

    def describe(self) -> str:
        """One line."""
        return f"call {self.number} {self.method} {self.path} {str(self.body)[:200]}"


def generate(
    schema: Mapping[str, Any],
    model: str,
    examples: int,
    seed: int,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Call]:
    """Hostile calls, then calls of each operation in an order drawn from the seed.

    Args:
        schema: the server's ``/openapi.json``.
        model: its name in requests. Most calls name it, since others get no further than that.
        examples: of each operation, as many that fit the schema as that do not.
        seed: draws all of it.
        progress: is told of each operation.
    """
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.core.result import Err

    chance, found = random.Random(seed), []
    for operation in schemathesis.openapi.from_dict(dict(schema)).get_all_operations():
        if isinstance(operation, Err):
            raise operation.err()
        described: Any = operation.ok()
        if described.path.startswith(PATHS):
            progress(described.label)
            for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
                found += _drawn(described.as_strategy(generation_mode=mode), examples, seed)
    chance.shuffle(found)
    begun = hostile(schema, model)
    return [
        *begun,
        *(
            Call(number, method, path, shaped(body, model, chance))
            for number, (method, path, body) in enumerate(found, len(begun))
        ),
    ]


def hostile(schema: Mapping[str, Any], model: str) -> list[Call]:
    """Calls that ask for what no batch can hold."""
    begun: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "the quick brown fox"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "the quick brown fox"}]},
    }
    few: dict[str, Any] = {"model": model, "max_tokens": MOST_TOKENS // 2, "temperature": 0.0}
    bodies = [
        (path, {**few, **begun[path], **fields})
        for path in begun
        if path in schema["paths"]
        for fields in HOSTILE.values()
    ]
    return [Call(number, "POST", *one, hostile=True) for number, one in enumerate(bodies)]


def _drawn(strategy: Any, examples: int, seed: int) -> list[tuple[str, str, Any]]:
    """Method, path and body of each example; empty where no other than an empty call exists."""
    import hypothesis
    from hypothesis.errors import Unsatisfiable
    from schemathesis.core import NOT_SET

    found: list[tuple[str, str, Any]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def note(case: Any) -> None:
        body = None if case.body is NOT_SET else case.body
        found.append((case.method, case.formatted_path, body))

    try:
        note()
    except Unsatisfiable:
        return []
    return found


def shaped(body: Any, model: str, chance: random.Random) -> Any:
    """The body as it is sent: most name the model, some have few fields, and none asks for much.

    A length that is no number, or not above 0, stays: it is the server that has to judge it.
    """
    if not isinstance(body, dict):
        return body
    share = chance.choice((0.0, 0.2, 1.0))
    shaped = {
        name: value for name, value in body.items() if name in INPUTS or chance.random() < share
    }
    if chance.random() < 0.75:
        shaped["model"] = model
    if isinstance(shaped.get("sampling_params"), dict):
        shaped["sampling_params"] = _limited(shaped["sampling_params"])
    limited = _limited(shaped)
    asked = [name for name in LENGTHS[:3] if limited.get(name) is not None]
    if not asked and chance.random() < 0.9:
        limited["max_tokens"] = chance.randint(1, MOST_TOKENS)
    if isinstance(limited.get("prompt"), str) and chance.random() < 0.5:
        limited["prompt"] = "the quick brown fox"
    return limited


def _limited(body: dict[str, Any]) -> dict[str, Any]:
    limited = dict(body)
    for names, most in ((LENGTHS, MOST_TOKENS), (CHOICES, MOST_CHOICES)):
        for name in names:
            value = limited.get(name)
            # A server takes 68.0 for 68.
            if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
                limited[name] = most
    return limited
