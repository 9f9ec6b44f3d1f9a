# SPDX-License-Identifier: Apache-2.0
"""Rules of the repository that no other tool checks."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import generate_docs
import mkv_ascend

ROOT = Path(mkv_ascend.__file__).resolve().parents[1]
MAXIMUM_FILE_LINES = 800
MAXIMUM_FUNCTION_LINES = 80
# Path, or path:function, -> why it may be longer.
LENGTH_EXCEPTIONS: dict[str, str] = {}

SOURCE_SUFFIXES = {".py", ".cpp", ".h", ".sh", ".toml", ".yml", ".yaml", ".in"}
SOURCE_NAMES = {"Makefile", "Dockerfile", "CMakeLists.txt", ".clang-format", ".editorconfig"}
SPDX = "SPDX-License-Identifier: Apache-2.0"


def tracked_files() -> list[Path]:
    """What is in the repository (a source archive without git has no answer)."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def package_files() -> list[Path]:
    """Files of the plugin, of the emulated NPU, and of what supports tests."""
    folders = (ROOT / "mkv_ascend", ROOT / "emulated_npu" / "src", ROOT / "tests" / "support")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def plugin_files() -> list[Path]:
    return [path for path in package_files() if path.is_relative_to(ROOT / "mkv_ascend")]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_light_modules_import_neither_torch_nor_vllm() -> None:
    """Nor numpy: commands start with them, and `schema` needs nothing else."""
    modules = "mkv_ascend.cli, mkv_ascend.config, mkv_ascend.attention.report, mkv_ascend.ops"
    code = f"import json, sys, {modules}, mkv_ascend.layout.plan, mkv_ascend.layout.recipes"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(json.dumps([*sys.modules]))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {name.partition(".")[0] for name in json.loads(done.stdout)}
    heavy = {"torch", "vllm", "vllm_ascend", "transformers", "torch_npu", "numpy"}
    assert not imported & heavy


def test_every_source_file_has_its_licence_line() -> None:
    missing = []
    for path in tracked_files():
        if path.suffix not in SOURCE_SUFFIXES and path.name not in SOURCE_NAMES:
            continue
        # A second line is allowed for a #! before it.
        head = path.read_text(encoding="utf-8").splitlines()[:2]
        if not any(SPDX in line for line in head):
            missing.append(relative(path))
    assert not missing


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function, decorators not counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def too_long() -> dict[str, int]:
    """Files and functions of the package over the repository's limits."""
    found = {}
    for path in package_files():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAXIMUM_FILE_LINES:
            found[relative(path)] = lines
        for name, length in functions(path):
            if length > MAXIMUM_FUNCTION_LINES:
                found[f"{relative(path)}:{name}"] = length
    return found


def test_no_file_and_no_function_is_too_long() -> None:
    excess = {place: lines for place, lines in too_long().items() if place not in LENGTH_EXCEPTIONS}
    assert not excess, "a sign that a module is missing; split it"


def test_length_exceptions_are_still_needed() -> None:
    assert set(LENGTH_EXCEPTIONS) <= set(too_long())


def test_version_numbers_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "([^"]+)"', project, flags=re.MULTILINE)
    assert match is not None
    assert mkv_ascend.__version__ == match[1]
    assert metadata.version("mkv-ascend") == match[1], "run `make setup`"


def test_the_set_up_installs_the_pair_that_the_plugin_supports() -> None:
    from hosts import DEFAULT, HOSTS
    from mkv_ascend.adapters.installed import adapter_for

    host = HOSTS[DEFAULT]
    assert adapter_for({"vllm": host.vllm, "vllm-ascend": host.vllm_ascend}) is not None
    for path in ("Dockerfile", ".github/workflows/npu.yml"):
        image = f"quay.io/ascend/vllm-ascend:v{host.vllm_ascend}"
        assert image in (ROOT / path).read_text(encoding="utf-8"), path


def test_generated_documentation_is_up_to_date() -> None:
    assert generate_docs.out_of_date(ROOT) == [], "run `make generate`"


def test_files_that_are_named_exist() -> None:
    named = re.compile(
        r"(?<![\w/])(?:mkv_ascend|emulated_npu|csrc|docs|tests|tools|requirements)/[\w/]+\.(?:py|md|cpp|h)\b"
    )
    missing = []
    for path in tracked_files():
        if path.suffix in SOURCE_SUFFIXES | {".md"} and path != Path(__file__):
            names = set(named.findall(path.read_text(encoding="utf-8")))
            # The emulated NPU's files name those of their own distribution.
            homes = [ROOT, *(home for home in [ROOT / "emulated_npu"] if home in path.parents)]
            missing += [
                f"{relative(path)}: {name}"
                for name in names
                if not any((home / name).exists() for home in homes)
            ]
    assert not missing


def logger_calls(path: Path) -> Iterator[str]:
    """Each call that makes a logger, as source text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in ("getLogger", "init_logger"):
                yield ast.unparse(node)


# logging.py is where the plugin's loggers are made. The second is below the plugin, works without
# vLLM, and names the logger itself.
LOGGER_FILES = {"mkv_ascend/adapters/logging.py", "mkv_ascend/ops/implementations.py"}
LOGGER_FREE_ROOMS = ("commands",)


def test_loggers_are_under_vllms_own() -> None:
    offenders = []
    for path in plugin_files():
        if relative(path) in LOGGER_FILES or path.relative_to(ROOT).parts[1] in LOGGER_FREE_ROOMS:
            continue
        offenders += [f"{relative(path)}: {call}" for call in logger_calls(path)]
    assert not offenders, "use mkv_ascend.adapters.logging.get_logger(__name__)"


def test_no_print_below_the_command_line() -> None:
    offenders = []
    for path in plugin_files():
        if path.relative_to(ROOT).parts[1] in LOGGER_FREE_ROOMS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # Under `if __name__ == "__main__"` a module is a command.
        inside = {
            id(inner) for node in tree.body if isinstance(node, ast.If) for inner in ast.walk(node)
        }
        offenders += [
            f"{relative(path)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) == "print"
            and id(node) not in inside
        ]
    assert not offenders, "use mkv_ascend.adapters.logging.get_logger(__name__)"


def test_only_the_loader_imports_the_entry_module() -> None:
    """Importing it claims the platform slot in the importing process."""
    offenders = []
    for path in package_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                modules = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            if "mkv_ascend.plugin.entry" in modules:
                offenders.append(relative(path))
    assert not offenders


def test_tests_share_helpers_in_support() -> None:
    """A test imports what supports tests, a neighbour that is no test, or what runs in engines."""
    offenders = []
    folders = (ROOT / "tests" / "unit", ROOT / "tests" / "emulated")
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        neighbours = ".".join(path.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tests"):
                continue
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                ours = module.startswith(f"{neighbours}.") and ".test_" not in module
                if not (ours or module.startswith("tests.support.") or alias.name == "probes"):
                    offenders.append(f"{relative(path)}: {module}")
    assert not offenders


def test_commands_import_the_emulated_npu_where_they_use_it() -> None:
    """A distribution of its own: without it a module must be importable, for ``--help``."""
    offenders = []
    for path in plugin_files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            imported = {
                (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
                for alias in (node.names if isinstance(node, ast.Import | ast.ImportFrom) else ())
            }
            if "emulated_npu" in imported:
                offenders.append(f"{relative(path)}:{node.lineno}")
    assert not offenders


def test_no_path_of_a_machine_is_in_the_repository() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|root|tmp/\w+|home/\w+)/")
    offenders = []
    for path in tracked_files():
        if path.suffix in SOURCE_SUFFIXES | {".md"} and pattern.search(
            path.read_text(encoding="utf-8")
        ):
            offenders.append(relative(path))
    assert not offenders


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code; dependabot moves commits and the versions beside them."""
    used = [
        line.partition("uses:")[2].strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
