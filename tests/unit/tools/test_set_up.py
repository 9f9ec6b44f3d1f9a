# SPDX-License-Identifier: Apache-2.0
"""The set-up runs what is pending and nothing else, and a command that fails says what to do."""

import dataclasses
import hashlib
import io
import json
import os
import sys
import urllib.error
from pathlib import Path

import pytest

import bootstrap
import package_index
import pip_wheel
from bootstrap import Step, pending_steps, read_stamps
from hosts import DEFAULT, HOSTS
from step_runner import SetupError, diagnose, run_logged

HOST = HOSTS[DEFAULT]


@pytest.fixture
def steps(tmp_path: Path) -> list[Step]:
    (tmp_path / "one.txt").write_text("a==1\n")
    return [
        Step("one", "first", (("pip", "one"),), inputs=(tmp_path / "one.txt",)),
        Step("two", "second", (("pip", "two"),)),
        Step("three", "third", (("pip", "three"),), outputs=("built*.so",)),
    ]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (None, []),
        ("input", ["one", "two", "three"]),
        ("command", ["two", "three"]),
        ("output", ["three"]),
        ("stamps", ["one", "two", "three"]),
    ],
)
def test_what_changed_is_done_again_with_all_after_it(
    steps: list[Step], tmp_path: Path, change: str | None, left: list[str]
) -> None:
    (tmp_path / "built.so").touch()
    stamps = {step.name: key for step, key in pending_steps(steps, {}, tmp_path)}
    if change == "input":
        (tmp_path / "one.txt").write_text("a==2\n")
    elif change == "command":
        steps[1] = dataclasses.replace(steps[1], commands=(("pip", "other"),))
    elif change == "output":
        (tmp_path / "built.so").unlink()
    elif change == "stamps":
        (tmp_path / bootstrap.STAMP_NAME).write_text("{")
        stamps = read_stamps(tmp_path)
    assert [step.name for step, _ in pending_steps(steps, stamps, tmp_path)] == left


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


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("x.cpp:3: fatal error: x.h: No such file", "`fatal error: x.h: No such file`"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "a download failed"),
        ("ERROR: HTTP error 503 while getting https://example.org/x.whl", "a download failed"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no torch==2.13.0 for this"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS=1"),
        ("a.cpp:7:3: error: expected ';' before 'x'", "expected ';' before 'x'"),
        ("something else\nat the end\n\n", "`at the end`"),
        ("", "it printed nothing"),
    ],
)
def test_diagnosis_is_one_line_with_advice(output: str, expected: str) -> None:
    text = diagnose(output)
    assert expected in text
    assert "\n" not in text


def run_python(code: str, log: Path, stream: io.StringIO) -> float:
    return run_logged([sys.executable, "-c", code], dict(os.environ), log.parent, log, stream)


def test_failure_names_cause_and_log(tmp_path: Path) -> None:
    log = tmp_path / "setup.log"
    with pytest.raises(SetupError, match=r"disk is full.*setup\.log") as raised:
        run_python("print('No space left on device'); raise SystemExit(1)", log, io.StringIO())
    assert "\n" not in str(raised.value)


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot start no-such-program"):
        run_logged(["no-such-program"], dict(os.environ), tmp_path, tmp_path / "log", io.StringIO())


CONTENT = b"the wheel"
NAME = "pip-26.3-py3-none-any.whl"


def index_of(digest: str) -> dict[str, bytes]:
    """A package index: address -> content."""
    links = [f"../files/other-{NAME}#sha256={'1' * 64}", f"../files/{NAME}#sha256={digest}"]
    page = "".join(f'<a href="{link}">a file</a><br/>' for link in links)
    return {
        "https://index.example/simple/pip/": f"<!DOCTYPE html><body>{page}</body>".encode(),
        f"https://index.example/simple/files/{NAME}": CONTENT,
    }


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    contents = index_of(hashlib.sha256(CONTENT).hexdigest())

    def get(address: str) -> bytes:
        if address not in contents:
            raise urllib.error.URLError(f"nothing at {address}")
        return contents[address]

    monkeypatch.setattr(pip_wheel, "_get", get)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple/")
    return contents


def test_wheel_is_fetched(index: dict[str, bytes], tmp_path: Path) -> None:
    assert pip_wheel.download("26.3", tmp_path / "cache").read_bytes() == CONTENT


def test_damaged_wheel_is_refused(index: dict[str, bytes], tmp_path: Path) -> None:
    index.update(index_of("0" * 64))
    with pytest.raises(SetupError, match="damaged"):
        pip_wheel.download("26.3", tmp_path)
    assert not list(tmp_path.iterdir())


def test_version_that_the_index_lacks(index: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot fetch pip-1\.0.*apt-get install python3-venv"):
        pip_wheel.download("1.0", tmp_path)


def test_version_comes_from_the_constraints() -> None:
    assert pip_wheel.pinned_version("pillow==1\npip==26.3\n") == "26.3"
    with pytest.raises(SetupError, match="make lock"):
        pip_wheel.pinned_version("pip-tools==7\n")


def test_each_setting_of_pip_has_its_variable_of_uv():
    listing = "\n".join(
        (
            "global.cert='/certificates.crt'",
            "global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'",
            "global.find-links='/one /two'",
            "global.index-url='https://pypi.example/simple'",
            "global.no-cache-dir='true'",
        )
    )
    assert package_index.uv_settings(listing) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/certificates.crt",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "UV_DEFAULT_INDEX": "https://pypi.example/simple",
    }


@pytest.mark.parametrize("order", [1, -1])
def test_the_environment_wins_over_install_and_install_over_global(order):
    lines = ["global.index-url='g'", "install.index-url='i'", ":env:.index-url='e'"]
    listing = "\n".join(lines[::order])
    assert package_index.uv_settings(listing)["UV_DEFAULT_INDEX"] == "e"
    assert package_index.uv_settings("\n".join(lines[:2][::order]))["UV_DEFAULT_INDEX"] == "i"
