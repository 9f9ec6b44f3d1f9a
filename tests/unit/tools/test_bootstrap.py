# SPDX-License-Identifier: Apache-2.0
"""The set-up runs what is pending and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

import bootstrap
from bootstrap import Step, make_steps, pending_steps, read_stamps
from hosts import DEFAULT, HOSTS, Host
from step_runner import SetupError

HOST = HOSTS[DEFAULT]


@pytest.fixture
def steps(tmp_path: Path) -> list[Step]:
    (tmp_path / "one.txt").write_text("a==1\n")
    return [
        Step("one", "first", (("pip", "one"),), inputs=(tmp_path / "one.txt",)),
        Step("two", "second", (("pip", "two"),)),
        Step("three", "third", (("pip", "three"),), outputs=("built*.so",)),
    ]


def names(steps: list[Step], stamps: dict[str, str], root: Path) -> list[str]:
    return [step.name for step, _ in pending_steps(steps, stamps, root)]


def done(steps: list[Step], root: Path) -> dict[str, str]:
    """Stamps after a complete set-up."""
    (root / "built.so").touch()
    return {step.name: key for step, key in pending_steps(steps, {}, root)}


def test_nothing_is_done_at_first(steps: list[Step], tmp_path: Path) -> None:
    assert names(steps, {}, tmp_path) == ["one", "two", "three"]


def test_nothing_is_left_afterwards(steps: list[Step], tmp_path: Path) -> None:
    assert names(steps, done(steps, tmp_path), tmp_path) == []


def test_a_changed_input_repeats_its_step_and_all_after_it(
    steps: list[Step], tmp_path: Path
) -> None:
    stamps = done(steps, tmp_path)
    (tmp_path / "one.txt").write_text("a==2\n")
    assert names(steps, stamps, tmp_path) == ["one", "two", "three"]


def test_a_changed_command_leaves_earlier_steps_alone(steps: list[Step], tmp_path: Path) -> None:
    stamps = done(steps, tmp_path)
    steps[1] = dataclasses.replace(steps[1], commands=(("pip", "other"),))
    assert names(steps, stamps, tmp_path) == ["two", "three"]


def test_a_step_that_does_not_repeat_is_left_alone(steps: list[Step], tmp_path: Path) -> None:
    steps[1] = dataclasses.replace(steps[1], repeats=False)
    stamps = done(steps, tmp_path)
    (tmp_path / "one.txt").write_text("a==2\n")
    assert names(steps, stamps, tmp_path) == ["one", "three"]


def test_a_lost_output_is_made_again(steps: list[Step], tmp_path: Path) -> None:
    stamps = done(steps, tmp_path)
    (tmp_path / "built.so").unlink()
    assert names(steps, stamps, tmp_path) == ["three"]


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_unreadable_stamps_count_as_nothing_done(tmp_path: Path, text: str) -> None:
    (tmp_path / bootstrap.STAMP_NAME).write_text(text)
    assert read_stamps(tmp_path) == {}


@pytest.mark.parametrize(("host", "more"), [("0.23", []), ("0.30", ["schemas"])])
def test_torch_comes_before_whatever_could_choose_another(host: str, more: list[str]) -> None:
    order = [step.name for step in make_steps(bootstrap.ROOT, "python", HOSTS[host])]
    assert order == ["pip", "torch", "packages", "mkv_ascend", *more, "warm-up"]


def test_a_command_that_fails_is_done_the_other_way_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = (sys.executable, "-c", "raise SystemExit('no such index')")
    works = (sys.executable, "-c", "open('made', 'w')")
    step = Step("one", "first", (fails,), otherwise={fails: works})
    bootstrap.run_commands(step, dict(os.environ), tmp_path, tmp_path / "log")
    assert (tmp_path / "made").exists()
    assert "no such index" in capsys.readouterr().out
    with pytest.raises(SetupError, match="no such index"):
        bootstrap.run_commands(
            Step("one", "first", (fails,)), dict(os.environ), tmp_path, tmp_path / "log"
        )


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_every_command_of_uv_has_one_of_pip_that_installs_the_same(host: Host) -> None:
    packages = next(s for s in make_steps(bootstrap.ROOT, "python", host) if s.name == "packages")
    assert len(packages.commands) == 3
    for command in packages.commands:
        what = command[command.index("--no-deps") :]
        assert packages.otherwise[command][-len(what) :] == what


def test_bytecode_is_kept_whatever_the_container_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in bootstrap.child_environment(Path(".venv"))


def test_native_sources_are_inputs_of_the_last_step(tmp_path: Path) -> None:
    (tmp_path / "csrc" / "emulator").mkdir(parents=True)
    source = tmp_path / "csrc" / "emulator" / "device.cpp"
    source.touch()
    assert source in bootstrap.source_files(tmp_path)


def test_bytecode_that_a_build_leaves_is_no_source(tmp_path: Path) -> None:
    """Else the set-up after the first one, of another host too, would build all anew."""
    bytecode = tmp_path / "cmake" / "__pycache__" / "native_build.pyc"
    bytecode.parent.mkdir(parents=True)
    bytecode.touch()
    assert bootstrap.source_files(tmp_path) == ()


def test_unsupported_python_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SetupError, match=r"3\.10, 3\.11 or 3\.12 is needed, this is 3\.9"):
        bootstrap.choose_python()


def test_missing_compiler_is_refused_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SetupError, match=r"apt-get install g\+\+"):
        bootstrap.check_machine()


def test_machine_without_wheels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(SetupError, match="riscv64"):
        bootstrap.check_machine()


def test_broken_environment_is_named(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    with pytest.raises(SetupError, match=r"no working Python.*rm -r"):
        bootstrap.existing_version(tmp_path / ".venv")


def test_what_the_user_set_for_pip_passes_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://example.org/cpu")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = bootstrap.child_environment(tmp_path)
    assert environment["PIP_EXTRA_INDEX_URL"] == "https://example.org/cpu"
    assert "PYTHONPATH" not in environment


def test_main_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    (tmp_path / ".venv").mkdir()
    assert bootstrap.main([]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Set-up stopped: ")
    assert output.err.count("\n") == 1


def test_only_pending_steps_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    venv.mkdir()
    made = [
        Step("one", "first", ((sys.executable, "-c", "open('one', 'w')"),), outputs=("one",)),
        Step("two", "second", ((sys.executable, "-c", "raise SystemExit(3)"),)),
    ]
    monkeypatch.setattr(bootstrap, "make_steps", lambda root, python, host: made)
    monkeypatch.setattr(bootstrap, "existing_version", lambda venv: (3, 11))
    with pytest.raises(SetupError):
        bootstrap.set_up(tmp_path, HOST, tmp_path / "log")
    # The finished step is kept, the failed one is not.
    assert list(json.loads((venv / bootstrap.STAMP_NAME).read_text())) == ["one"]
    made[1] = Step("two", "second", ((sys.executable, "-c", ""),))
    assert bootstrap.set_up(tmp_path, HOST, tmp_path / "log") == 1
    assert bootstrap.set_up(tmp_path, HOST, tmp_path / "log") == 0


def test_an_unknown_host_is_refused_in_one_sentence_that_lists_the_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bootstrap.main(["--host", "0.31"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "Set-up stopped: there is no host '0.31': HOST is one of 0.23 (vLLM 0.23.0 with "
        "vllm-ascend 0.23.0) and 0.30 (vLLM 0.30.0 with vllm-ascend 0.30.0rc2)\n"
    )


def test_each_host_has_an_environment_and_a_lock_of_its_own() -> None:
    assert len({host.environment for host in HOSTS.values()}) == len(HOSTS)
    for host in HOSTS.values():
        lock = (bootstrap.ROOT / host.constraints).read_text()
        assert "transformers==" in lock
        # They come by themselves: no lock may choose another.
        assert not [line for line in lock.splitlines() if line.startswith(("torch==", "vllm"))]


def test_what_runs_beside_a_step_is_waited_for_and_may_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv = tmp_path / ".venv"
    venv.mkdir()
    # Each waits for the file of the other, so they run at the same time; then one is slow to fail.
    meet = "import os, sys, time\nopen(sys.argv[1], 'w')\nwhile not os.path.exists(sys.argv[2]): "
    wait = f"{meet}time.sleep(0.01)\n"
    slow = f"{wait}time.sleep(0.3)\nopen('built', 'w')\nsys.exit(1)"
    step = Step(
        "one",
        "first",
        ((sys.executable, "-c", wait, "a", "b"),),
        outputs=("built",),
        beside=(sys.executable, "-c", slow, "b", "a"),
    )
    monkeypatch.setattr(bootstrap, "make_steps", lambda root, python, host: [step])
    monkeypatch.setattr(bootstrap, "existing_version", lambda venv: (3, 11))
    assert bootstrap.set_up(tmp_path, HOST, tmp_path / "log") == 1


def test_what_runs_beside_a_step_that_fails_is_ended(tmp_path: Path) -> None:
    forever = (sys.executable, "-c", "import time\nwhile True: time.sleep(1)")
    log = tmp_path / "log"
    with (
        pytest.raises(SetupError, match="the step"),
        bootstrap.running_beside(forever, dict(os.environ), tmp_path, log),
    ):
        raise SetupError("the step")
