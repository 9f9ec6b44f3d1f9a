# SPDX-License-Identifier: Apache-2.0
"""What adapters replace of a host without a record: found in their syntax trees."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import foreign_names
import port_report
from foreign_names import Placed
from mkv_ascend.adapters.fingerprints import Definition, HostSource
from tests.support import hosts

SOURCES = foreign_names.sources(hosts.NAME)
"""Of the adapter for the installed host, whose classes they are compared with."""
HOST = HostSource(port_report.environment())
FILES = [path for path in SOURCES if path.name not in ("patching.py", "logging.py")]
OWN = "mkv_ascend_"
"""How the names of attributes begin that are ours, on whose objects they may be."""
COPIES = ("copy.copy", "shallow_copy", "copy.deepcopy", "replace", "type", "SimpleNamespace")
"""What makes objects of our own, which code may write to."""


def lineage(definition: Definition) -> Iterator[Definition]:
    """A class of the host and all of its bases."""
    yield definition
    for base in HOST.bases_of(definition):
        yield from lineage(base)


def foreign_bases(node: ast.ClassDef, tree: ast.Module) -> list[Definition]:
    """The classes of the host that a class of ours derives from, with theirs."""
    bound, found = foreign_names.bound_names(tree), []
    for base in node.bases:
        first, _, rest = ast.unparse(base).partition(".")
        for module, ours in classes_of_ours(tree, first):
            found += foreign_bases(ours, module)
        if first in bound:
            name = bound[first] if not rest else f"{bound[first]}.{rest}".replace(":.", ":")
            definition = HOST.find(name)
            found += list(lineage(definition)) if definition else []
    return found


def classes_of_ours(tree: ast.Module, name: str) -> Iterator[tuple[ast.Module, ast.ClassDef]]:
    """The class that a file imports by this name from another file of ours, with that file."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mkv_ascend."):
            if name not in [alias.asname or alias.name for alias in node.names]:
                continue
            path = foreign_names.ROOT / f"{(node.module or '').replace('.', '/')}.py"
            module = foreign_names.tree_of(path) if path.is_file() else ast.Module([], [])
            for item in module.body:
                if isinstance(item, ast.ClassDef) and item.name == name:
                    yield module, item


def methods(definition: Definition) -> set[str]:
    assert isinstance(definition.node, ast.ClassDef)
    return {node.name for node in definition.node.body if isinstance(node, ast.FunctionDef)}


def attributes_of(definition: Definition) -> set[str]:
    """Names that a class of the host reads or sets of its instances, and those that it declares."""
    assert definition.node is not None
    return {
        node.attr
        for node in ast.walk(definition.node)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }


def unrecorded_overrides(path: Path, tree: ast.Module, named: set[str]) -> Iterator[str]:
    """Methods of our classes that replace a host's. ``named``: ``Class.method`` of all records."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base for base in foreign_bases(node, tree) if isinstance(base.node, ast.ClassDef)]
        for item in node.body:
            if not isinstance(item, ast.FunctionDef):
                continue
            owners = [base.node.name for base in bases if item.name in methods(base)]
            if owners and not any(f"{owner}.{item.name}" in named for owner in owners):
                yield f"{path.name}: {node.name}.{item.name} replaces {owners[0]}.{item.name}"


def unrecorded_writes(path: Path, tree: ast.Module, records: list[Placed]) -> Iterator[str]:
    """Attributes set on what is not ours. ``records``: those that stand in the file."""
    named = {name for placed in records for name in placed.notes.writes}
    constants, bound = foreign_names.constants(tree), foreign_names.bound_names(tree)
    modules = {target.partition(":")[0] for placed in records for target in placed.record.targets}
    for scope, own in _scopes(tree):
        made = _made_here(scope)
        for attribute, owner in _writes(scope):
            variable = attribute.strip("<>")
            root, _, rest = owner.partition(".")
            if root in made or variable in named or constants.get(variable) in named:
                continue
            if own is not None and root == "self" and (rest or variable) not in own:
                continue
            if constants.get(variable, attribute).lstrip("_").startswith(OWN):
                continue  # it replaces nothing of the host's
            # Names in a variable: of a module whose globals a record of this file names.
            whole = bound.get(owner, "").replace(":", ".").strip(".")
            if attribute.startswith("<") and whole in modules:
                continue
            yield f"{path.name}: {owner}.{attribute} is set"


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, set[str] | None]]:
    """Functions, and which attributes of ``self`` are a host's; None: they have no ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            foreign: set[str] = set()
            for base in foreign_bases(node, tree):
                foreign |= attributes_of(base)
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    yield item, foreign
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, None


def _made_here(scope: ast.AST) -> set[str]:
    """Names bound to objects that the function makes."""
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if all(isinstance(v, ast.Call) and ast.unparse(v.func) in COPIES for v in values):
                for target in node.targets:
                    found |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def _writes(scope: ast.AST) -> Iterator[tuple[str, str]]:
    """Attribute and owner of each assignment and deletion, and of each ``setattr``."""
    for node in ast.walk(scope):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for inner in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(inner, ast.Attribute):
                    yield inner.attr, ast.unparse(inner.value)
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2].strip("_") == "setattr"
        ):
            owner, name = node.args[0], node.args[1]
            text = name.value if isinstance(name, ast.Constant) else f"<{ast.unparse(name)}>"
            yield str(text), ast.unparse(owner)


def named_overrides() -> set[str]:
    return {
        ".".join(target.partition(":")[2].split(".")[-2:])
        for placed in foreign_names.records(SOURCES)
        for target in placed.record.targets
    }


def records_of(path: Path) -> list[Placed]:
    """Those of a file and of the files that it imports from; a folder may have one for all."""
    imported = {
        f"{module.replace('.', '/')}.py"
        for node in ast.walk(foreign_names.tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mkv_ascend.")
        for module in [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    }
    beside = [x for x in SOURCES if x.relative_to(foreign_names.ROOT).as_posix() in imported]
    if path.parent.name in ("backends", "drafting", "judge"):
        folder = path.parent.name.replace("backends", "drafting")
        beside += [x for x in SOURCES if (x.parent.name, x.name) == (folder, "records.py")]
    return foreign_names.records({path, *beside})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_that_is_replaced_has_a_record(path):
    tree = foreign_names.tree_of(path)
    assert [*unrecorded_overrides(path, tree, named_overrides())] == []
    assert [*unrecorded_writes(path, tree, records_of(path))] == []


CASES = {
    "worker.MkvWorker.init_device": """
        from vllm_ascend.worker.worker import NPUWorker
        class MkvWorker(NPUWorker):
            def init_device(self): ...
        """,
    "GPUModelRunner.capture_model": """
        from vllm_ascend.worker import model_runner_v1
        class Runner(model_runner_v1.NPUModelRunner):
            def capture_model(self): ...
        """,
    "Other.init_device": """
        from mkv_ascend.adapters.common.worker import MkvWorker
        class Other(MkvWorker):
            def init_device(self): ...
        """,
    "acl_graph._draft_graph_params": """
        from vllm_ascend.compilation import acl_graph
        def use(table):
            acl_graph._draft_graph_params = table
        """,
    "speculative_config.enforce_eager": """
        def make(vllm_config):
            vllm_config.speculative_config.enforce_eager = True
        """,
    "self.attn_groups": """
        from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
        class Runner(NPUModelRunner):
            def other(self):
                self.attn_groups = []
        """,
    "impl.reshape_and_cache": """
        def leave(layer):
            setattr(layer.impl, "reshape_and_cache", None)
        """,
}


@pytest.mark.parametrize("case", CASES)
def test_what_has_no_record_is_found(case):
    tree = ast.parse(textwrap.dedent(CASES[case]))
    here = Path("case.py")
    found = [*unrecorded_overrides(here, tree, set()), *unrecorded_writes(here, tree, [])]
    assert len(found) == 1, found
    assert case.rpartition(".")[2] in found[0]


def test_what_is_ours_is_not_found():
    tree = ast.parse(
        textwrap.dedent(
            """
            import copy
            from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
            class Runner(NPUModelRunner):
                def our_own(self):
                    self.cache_plan_of_ours = None
            class Plain:
                def __init__(self):
                    self.attn_groups = []
            def view(config):
                seen, cache = copy.copy(config), copy.copy(config.cache_config)
                seen.cache_config = cache
                cache.block_size = 128
            """
        )
    )
    here = Path("case.py")
    assert [*unrecorded_overrides(here, tree, set()), *unrecorded_writes(here, tree, [])] == []
