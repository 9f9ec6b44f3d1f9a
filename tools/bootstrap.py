# SPDX-License-Identifier: Apache-2.0
"""Set up one host: everything that `make demo` and `make test` need, from the package index.

Each step leaves a stamp keyed by what it was made from, so a second run has nothing to do and
returns at once. Standard library only, and readable by Python 3.9, so that an interpreter that is
too old gets a sentence instead of a syntax error.

    python3 tools/bootstrap.py                set up what is missing in .venv
    python3 tools/bootstrap.py --host 0.30    another host, in an environment beside it
    python3 tools/bootstrap.py --check        exit status 1 if something is missing, change nothing
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# These two stay beside uv: without pip something must fetch the first wheel, and uv has one for
# each machine; and builds by uv or pip say nothing for minutes, and fail at length.
import pip_wheel
from hosts import DEFAULT, Host, UnknownHostError, host_named
from package_index import uv_environment
from step_runner import SetupError, run_logged

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 10), (3, 11), (3, 12))
BUILD_TOOLS = ("pip", "uv", "setuptools", "wheel", "cmake", "ninja")
STAMP_NAME = ".mkv_ascend_setup.json"
LOG = Path(".cache") / "setup.log"
SOURCES = Path(".cache") / "hosts"
EMULATOR = Path("emulated_npu")
DEMO_MODELS = EMULATOR / "src" / "emulated_npu" / "example_models" / "checkpoints"


@dataclass(frozen=True)
class Step:
    """One step of the set-up: commands, and what its result depends on."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    inputs: tuple[Path, ...] = ()
    # Patterns under the root; each must match something once the step is done.
    outputs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    note: str = ""
    # Runs beside the commands, for a later step. If it fails, that step does the work itself.
    beside: tuple[str, ...] = ()
    # Command -> the one that does the same where it fails: pip's for uv's.
    otherwise: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    # Whether it is done again when an earlier step is.
    repeats: bool = True

    def key(self, previous: str) -> str:
        """Changes when a command, an input's content or an earlier step changes."""
        digest = hashlib.sha256(previous.encode() if self.repeats else b"")
        digest.update(repr((self.commands, sorted(self.environment.items()))).encode())
        for path in self.inputs:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def has_outputs(self, root: Path) -> bool:
        return all(any(root.glob(pattern)) for pattern in self.outputs)


def source_files(root: Path) -> tuple[Path, ...]:
    """What the installed package and its native parts are built from."""
    names = ("pyproject.toml", "setup.py", "CMakeLists.txt")
    files = [folder / name for folder in (root, root / EMULATOR) for name in names]
    folders = (root / "cmake", root / "csrc", root / EMULATOR / "csrc")
    native = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    # The first build compiles modules of cmake/ to bytecode, which nothing is built from.
    sources = (path for path in native if path.parent.name != "__pycache__")
    return tuple(path for path in files if path.exists()) + tuple(sorted(sources))


def make_steps(root: Path, python: str, host: Host) -> list[Step]:
    """The steps after the virtual environment exists; ``python`` is its interpreter."""
    # Only a part of what is installed is ever imported; the last step compiles that part.
    pip = (python, "-m", "pip", "install", "--no-compile")
    constraints = root / host.constraints
    torch = root / "requirements" / "torch.txt"
    editable = ("-e", str(root), "-e", str(root / EMULATOR))
    return [
        Step(
            name="pip",
            title="pip and build tools",
            commands=((*pip, "-c", str(constraints), "-U", *BUILD_TOOLS),),
            inputs=(constraints,),
        ),
        Step(
            # Before everything else, so that nothing else chooses a torch.
            name="torch",
            title="torch",
            commands=((*pip, "-r", str(torch)),),
            inputs=(torch,),
            note="a CPU build is enough; PIP_EXTRA_INDEX_URL can name an index that has one",
        ),
        _packages(python, pip, constraints, host),
        Step(
            name="mkv_ascend",
            title="mkv_ascend, the emulated NPU, and their native parts",
            commands=((*pip, "--no-deps", "--no-build-isolation", *editable),),
            inputs=source_files(root),
            outputs=(
                "emulated_npu/src/emulated_npu/_native.so",
                "mkv_ascend/ops/_kernels.so",
                "mkv_ascend/ops/_ascendc_host.so",
            ),
        ),
        *([_schemas(root, python, host)] if host.from_sources else []),
        Step(
            name="warm-up",
            title="bytecode of what a server imports, and the demo's model classes",
            commands=((python, "tools/warm_up.py", str(root / DEMO_MODELS)),),
            inputs=(constraints, root / "tools" / "warm_up.py"),
            repeats=False,
        ),
    ]


def _packages(python: str, pip: tuple[str, ...], constraints: Path, host: Host) -> Step:
    """All that comes from the package index but torch. uv takes half of pip's time."""
    uv = (python, "-m", "uv", "pip", "install", "--quiet", "--python", python)
    # Complete and pinned, hence no resolver: it would object to triton beside a CUDA torch.
    pinned = ("--no-deps", "-r", str(constraints))
    built = ("--no-deps", "--no-build-isolation", "--no-binary")
    vllm = (*built, "vllm", f"vllm=={host.vllm}")
    # Its own dependencies include torch-npu and CANN packages: not wanted here.
    how = built if host.from_sources else ("--no-deps", "--only-binary")
    ascend = (*how, "vllm-ascend", f"vllm-ascend=={host.vllm_ascend}")
    by_pip = {(*uv, *what): (*pip, *what) for what in (pinned, vllm, ascend)}
    return Step(
        name="packages",
        title=f"vLLM {host.vllm}, vllm-ascend {host.vllm_ascend}, pinned requirements",
        commands=tuple(by_pip),
        otherwise=by_pip,
        inputs=(constraints,),
        environment=host.build_variables(),
        # Mostly waits for the network, while the native parts take as long to compile. The next
        # step finds them in the folder of the build.
        beside=(python, "tools/build_native.py"),
    )


def _schemas(root: Path, python: str, host: Host) -> Step:
    """The schemas of custom operators: a wheel brings them in its library, sources in C++."""
    name, folder = f"vllm_ascend-{host.vllm_ascend}.tar.gz", root / SOURCES
    download = (python, "-m", "pip", "download", "--no-deps", "--no-build-isolation")
    what = ("--no-binary", "vllm-ascend", f"vllm-ascend=={host.vllm_ascend}")
    keep = (python, "-m", "emulated_npu.custom_operators.sources", str(folder / name))
    return Step(
        name="schemas",
        title="schemas of vllm-ascend's operators, for the emulated NPU",
        commands=((*download, "--dest", str(folder), *what), keep),
        inputs=(root / EMULATOR / "src/emulated_npu/custom_operators/sources.py",),
        environment=host.build_variables(),
    )


def version_of(python: str) -> tuple[int, int] | None:
    """Major and minor version of an interpreter, or None when it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        output = subprocess.run(
            [python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = output.split()
    return int(major), int(minor)


def choose_python() -> str:
    """This interpreter if it is supported, else one on the path that is."""
    if sys.version_info[:2] in SUPPORTED:
        return sys.executable
    for version in reversed(SUPPORTED):
        name = shutil.which("python{}.{}".format(*version))
        if name is not None and version_of(name) == version:
            return name
    raise SetupError(
        "Python 3.10, 3.11 or 3.12 is needed, this is {}.{}: install one, or name it as in "
        "`make setup PYTHON=/path/to/python3.11`".format(*sys.version_info[:2])
    )


def check_machine() -> None:
    """Refuse early, by name, what would fail late and obscurely."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise SetupError(
            f"vllm-ascend has wheels for Linux on x86_64 and aarch64 only, this is {sys.platform} "
            f"on {machine}: use a Linux machine or container"
        )
    if not shutil.which((os.environ.get("CXX") or "g++").split()[0]):
        raise SetupError("no C++ compiler: apt-get install g++ (or name one in CXX)")


def create_environment(
    venv: Path, root: Path, host: Host, environment: dict[str, str], log: Path
) -> None:
    """Make the virtual environment with pip in it, also where python3-venv is not installed."""
    python = choose_python()
    interpreter = str(venv / "bin" / "python")
    # Debian keeps pip's seed (ensurepip) in a package of its own, python3-venv.
    run_logged([python, "-m", "venv", "--without-pip", str(venv)], environment, root, log)
    seeds = subprocess.run([interpreter, "-c", "import ensurepip"], stderr=subprocess.DEVNULL)
    if seeds.returncode == 0:
        run_logged([interpreter, "-m", "ensurepip", "--upgrade"], environment, root, log)
        return
    lock = (root / host.constraints).read_text(encoding="utf-8")
    wheel = pip_wheel.download(pip_wheel.pinned_version(lock), root / ".cache")
    install = [interpreter, f"{wheel}/pip", "install", "--no-index", str(wheel)]
    run_logged(install, environment, root, log)


def existing_version(venv: Path) -> tuple[int, int] | None:
    """Version of the virtual environment that is there, None if there is none."""
    if not venv.exists():
        return None
    version = version_of(str(venv / "bin" / "python"))
    if version not in SUPPORTED:
        found = "no working Python" if version is None else "Python {}.{}".format(*version)
        raise SetupError(f"{venv} has {found}, needed is 3.10 to 3.12: rm -r {venv}, then again")
    return version


def read_stamps(venv: Path) -> dict[str, str]:
    """What was done: step name -> key. A stamp that cannot be read counts as nothing done."""
    try:
        stamps = json.loads((venv / STAMP_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def pending_steps(
    steps: Sequence[Step], stamps: dict[str, str], root: Path
) -> Iterator[tuple[Step, str]]:
    """The steps to run, each with the key to store once it is done."""
    chain = ""
    for step in steps:
        key = step.key(chain)
        if step.repeats:
            chain = key
        if stamps.get(step.name) != key or not step.has_outputs(root):
            yield step, key


def child_environment(venv: Path) -> dict[str, str]:
    """The environment of the commands; what the user set for pip passes through."""
    environment = dict(os.environ)
    environment.update(PYTHONUNBUFFERED="1", PIP_NO_INPUT="1", PIP_ROOT_USER_ACTION="ignore")
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    # cmake and ninja of the virtual environment, which is not activated.
    environment["PATH"] = os.pathsep.join([str(venv / "bin"), environment.get("PATH", os.defpath)])
    # Many containers set PYTHONDONTWRITEBYTECODE. In venv, which is ours, bytecode is kept: else
    # each of a server's processes would compile torch, transformers and vLLM anew.
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    return environment


@contextmanager
def running_beside(
    command: Sequence[str], environment: dict[str, str], directory: Path, log: Path
) -> Iterator[None]:
    """Let ``command``, if any, run while the block does, and wait for its end after it.

    Its status is not asked for: who needs its results makes what is missing, and says what fails.
    """
    if not command:
        yield
        return
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            list(command),
            cwd=str(directory),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own, to be ended with all that it started.
            start_new_session=True,
        )
        try:
            yield
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        finally:
            process.wait()


def set_up(root: Path, host: Host, log: Path) -> int:
    """Run what is pending; return the number of steps that were run."""
    venv = root / host.environment
    environment = child_environment(venv)
    steps = make_steps(root, str(venv / "bin" / "python"), host)
    total = len(steps) + 1
    ran = 0
    if existing_version(venv) is None:
        print(f"[1/{total}] virtual environment in {venv.name}", flush=True)
        create_environment(venv, root, host, environment, log)
        ran += 1
    stamps = read_stamps(venv)
    for step, key in pending_steps(steps, stamps, root):
        number = steps.index(step) + 2
        print(f"[{number}/{total}] {step.title}" + (f" ({step.note})" if step.note else ""))
        sys.stdout.flush()
        started, log_beside = time.monotonic(), log.with_name(f"{step.name}.beside.log")
        with running_beside(step.beside, environment, root, log_beside):
            run_commands(step, environment, root, log)
        if not step.has_outputs(root):
            raise SetupError(f"{step.title} left no {' or '.join(step.outputs)}: see {log}")
        print(f"        done in {time.monotonic() - started:.0f} s", flush=True)
        stamps[step.name] = key
        (venv / STAMP_NAME).write_text(json.dumps(stamps, indent=1) + "\n", encoding="utf-8")
        ran += 1
    return ran


def run_commands(step: Step, environment: dict[str, str], root: Path, log: Path) -> None:
    """Run a step's commands; where one that has another way fails, say so and take that way."""
    for command in step.commands:
        settings = {**environment, **step.environment}
        other = step.otherwise.get(command)
        if other is None:
            run_logged(command, settings, root, log)
            continue
        try:
            run_logged(command, uv_environment(command[0], settings), root, log)
        except SetupError as error:
            print(f"        uv: {error}; now by pip", flush=True)
            run_logged(other, settings, root, log)


def is_complete(root: Path, host: Host) -> bool:
    """Whether nothing is left to do."""
    venv = root / host.environment
    if existing_version(venv) is None:
        return False
    steps = make_steps(root, str(venv / "bin" / "python"), host)
    return not list(pending_steps(steps, read_stamps(venv), root))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default=DEFAULT, help="what to set up (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="change nothing, only tell")
    options = parser.parse_args(arguments)
    log = ROOT / LOG
    try:
        host = host_named(options.host)
        if is_complete(ROOT, host):
            return 0
        if options.check:
            print("set-up is not complete: run `make setup`")
            return 1
        check_machine()
        log.parent.mkdir(exist_ok=True)
        with (log.parent / "setup.lock").open("w") as lock:
            # Two `make` at once: the second waits, then finds nothing to do.
            fcntl.flock(lock, fcntl.LOCK_EX)
            ran = set_up(ROOT, host, log)
        print(f"Set-up is complete ({ran} steps run; log: {LOG}).", flush=True)
    except (SetupError, UnknownHostError) as error:
        print(f"Set-up stopped: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Set-up stopped: {error}; check the disk and the rights, again", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted: run it again, finished steps are kept.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
