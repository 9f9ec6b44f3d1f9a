# SPDX-License-Identifier: Apache-2.0
"""What the demo asks of a server, and how it shows the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mkv_ascend.layout.kind import abbreviated_names

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total[{}]"


@dataclass(frozen=True)
class Completion:
    """One completion: its text and the token ids that the server reports with it."""

    text: str
    tokens: tuple[int, ...]


def stream_answer(
    address: str, model: str, question: str, max_tokens: int, console: Console | None
) -> Completion:
    """Ask in a chat, greedily, and print the answer while it streams.

    Args:
        address: base address of the OpenAI-compatible server.
        console: where to print; None prints nothing.
    """
    from openai import DefaultHttpxClient, OpenAI

    # The server is on this machine: a proxy of the environment must not be asked for it.
    direct = DefaultHttpxClient(trust_env=False)
    client = OpenAI(base_url=address, api_key="none", max_retries=0, http_client=direct)
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        temperature=0.0,
        stream=True,
        extra_body={"return_token_ids": True},
    )
    parts: list[str] = []
    tokens: list[int] = []
    for chunk in stream:
        for choice in chunk.choices:
            text = choice.delta.content or ""
            parts.append(text)
            tokens += getattr(choice, "token_ids", None) or []
            if console is not None:
                console.print(text, end="", style="green", markup=False)
    return Completion("".join(parts), tuple(tokens))


def replays_text(replays: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    """How many proposals were replayed from ACL graphs.

    Args:
        replays: a worker's answer to ``draft_replays``.
        metrics: of the server.
    """
    if not replays["captured"]:
        return "The draft has no ACL graphs: its passes ran eagerly."
    sizes = ", ".join(str(requests) for requests in replays["captured"])
    proposals = acceptance(metrics).proposals
    return (
        f"{replays['replays']} proposals were replayed from ACL graphs (there is one for each of "
        f"{sizes} requests). The target verified {proposals}: a request may end before its last."
    )


def backend_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Layers -> backend -> KV group, target and draft apart; layers that are alike in one line."""
    from rich.table import Table

    columns = ("role", "kind", "backend", "kv_group", "chosen_by", "detail")
    layers: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        layers.setdefault(tuple(row[column] for column in columns), []).append(row["name"])
    table = Table(title="Attention backends")
    for title in ("role", "layers", "kind", "backend", "KV group", "chosen by"):
        # In a narrow terminal the long columns are wrapped: nothing is ever cut off.
        table.add_column(title, no_wrap=title not in ("layers", "chosen by"), overflow="fold")
    for (role, kind, backend, group, chosen_by, detail), names in layers.items():
        short = ", ".join(abbreviated_names(names))
        group_text = "-" if group is None else str(group)
        table.add_row(role, short, kind, backend, group_text, f"{chosen_by} ({detail})")
    return table


@dataclass(frozen=True)
class Acceptance:
    """How many proposals there were, and how often the token at each position was accepted."""

    proposals: int
    accepted: tuple[int, ...]

    @property
    def mean_length(self) -> float:
        """Tokens per step of the target: 1 plus accepted draft tokens per proposal."""
        return 1 + sum(self.accepted) / self.proposals if self.proposals else 1.0


def acceptance(metrics: Mapping[str, float]) -> Acceptance:
    """Acceptance from vLLM's own metrics."""
    accepted: list[int] = []
    while ACCEPTED_AT.format(len(accepted)) in metrics:
        accepted.append(int(metrics[ACCEPTED_AT.format(len(accepted))]))
    return Acceptance(int(metrics.get(DRAFTS, 0)), tuple(accepted))


def acceptance_table(metrics: Mapping[str, float]) -> Table:
    """Acceptance per draft position and the mean acceptance length."""
    from rich.table import Table

    measured = acceptance(metrics)
    title = (
        f"Acceptance: {measured.proposals} proposals, "
        f"mean acceptance length {measured.mean_length:.2f}"
    )
    table = Table(title=title)
    for heading in ("draft position", "accepted", "share"):
        table.add_column(heading, justify="right")
    for position, count in enumerate(measured.accepted, start=1):
        share = count / measured.proposals if measured.proposals else 0.0
        table.add_row(str(position), str(count), f"{share:.1%}")
    return table
