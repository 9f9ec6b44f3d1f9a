# SPDX-License-Identifier: Apache-2.0
"""The inventory of replaced code, and how replacements are made."""

import ast
import functools
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

import foreign_names
import patch_notes
import patch_pages
from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.patching import (
    Patch,
    PatchRefused,
    Record,
    expect,
    lent,
    override,
    patch,
    record,
    replaced,
    wrap,
)

ROOT = Path(__file__).resolve().parents[3]
RECORDS = {
    foreign_names.name_of(adapter): [
        *foreign_names.records(foreign_names.sources(foreign_names.name_of(adapter)))
    ]
    for adapter in installed_host.adapters()
}


@pytest.mark.parametrize(
    "entry",
    # In one order in every process: test runners compare what they collected.
    sorted({x for found in RECORDS.values() for x in found}, key=repr),
    ids=lambda entry: entry.record.name,
)
def test_the_test_that_a_record_names_exists(entry):
    for named in filter(None, (*entry.notes.tests, entry.notes.stock)):
        path, _, function = named.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions if function else functions


MOST_ON_V1_OF_0_30 = 43
"""What a port of that adapter has to judge; upstream's own repairs let the number fall.

Thirty, and what caches of 8 bits, experts without gates, the memory of graphs, drafts over pipeline
stages, prompts in parts, requests that reach others, targets of other forms, missing weights,
experts of two models and pages that groups share need."""


MOST_OF_0_30 = 30
"""In that adapter's own folder, for both model runners: the goal of the port."""


def test_records_of_the_adapter_of_0_30_are_few():
    files = foreign_names.sources("vllm_ascend_0_30")
    own = foreign_names.ADAPTERS / "vllm_ascend_0_30"
    found = foreign_names.records(path for path in files if path.is_relative_to(own))
    assert 0 < len(found) <= MOST_OF_0_30


def records_on_v1_of_0_30():
    """All but those of the room of model runner V2."""
    files = foreign_names.sources("vllm_ascend_0_30")
    room = foreign_names.ADAPTERS / "vllm_ascend_0_30" / "v2"
    found = foreign_names.records(path for path in files if not path.is_relative_to(room))
    return found


def test_records_that_apply_on_model_runner_v1_of_0_30_are_few():
    names = sorted(entry.record.name for entry in records_on_v1_of_0_30())
    assert len(names) <= MOST_ON_V1_OF_0_30, names


@pytest.mark.parametrize("entry", records_on_v1_of_0_30(), ids=lambda entry: entry.record.name)
def test_each_target_was_seen_to_be_needed_on_model_runner_v1_of_0_30(entry):
    """``tools/without_patch.py --each --record NAME`` tries it, and keeps which test failed."""
    record = entry.record
    noticed = patch_pages.shown()["0.30.0rc2"].get(record.name, {})
    assert set(noticed) == set(record.targets)
    for test in noticed.values():
        file, _, function = test.partition("[")[0].partition("::")
        assert {file, f"{file}::{function}"} & set(entry.notes.tests)


@pytest.mark.parametrize("adapter", RECORDS)
def test_every_record_is_described_under_a_name_of_its_own(adapter):
    found = RECORDS[adapter]
    assert len({entry.record.name for entry in found}) == len(found) > 30
    text = patch_pages.markdown()
    for entry in found:
        record, notes = entry.record, entry.notes
        assert f"\n| {record.name} | `{patch_pages.short_target(record.targets[0])}`" in text
        assert all([*record.targets, notes.why, notes.until])


def test_nothing_is_written_of_records_that_are_gone():
    named = {entry.record.name for found in RECORDS.values() for entry in found}
    assert set(patch_notes.read()) == named


def test_what_is_written_of_a_record_is_whole_and_of_its_host(monkeypatch):
    whole = {"why": "w", "until": "u", "upstream": "not reported", "tests": ["a"]}
    tables = {"both": {**whole, "one_host": {"tests": ["b"]}}, "short": {"why": "w"}}
    monkeypatch.setattr(patch_notes, "read", lambda: tables)
    assert patch_notes.notes("both", "other") == patch_notes.Notes("w", "u", (), ("a",))
    assert patch_notes.notes("both", "one_host").tests == ("b",)
    with pytest.raises(ValueError, match=r"patches\.toml, 'short': .*'until'"):
        patch_notes.notes("short", "other")
    with pytest.raises(ValueError, match=r"no table 'gone'"):
        patch_notes.notes("gone", "other")


def test_a_record_that_tools_cannot_read_is_refused_with_its_place(tmp_path):
    file = tmp_path / "computed.py"
    file.write_text("patch(name='a', target=f'{module}:b')\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"computed\.py:1: target of a record must be text"):
        foreign_names.records([file])


def host_with(**members):
    """A module of its own, as a host's would be."""
    module = types.ModuleType("host_of_a_test")
    vars(module).update(members)
    sys.modules[module.__name__] = module
    return module


@pytest.fixture
def host():
    class Adder:
        def add(self, number):
            return number + 1

        @classmethod
        def of_class(cls, number):
            return cls.__name__, number

        @staticmethod
        def double(number):
            return 2 * number

    yield host_with(Adder=Adder, triple=lambda number: 3 * number)
    del sys.modules["host_of_a_test"]


def times_ten(original, *arguments):
    found = original(*arguments)
    return (found[0], 10 * found[1]) if isinstance(found, tuple) else 10 * found


def test_a_patch_replaces_all_of_its_targets_once(host):
    targets = ("host_of_a_test:triple", "host_of_a_test:Adder.add")
    made = patch(name="tenfold", target=targets)(times_ten)
    assert isinstance(made, Patch)

    @made.also(target=targets[1])
    def add(original, adder, number):
        return original(adder, 100 * number)

    assert (host.triple(1), host.Adder().add(1)) == (3, 2)
    made.apply()
    made.apply()
    assert (host.triple(1), host.Adder().add(1)) == (30, 101)


def test_a_target_of_one_host_is_replaced_there(host):
    targets = ("host_of_a_test:triple", "host_of_a_test:Adder.add")
    made = patch(name="tenfold", target=targets[0])(times_ten)
    made.on_one_host(target=targets[1])(lambda original, adder, number: original(adder, -number))
    made.apply()
    assert made.record.targets == targets
    assert (host.triple(1), host.Adder().add(1)) == (30, 0)


def test_class_methods_and_static_methods_stay_what_they_are(host):
    for name in ("of_class", "double"):
        wrap(host.Adder, name, times_ten)
        wrap(host.Adder, name, times_ten)
    assert (host.Adder.of_class(1), host.Adder().double(1)) == (("Adder", 10), 20)


def test_a_function_that_others_wrapped_meanwhile_is_not_wrapped_again(host):
    wrap(host, "triple", times_ten)
    ours = host.triple
    host.triple = functools.wraps(ours)(lambda number: ours(number))
    wrap(host, "triple", times_ten)
    assert host.triple(1) == 30


def test_nothing_is_replaced_when_one_of_the_targets_is_gone(host):
    targets = ("host_of_a_test:triple", "host_of_a_test:Adder.gone")
    made = patch(name="tenfold", target=targets)(times_ten)
    made.also(target=targets[1])(times_ten)
    with pytest.raises(PatchRefused, match=r"'tenfold'.*Adder\.gone is gone"):
        made.apply()
    assert host.triple(1) == 3


def test_a_global_is_another_while_a_block_runs(host):
    entry = record(name="triple", target="host_of_a_test:triple")
    before = host.triple
    with entry.replaced("ours"):
        assert host.triple == "ours"
    assert host.triple is before


def test_an_override_must_be_of_the_method_that_its_record_names():
    entry = Record(name="add", target="host_of_a_test:Adder.add")

    def add(self):
        return None

    def subtract(self):
        return None

    assert override(entry)(add) is add
    with pytest.raises(ValueError, match="'add' does not name subtract"):
        override(entry)(subtract)


def test_a_guard_names_the_patch_and_what_changed():
    expect(True, "window bound", "nothing")
    with pytest.raises(PatchRefused) as refusal:
        expect(False, "window bound", "Impl.sliding_window is gone")
    assert "'window bound'" in str(refusal.value)
    assert "Impl.sliding_window is gone" in str(refusal.value)
    assert not isinstance(refusal.value, Exception), "vLLM would swallow it"


def test_an_attribute_is_replaced_while_the_block_runs_even_if_it_fails():
    owner = SimpleNamespace(runner="theirs")

    def fail_inside():
        with replaced(owner, "runner", "ours"):
            assert owner.runner == "ours"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert owner.runner == "theirs"


def test_an_attribute_that_is_gone_is_not_replaced():
    owner = SimpleNamespace(__name__="vllm_ascend.worker.worker")
    with (
        pytest.raises(PatchRefused, match=r"vllm_ascend\.worker\.worker has no runner"),
        replaced(owner, "runner", "ours"),
    ):
        pass
    assert not hasattr(owner, "runner")


class Foreign:
    def forward(self):
        return "theirs"


def of_foreign(method):
    return record(name="foreign", target=f"host:Foreign.{method}")


def test_a_member_that_no_record_names_is_refused():
    with pytest.raises(TypeError, match="no record of 'foreign' names"):
        derive(Foreign, "", {"forward": lambda self: "ours"}, of_foreign("backward"))


def test_a_derived_class_replaces_what_its_base_has():
    derived = derive(Foreign, "[draft]", {"forward": lambda self: "ours"}, of_foreign("forward"))
    assert derived().forward() == "ours"
    assert issubclass(derived, Foreign)
    assert derived.__qualname__ == "MkvForeign[draft]"


def test_a_member_that_the_base_has_lost_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Foreign has no forward_impl to replace"):
        derive(Foreign, "", {"forward_impl": lambda self: "ours"}, of_foreign("forward_impl"))


def test_what_is_lent_is_gone_afterwards() -> None:
    config = SimpleNamespace()

    def call() -> None:
        with lent(config, "image_token_index", 7):
            assert config.image_token_index == 7
            raise KeyError

    with pytest.raises(KeyError):
        call()
    assert vars(config) == {}


def test_an_attribute_of_its_own_is_left_alone() -> None:
    config = SimpleNamespace(image_token_index=3)
    with lent(config, "image_token_index", 7):
        assert config.image_token_index == 3
    assert config.image_token_index == 3
