# SPDX-License-Identifier: Apache-2.0
"""Faults drawn by number: what happens to whom, and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.host import installed

SIGKILL, SIGTERM, SIGSTOP = "SIGKILL", "SIGTERM", "SIGSTOP"
ERROR, NAN, FLIP, MEMORY, DELAY, EXIT = "error", "nan", "flip", "memory", "delay", "kill"
READER = "stops reading"
CLOCK, FULL = "clock jumps", "full shared memory"
LOST = "lost"
KINDS = {
    "signals": (SIGKILL, SIGTERM, SIGSTOP),
    "device": (ERROR, NAN, FLIP, MEMORY, DELAY, EXIT),
    "client": (READER,),
    "start": (SIGKILL, SIGTERM, ERROR, MEMORY),
    "clock": (CLOCK,),
    "memory": (FULL,),
    "stale": (LOST,),
}
"""Kind -> its faults."""
OF_MACHINE = ("clock", "memory")
"""Kinds for which the server is started in another way, so that each takes a run of its own."""
ALONE = (*OF_MACHINE, "stale")
"""Kinds that must be asked for; ``stale`` is for one pair."""
OF_DEVICE = (*KINDS["device"], LOST)
DEADLY = (SIGKILL, SIGTERM, ERROR, MEMORY, EXIT)
"""After these the server ends."""
SPOILING = (NAN, FLIP)
"""After these some tokens may be wrong, and what is cached stays so."""
MOST_LAUNCHES = 6000
"""About half of what the requests of a case launch."""
MOST_LAUNCHES_OF_A_START = 1500
RANK = "Worker_TP"
FIRST_RANK = f"{RANK}0"
"""Titles of processes of ranks."""
WRITES_OF_DENSE = {"0.23": "_npu_reshape_and_cache", "0.30": "npu_scatter_pa_kv_cache"}
"""vllm-ascend's version -> operator that writes the keys of dense layers, and not those of MLA."""
DRAFT_WRITES = WRITES_OF_DENSE[".".join(installed().split(".")[:2])]
"""That operator on this host: it writes the keys of a dense draft, and not of an MLA target."""
MOST_WRITES = 300
"""About half of what the requests of a case launch of it."""


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        number: draws it, from a seed.
        fault: what happens.
        victim: to which process: ``server``, ``engine`` or ``worker``.
        moment: seconds after the requests were sent.
        seconds: how long a process stands still, or shared memory is full; how far a clock jumps.
        launch: of the device, counted from the moment on, that the fault hits.
        times: at how many launches in a row.
        operator: whose launches are counted; ``*``: of any.
        process: whose launches are counted, by its title; empty: of any that reaches so many.
        at_start: whether it hits a server that starts; ``moment`` is then a share of its start.
        of_stock: whether it hits vllm-ascend without the plugin.
    """

    number: int
    fault: str
    victim: str
    moment: float
    seconds: float = 0.0
    launch: int = 0
    at_start: bool = False
    times: int = 1
    operator: str = "*"
    process: str = ""
    of_stock: bool = False

    @property
    def is_unheard(self) -> bool:
        """Whether a rank fails whose answer vLLM does not wait for: it waits for the first one's.

        The others go on, or wait for the one that failed until their collective gives up. With the
        plugin a rank that fails ends.
        """
        return self.of_stock and self._is_of_later_rank and self.fault in (ERROR, MEMORY)

    @property
    def is_noticed_late(self) -> bool:
        """Whether the device fails of a rank that may not wait for its device for long."""
        return self._is_of_later_rank and self.fault == ERROR

    @property
    def _is_of_later_rank(self) -> bool:
        return self.process != "" and self.process != FIRST_RANK

    @property
    def is_deadly(self) -> bool:
        """Whether the server ends by it."""
        return self.fault in DEADLY and not (self.is_unheard or self.is_noticed_late)

    @property
    def may_be_deadly(self) -> bool:
        """Whether the server ends by it or lives on, by chance."""
        return self.fault == FULL or self.is_unheard or self.is_noticed_late

    @property
    def is_of_device(self) -> bool:
        """Whether it is a fault of the emulated NPU."""
        return self.fault in OF_DEVICE

    def describe(self) -> str:
        """One line."""
        where = f" at launch {self.launch}" if self.launch else ""
        where += f" and {self.times - 1} more" if self.times > 1 else ""
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        if self.fault == CLOCK:
            lasting = f" by {self.seconds:+.1f} s"
        when = f"after {self.moment:.2f} s"
        if self.at_start:
            when = "of a start" if self.launch else f"after {self.moment:.2f} of a start"
        victim = f"{self.victim} {self.process}".rstrip()
        return f"{self.number}: {victim} {self.fault}{where}{lasting} {when}"


def draw(
    seed: int, number: int, kinds: Sequence[str], ranks: int, *, of_stock: bool = False
) -> Case:
    """The case of this number: each fault of these kinds comes in turn, the rest by chance."""
    return replace(_drawn(seed, number, kinds, ranks), of_stock=of_stock)


def _drawn(seed: int, number: int, kinds: Sequence[str], ranks: int) -> Case:
    chance = random.Random(f"{seed} {number}")
    faults = [(kind, fault) for kind in kinds for fault in KINDS[kind]]
    kind, fault = faults[number % len(faults)]
    # With one rank the engine core is the worker.
    device = "worker" if ranks > 1 else "engine"
    moment = chance.uniform(0.0, 3.0)
    if kind == "start":
        moment /= 3.0
    if kind == "client":
        return Case(number, fault, "client", moment)
    if fault == CLOCK:
        # From a correction by the network's time to a clock that was a day off.
        off = chance.choice((-1, 1)) * 10 ** chance.uniform(-1.0, 5.0)
        return Case(number, fault, "machine", moment, off)
    if fault == FULL:
        return Case(number, fault, "machine", moment, chance.uniform(1.0, 8.0))
    if fault == LOST:
        launch, times = chance.randint(1, MOST_WRITES), chance.randint(2, MOST_WRITES)
        return Case(number, fault, device, moment, 0.0, launch, False, times, DRAFT_WRITES)
    if fault in KINDS["device"]:
        lasting = chance.uniform(1.0, 5.0) if fault == DELAY else 0.0
        most = MOST_LAUNCHES_OF_A_START if kind == "start" else MOST_LAUNCHES
        launch = chance.randint(1, most)
        if kind == "start" or ranks == 1:  # processes that start have no titles yet
            return Case(number, fault, device, moment, lasting, launch, kind == "start")
        process = f"{RANK}{chance.randrange(ranks)}"
        return Case(number, fault, device, moment, lasting, launch, process=process)
    victims = ("server", "engine", *(("worker",) if ranks > 1 else ()))
    victim = victims[number // len(faults) % len(victims)]
    stopped = chance.uniform(1.0, 8.0) if fault == SIGSTOP else 0.0
    return Case(number, fault, victim, moment, stopped, at_start=kind == "start")
