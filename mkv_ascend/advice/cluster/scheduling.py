# SPDX-License-Identifier: Apache-2.0
"""What an engine does in a step, by the rules of vLLM's scheduler with its default policy.

Source: ``vllm/v1/core/sched/scheduler.py`` (``schedule``, ``update_from_output``) and
``kv_cache_manager.py`` (``allocate_slots``) of vLLM 0.23.0, first come first served: requests that
run go first and may preempt the one that came last; then waiting ones are admitted while the step
has tokens and the cache has blocks for their whole prompts.
``tests/emulated/advice/test_scheduling.py`` runs both beside each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

__all__ = ["Limits", "Scheduler", "Sequence", "Step"]


@dataclass(frozen=True)
class Limits:
    """Of one engine. ``draft_tokens``: of a proposal. ``lookahead``: slots kept for these."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int = 128
    draft_tokens: int = 0
    lookahead: int = 0


@dataclass(eq=False, slots=True)
class Sequence:
    """A request in an engine.

    ``yields``: tokens that its verify steps give, summed up step by step; None: one a step.
    ``computed`` tokens have their keys and values in the cache.
    """

    prompt: int
    output: int
    yields: Many[int] | None = None
    prefix: int | None = None
    prefix_tokens: int = 0
    computed: int = 0
    made: int = 0
    firsts: int = 0
    """Of its answer, tokens that no verify step gave: one of each time that a prompt was read."""
    steps: int = 0
    last_step: int = 0
    """How many verify steps it has at its end."""
    has_drafts: bool = False
    """Whether its newest token was sampled by the step before, which then drafts behind it."""
    blocks: int = 0
    """Its own, besides those of a shared prefix."""
    shared: int = 0
    preemptions: int = 0

    @property
    def tokens(self) -> int:
        """Of prompt and answer, so far."""
        return self.prompt + self.made

    def made_after(self, steps: int) -> int:
        """Tokens of the answer after so many more verify steps."""
        if self.yields is None:
            made = self.made + steps
        else:
            made = self.firsts + self.yields[self.steps + steps - 1]
        return made if made < self.output else self.output

    def add_first(self) -> None:
        """Count the token that the step gave which read the last of its prompt."""
        self.made += 1
        self.firsts += 1
        left = self.output - self.firsts
        self.last_step = left if self.yields is None else bisect_left(self.yields, left) + 1


@dataclass(slots=True)
class Step:
    """What is computed: a sequence and its number of tokens each; and who lost its blocks."""

    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


@dataclass
class _Prefix:
    blocks: int
    users: int = 0


class Scheduler:
    """Requests of one engine, waiting and running."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.free = limits.num_blocks
        """Blocks that nobody has, those of prefixes that nobody reads not counted."""
        self._prefixes: OrderedDict[int | None, _Prefix] = OrderedDict()
        self._idle_blocks = 0
        """Of prefixes that nobody reads, which are taken where blocks run out."""

    def add(self, sequence: Sequence) -> None:
        """Let it wait, behind all others."""
        self.waiting.append(sequence)

    def fits(self, sequence: Sequence) -> bool:
        """Whether an engine without other requests could ever finish it."""
        return self.holds(sequence.prompt + sequence.output)

    def holds(self, tokens: int) -> bool:
        """Whether one request of so many tokens has room in an engine without others."""
        return self._blocks(tokens + self.limits.lookahead) <= self.limits.num_blocks

    def schedule(self) -> Step:
        """The next step."""
        step = Step()
        left = self._schedule_running(step)
        if not step.preempted:
            self._admit(step, left)
        return step

    def _schedule_running(self, step: Step) -> int:
        """Returns how many tokens the step still has room for."""
        left = self.limits.max_num_batched_tokens
        index = 0
        drafted = self.limits.draft_tokens
        while index < len(self.running) and left > 0:
            sequence = self.running[index]
            tokens = sequence.prompt + sequence.made - sequence.computed
            if sequence.has_drafts:
                tokens += drafted
            if tokens > left:
                tokens = left
            while not (taken := self._take(sequence, tokens)):
                last = self._preempt(step)
                if last is sequence:
                    break
            if not taken:
                break
            step.scheduled.append((sequence, tokens))
            left -= tokens
            index += 1
        return left

    def _preempt(self, step: Step) -> Sequence:
        """Take the blocks of the one that came last, and let it wait in front of all."""
        last = self.running.pop()
        self._release(last)
        last.computed = 0
        last.has_drafts = False
        last.preemptions += 1
        self.waiting.appendleft(last)
        step.preempted.append(last)
        return last

    def _admit(self, step: Step, left: int) -> None:
        while self.waiting and left > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            hit = self._hit(sequence)
            if not self._has_blocks_for(sequence, hit, left):
                break
            self.waiting.popleft()
            self._read_prefix(sequence, hit)
            sequence.computed = max(sequence.computed, hit)
            tokens = min(sequence.tokens - sequence.computed, left)
            self._take(sequence, tokens)
            self.running.append(sequence)
            step.scheduled.append((sequence, tokens))
            left -= tokens

    def _has_blocks_for(self, sequence: Sequence, hit: int, left: int) -> bool:
        """Whether there are blocks for all of its tokens and what its first step writes."""
        computed = max(sequence.computed, hit)
        first = computed + min(sequence.tokens - computed, left) + self.limits.lookahead
        needed = self._blocks(max(sequence.tokens, first)) - self._blocks(hit)
        idle = self._idle_blocks
        if hit and not (entry := self._prefixes[sequence.prefix]).users:
            idle -= entry.blocks
        return needed <= self.free + idle

    def complete(self, step: Step) -> list[Sequence]:
        """Count what the step computed; returns who got its last token, without its blocks."""
        finished = []
        for sequence, tokens in step.scheduled:
            if sequence.computed + tokens < sequence.prompt + sequence.made:
                sequence.computed += tokens
                continue
            if sequence.has_drafts:
                sequence.made = sequence.made_after(1)
                sequence.steps += 1
            else:
                sequence.add_first()
                self._keep_prefix(sequence)
            sequence.has_drafts = True
            sequence.computed = sequence.prompt + sequence.made - 1
            if sequence.made >= sequence.output:
                finished.append(sequence)
        self._leave(finished)
        return finished

    def alike(self, most: int) -> int:
        """Of how many steps, at most so many, each decodes what runs now, and no more; else 1."""
        steps = most
        for sequence in self.running:
            if not sequence.has_drafts:
                return 1
            left = sequence.last_step - sequence.steps
            if left < steps:
                steps = left
        drafted = 1 + self.limits.draft_tokens
        left = self.limits.max_num_batched_tokens - len(self.running) * drafted
        if not self.running or left < 0:
            return 1
        if self.waiting and left and len(self.running) < self.limits.max_num_seqs:
            first = self.waiting[0]
            if self._has_blocks_for(first, self._hit(first), left):
                return 1
        # No sequence takes more than this, so that most often none has to be asked.
        most_of_one = steps * drafted // self.limits.block_size + 2
        if len(self.running) * most_of_one > self.free:
            while steps > 1 and self._growth(steps) > self.free + self._idle_blocks:
                steps //= 2
        return max(1, steps)

    def advance(self, steps: int) -> list[Sequence]:
        """As ``schedule`` and ``complete`` so many times, where ``alike`` allows these."""
        finished = []
        size = self.limits.block_size
        ahead = self.limits.draft_tokens + self.limits.lookahead
        for sequence in self.running:
            made = sequence.made_after(steps)
            tokens = sequence.prompt + made
            # The last step writes behind fewer tokens: that is asked only where it may matter.
            if tokens + ahead > (sequence.shared + sequence.blocks) * size and (
                needed := self._needed(sequence, steps)
            ):
                self._take_blocks(sequence, needed)
            sequence.made = made
            sequence.steps += steps
            sequence.computed = tokens - 1
            if sequence.made >= sequence.output:
                finished.append(sequence)
        self._leave(finished)
        return finished

    def tokens_after(self, steps: int) -> int:
        """Of prompts and answers of all that run, after some of the steps that are ``alike``."""
        tokens = 0
        for sequence in self.running:
            tokens += sequence.prompt
            # None has its last token before the last of these steps.
            if (yields := sequence.yields) is None:
                tokens += sequence.made + steps
            else:
                tokens += sequence.firsts + yields[sequence.steps + steps - 1]
        return tokens

    def _growth(self, steps: int) -> int:
        return sum(self._needed(sequence, steps) for sequence in self.running)

    def _needed(self, sequence: Sequence, steps: int) -> int:
        """Blocks that it lacks for the last of so many steps, which writes behind all before it."""
        before = sequence.made_after(steps - 1) if steps > 1 else sequence.made
        reached = sequence.prompt + before + self.limits.draft_tokens + self.limits.lookahead
        lacking = self._blocks(reached) - sequence.shared - sequence.blocks
        return lacking if lacking > 0 else 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _take(self, sequence: Sequence, tokens: int) -> bool:
        """Give it blocks for so many more tokens; False, and nothing, where there are too few."""
        reached = sequence.computed + tokens + self.limits.lookahead
        needed = self._blocks(reached) - sequence.shared - sequence.blocks
        if needed <= 0:
            return True
        if needed > self.free + self._idle_blocks:
            return False
        self._take_blocks(sequence, needed)
        return True

    def _take_blocks(self, sequence: Sequence, needed: int) -> None:
        while needed > self.free:
            self._forget_a_prefix()
        self.free -= needed
        sequence.blocks += needed

    def _leave(self, finished: Many[Sequence]) -> None:
        if finished:
            gone = set(map(id, finished))
            self.running = [one for one in self.running if id(one) not in gone]
        for sequence in finished:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = 0
        if sequence.shared:
            entry = self._prefixes[sequence.prefix]
            entry.users -= 1
            if not entry.users:
                self._idle_blocks += entry.blocks
            sequence.shared = 0

    def _hit(self, sequence: Sequence) -> int:
        """Tokens of its prompt that are in the cache; one at least is computed."""
        entry = self._prefixes.get(sequence.prefix)
        if entry is None or sequence.computed:
            return 0
        tokens = entry.blocks * self.limits.block_size
        return tokens if tokens < sequence.tokens else 0

    def _read_prefix(self, sequence: Sequence, hit: int) -> None:
        if not hit:
            return
        entry = self._prefixes[sequence.prefix]
        self._prefixes.move_to_end(sequence.prefix)
        if not entry.users:
            self._idle_blocks -= entry.blocks
        entry.users += 1
        sequence.shared = entry.blocks

    def _keep_prefix(self, sequence: Sequence) -> None:
        """Once its prompt is computed, whole blocks of its prefix serve others."""
        blocks = sequence.prefix_tokens // self.limits.block_size
        if sequence.prefix is None or not blocks:
            return
        if sequence.shared or sequence.prefix in self._prefixes:
            return
        self._prefixes[sequence.prefix] = _Prefix(blocks, users=1)
        sequence.blocks -= blocks
        sequence.shared = blocks

    def _forget_a_prefix(self) -> None:
        """The one that was read longest ago, of those that nobody reads."""
        name = next(name for name, entry in self._prefixes.items() if not entry.users)
        entry = self._prefixes.pop(name)
        self._idle_blocks -= entry.blocks
        self.free += entry.blocks
