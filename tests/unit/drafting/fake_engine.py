# SPDX-License-Identifier: Apache-2.0
"""An engine that steps requests through a draft, and says in plain loops what it should draft."""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import torch

from mkv_ascend.drafting.counts import Eager
from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.drafting.graph_runner import GraphRunner, InStep
from mkv_ascend.drafting.mask_tokens_strategy import MaskTokensStrategy
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.proposal import Proposal
from mkv_ascend.drafting.recurrent_groups import RecurrentCaches, RecurrentGroup, RecurrentGroups
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import AttentionStrategy, Planner
from tests.support.fake_draft import (
    PRIME,
    STATE,
    VOCABULARY,
    FakeBuilder,
    FakeCapturer,
    FakeDraft,
    key,
    rotary,
)
from tests.unit.drafting.fake_recurrent import RecurrentBuilder, RecurrentLayer

MOST_REQUESTS, COLUMNS, MASK = 4, 8, 5
MOST_LENGTH = 96
MASKS = ("mask", "anchor")


@dataclass(frozen=True)
class Case:
    """``kind``: attention, head, recurrent, mask, or anchor: masks behind a row that drafts as
    well. For each KV group: the size of its blocks, whether its builder shares, and whether its
    layers take cos_sin rows. ``on_device``: as many of the groups take the lengths of later passes
    from the device. ``counts``: numbers of draft tokens, of which each step takes one at random;
    none: K. ``in_step``: another rank runs these passes as well."""

    kind: str
    k: int
    block_sizes: tuple[int, ...] = (4,)
    shares: tuple[bool, ...] = (True,)
    rotates: tuple[bool, ...] = (False,)
    max_model_len: int = MOST_LENGTH
    parallel: bool = False
    on_device: int = 0
    counts: tuple[int, ...] = ()
    in_step: bool = False


@dataclass
class CopyEvent:
    """``Event`` of the plan, of a copy that ends when the host waits for it; says how often.

    Until then the lengths on the host are those of no pass.
    """

    recorded: int = 0
    waited_for: int = 0
    on_the_host: torch.Tensor | None = None
    on_the_way: torch.Tensor | None = None

    def record(self) -> None:
        self.recorded += 1
        assert self.on_the_host is not None
        self.on_the_way = self.on_the_host.clone()
        self.on_the_host.fill_(3)

    def synchronize(self) -> None:
        self.waited_for += 1
        assert self.on_the_host is not None
        assert self.on_the_way is not None, "the host waits for a copy that was not begun"
        self.on_the_host.copy_(self.on_the_way)
        self.on_the_way = None


@dataclass
class Request:
    """``tokens``: all accepted ones. The target has seen them, except the last."""

    row: int
    tokens: list[int]
    seen: int = 0
    drafts: list[int] = field(default_factory=list)


class Engine:
    """A draft of one case, and requests in a random order of steps."""

    def __init__(self, case: Case, seed: int = 0, graphs: tuple[int, ...] = ()) -> None:
        self.case, self.random, self.loose = case, random.Random(seed), random.Random(seed)
        torch.manual_seed(seed)
        builders = [
            FakeBuilder(shares, rotates, reads_host_lengths=index >= case.on_device)
            for index, (shares, rotates) in enumerate(zip(case.shares, case.rotates, strict=True))
        ]
        blocks = 1 + MOST_REQUESTS * 2 * -(-MOST_LENGTH // min(case.block_sizes))
        self.draft = FakeDraft(builders, blocks, case.block_sizes, case.kind == "head")
        self.draft.in_step = case.in_step
        if case.kind in MASKS:
            self._for_mask_tokens()
        self.tables = [
            torch.zeros(MOST_REQUESTS, self.columns(size), dtype=torch.int32)
            for size in case.block_sizes
        ]
        self.copied = CopyEvent()
        self.plan = DraftPlan(self._sizes(), self.tables, case.block_sizes, self.copied)
        self.copied.on_the_host = self.plan._host_lengths
        self.needs = Needs(self.draft.groups, self.draft.builders)
        self.proposal = Proposal(self.draft, self._strategy(), self.plan, self.needs)
        self.capturer = FakeCapturer(self.draft)
        self.graphs = GraphRunner(self.proposal, self.capturer)
        for size, *counts in itertools.product(graphs, *([case.counts or (case.k,)] * 2)):
            self.graphs.capture(self.graphs.shape(size, *counts))
        self.requests: list[Request] = []
        self.judged = 0

    def columns(self, size: int) -> int:
        """As many as the longest sequence needs, and none to spare."""
        return -(-self.case.max_model_len // size)

    def _sizes(self) -> Sizes:
        case = self.case
        later = {"recurrent": case.k, "mask": case.k + 1, "anchor": case.k}.get(
            case.kind, case.k - 1
        )
        return Sizes(
            later_passes=0 if case.parallel else later,
            max_requests=MOST_REQUESTS,
            max_tokens=160,
            max_model_len=case.max_model_len,
            sampled_per_request=case.k if case.parallel else 1,
            shift=case.kind != "attention",
            parallel_token_id=MASK,
        )

    def _for_mask_tokens(self) -> None:
        context = torch.zeros(160, 1, dtype=torch.int64)
        self.draft.buffers = self.draft.buffers.__class__(
            **{**vars(self.draft.buffers), "hidden_states": context}
        )

    def _strategy(self) -> Any:
        planner = Planner(self.draft, self.plan, self.needs)
        if self.case.kind in MASKS:
            anchor = self.case.kind == "anchor"
            return MaskTokensStrategy(self.draft, self.plan, self.needs, MASK, from_anchor=anchor)
        if self.case.kind != "recurrent":
            return AttentionStrategy(planner)
        # As many blocks for each request as it verifies tokens; block 0 is nobody's.
        size = self.case.k + 1
        layer = RecurrentLayer(self.draft, 1 + 2 * MOST_REQUESTS * size)
        self.recurrent_table = torch.zeros(MOST_REQUESTS, size, dtype=torch.int32)
        caches = RecurrentCaches((), (layer.state,))
        group = RecurrentGroup(0, RecurrentBuilder(), ("recurrent",), lambda: [caches])
        states = RecurrentGroups([group], [self.recurrent_table], MOST_REQUESTS, self.case.k)
        self.draft.recurrent = layer.run
        return RecurrentStrategy(
            planner, states, lambda requests: states.for_graph([group], requests)
        )

    def table_row(self, request: Request, group: int) -> torch.Tensor:
        """Blocks of a request, which are those of an aborted one before it."""
        columns = self.columns(self.case.block_sizes[group])
        return (
            1
            + request.row * columns
            + torch.randperm(columns, generator=torch.Generator().manual_seed(request.row))
        )

    def step(self, verify_only: bool = False) -> None:
        """One step of the target and the proposal after it; judges every draft token."""
        batch = [r for r in self.requests if not verify_only or r.drafts]
        most = min(len(batch), MOST_REQUESTS)
        batch = self.random.sample(batch, self.random.randint(min(1, most), most))
        free = set(range(2 * MOST_REQUESTS)) - {request.row for request in self.requests}
        while (
            not verify_only
            and len(batch) < MOST_REQUESTS
            and (self.random.random() < 0.4 or not batch)
            and free
        ):
            length = self.random.randint(2, 14)
            request = Request(free.pop(), [self.token() for _ in range(length)])
            self.requests.append(request)
            batch.append(request)
        if not batch:
            return
        # Recurrent layers have decodes first.
        batch.sort(key=lambda request: not request.drafts)
        count = self.random.choice(self.case.counts) if self.case.counts else self.case.k
        drafted = self.propose(batch, count)[:, :count]
        assert (drafted.shape, drafted.dtype) == ((len(batch), count), torch.int64)
        for request, tokens in zip(batch, drafted.tolist(), strict=True):
            request.drafts = []
            if request.seen < len(request.tokens) - 1:
                continue  # in the middle of its prompt
            room = self.case.max_model_len - 1 - len(request.tokens)
            # What is drafted in parallel behind the longest sequence sees keys that nobody wrote.
            inside = min(count, room + 2) if self.case.parallel else count
            assert tokens[:inside] == self.expected(request.tokens)[:inside], (
                self.case,
                request.tokens,
            )
            self.judged += inside
            request.drafts = tokens[: max(room, 0)]
            if self.random.random() < 0.1 or room < 2:
                self.requests.remove(request)  # ended or aborted

    def propose(self, batch: list[Request], count: int) -> torch.Tensor:
        """Run the target on the batch, and propose ``count`` tokens for each request."""
        token_ids, positions, starts, lengths, following, rejected = [], [], [0], [], [], []
        bounds = []
        for index, request in enumerate(batch):
            for group, table in enumerate(self.tables):
                table[index] = self.table_row(request, group).to(torch.int32)
            if self.case.kind == "recurrent":
                own = request.row * (self.case.k + 1) + torch.arange(self.case.k + 1) + 1
                self.recurrent_table[index] = own.to(torch.int32)
            row, accepted = self.row(request)
            token_ids += row
            positions += range(request.seen, request.seen + len(row))
            starts.append(len(token_ids))
            lengths.append(request.seen + len(row))
            # With asynchronous scheduling they count drafts of the step before as accepted.
            bounds.append(lengths[-1] + (self.loose.randint(0, self.case.k) if request.seen else 0))
            rejected.append(len(row) - accepted)
            request.seen += accepted
            following.append(request.tokens[request.seen])
        host = torch.tensor(starts, dtype=torch.int32)
        target = TargetOutput(
            torch.tensor(token_ids, dtype=torch.int32),
            torch.tensor(positions),
            torch.tensor(following),
            torch.tensor([[hidden(*each)] for each in zip(token_ids, positions, strict=True)]),
            torch.tensor(rejected, dtype=torch.int32) if any(rejected) else None,
            host.clone(),
            host,
            torch.tensor(lengths, dtype=torch.int32),
            torch.tensor(bounds, dtype=torch.int32),
            int(host.diff().max()),
        )
        in_step = self.agreed(batch, host) if self.case.in_step else None
        drafted = self.graphs.propose(target, count, in_step)
        return self.proposal.propose(target, count) if isinstance(drafted, Eager) else drafted

    def agreed(self, batch: list[Request], starts: torch.Tensor) -> InStep:
        """What the ranks agree on for this step; now and then this one idles before it."""
        others = self.random.randint(0, MOST_REQUESTS)
        if others and self.random.random() < 0.5:
            replayed = self.graphs.run_along(InStep(others))
            assert replayed is not None
            assert self.graphs.run_along(InStep(None)) is None
        verify = all(request.drafts for request in batch) and set(starts.diff().tolist()) == {
            self.case.k + 1
        }
        # Each rank verifies, or none replays.
        both = verify and self.random.random() < 0.8
        return InStep(max(len(batch), others) if both else None)

    def row(self, request: Request) -> tuple[list[int], int]:
        """The target's row of a request, and how many of its tokens are accepted."""
        unseen = request.tokens[request.seen :]
        if request.drafts:
            count = self.random.randint(0, len(request.drafts))
            row = [*unseen, *request.drafts]
            request.tokens += [*request.drafts[:count], self.token()]
            return row, 1 + count
        if len(unseen) > 2 and self.random.random() < 0.4:
            chunk = self.random.randint(1, len(unseen) - 1)
            return unseen[:chunk], chunk
        request.tokens.append(self.token())
        return unseen, len(unseen)

    def token(self) -> int:
        return self.random.randrange(10, VOCABULARY)

    # What follows judges, in plain loops over one request.

    def expected(self, tokens: list[int]) -> list[int]:
        """The K tokens that the draft says after these."""
        if self.case.kind in MASKS:
            return self.window_of(tokens)
        if self.case.kind == "head":
            return self.head_after(tokens)
        drafted: list[int] = []
        while len(drafted) < self.case.k:
            masks = [MASK] * (len(drafted) if self.case.parallel else 0)
            sequence = tokens + (masks if self.case.parallel else drafted)
            drafted.append(self.state([*enumerate(sequence)], sequence) % VOCABULARY)
        return drafted

    def state(self, keys: list[tuple[int, int]], sequence: list[int]) -> int:
        """The state of a row whose layers see these (position, token); the last is its own."""
        position, own = keys[-1]
        if position >= self.case.max_model_len:
            # At position 0, with one key: the sequence's first.
            position, keys = 0, keys[:1]
        total = key(own, position) + self.recurrent_state(sequence)
        for layer, rotates in enumerate(self.case.rotates):
            seen = sum((at + 1) * key(token, at) % PRIME for at, token in keys)
            total += (layer + 2) * (seen + (rotary(position) if rotates else 0))
        return int(total) % STATE

    def recurrent_state(self, sequence: list[int]) -> int:
        state = 0
        if self.case.kind == "recurrent":
            for token in sequence:
                state = (31 * state + token) % PRIME
        return state

    def head_after(self, tokens: list[int]) -> list[int]:
        """A head sees each token one place earlier, with the hidden state there."""
        states = [hidden(token, at) * 3 % STATE for at, token in enumerate(tokens[:-1])]
        shown, drafted = list(tokens[1:]), []
        while len(drafted) < self.case.k:
            seen = [token + VOCABULARY * states[at] for at, token in enumerate(shown)]
            states.append(self.state([*enumerate(seen)], seen))
            drafted.append(states[-1] % VOCABULARY)
            shown.append(drafted[-1])
        return drafted

    def window_of(self, tokens: list[int]) -> list[int]:
        """All rows of a window see the context and all of the window."""
        context = [(at, hidden(token, at) * 3 % STATE) for at, token in enumerate(tokens[:-1])]
        first = 0 if self.case.kind == "anchor" else 1
        window = [tokens[-1], *[MASK] * (self.case.k - 1 + first)]
        window_keys = [(len(context) + at, token) for at, token in enumerate(window)]
        inside = [pair for pair in window_keys if pair[0] < self.case.max_model_len]
        drafted = []
        for place, token in window_keys[first:]:
            position = place if place < self.case.max_model_len else 0
            total = key(token, position)
            for layer, rotates in enumerate(self.case.rotates):
                pairs = [*context, *inside]
                seen = sum((at + 1) * key(own, at) % PRIME for at, own in pairs)
                total += (layer + 2) * (seen + (rotary(position) if rotates else 0))
            drafted.append(int(total) % STATE % VOCABULARY)
        return drafted


def hidden(token: int, position: int) -> int:
    """The target's hidden state."""
    return (token * 7 + position) % STATE
