# SPDX-License-Identifier: Apache-2.0
"""Which programs are forked from a process that has imported an engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import pytest

from tests.support import programs


class Starter:
    """A ``ProgramStarter`` without a process."""

    running: list[Starter]

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.name = environment.get("NAME", "")
        self.running.append(self)

    def stop(self) -> None:
        self.running.remove(self)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[Starter]:
    Starter.running = []
    monkeypatch.setattr(programs, "ProgramStarter", Starter)
    monkeypatch.setattr(programs, "ON_EMULATOR", True)
    monkeypatch.setattr(programs, "_starters", OrderedDict())
    return Starter.running


def ask(name: str = "") -> Starter | None:
    variables = {"NAME": name} if name else {}
    found = programs._starter_for(programs._environment(variables))
    assert found is None or isinstance(found, Starter)
    return found


def test_an_environment_has_its_own_process_once_it_is_asked_for_again(
    running: list[Starter],
) -> None:
    plain = ask()
    assert plain is not None
    assert ask("v2") is None, "asked for once, it may be asked for no more"
    of_v2 = ask("v2")
    assert of_v2 is not None
    assert of_v2.name == "v2"
    assert ask() is plain
    assert ask("v2") is of_v2
    assert [starter.name for starter in running] == ["", "v2"]


def test_no_more_processes_are_kept_than_memory_has_room_for(running: list[Starter]) -> None:
    for name in ("", "a", "a", "b", "b", "", "c", "c"):
        ask(name)
    assert [starter.name for starter in running] == ["", "b", "c"]
    assert len(running) == programs.MOST_STARTERS
    assert ask("a") is None, "as at first"


def test_on_a_device_nothing_is_forked(
    running: list[Starter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "ON_EMULATOR", False)
    assert ask() is None
    assert not running


def test_what_an_engine_of_this_process_was_given_is_not_handed_on(
    running: list[Starter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that a test reads in its own process set variables, which other engines refuse."""
    plain = ask()
    for name in programs.OF_ENGINES:
        monkeypatch.setenv(name, "of an engine")
        assert programs._environment({}).get(name) != "of an engine"
        assert programs._environment({name: "asked for"})[name] == "asked for"
    assert ask() is plain, "it needs no other process to fork"
