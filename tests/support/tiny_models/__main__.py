# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.support.tiny_models``: train tiny models, or list them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.support.tiny_models import (
    ALL_NAMES,
    TESTED_NAMES,
    InsensitiveModelError,
    model_directory,
    store,
)
from tests.support.tiny_models.corpus import load_corpus
from tests.support.tiny_models.recipes import (
    DERIVED,
    FITTED_MODELS,
    RECIPES,
    DerivedRecipe,
    find_recipe,
)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.tiny_models",
        description="Train byte-level test models on the sources of the running Python. "
        "Each takes less than a minute; what was trained before is kept. "
        "The folder of each model is printed, one a line.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(ALL_NAMES)}")
    parser.add_argument("--all", action="store_true", help="train all of them")
    parser.add_argument("--tested", action="store_true", help="train those that tests use")
    parser.add_argument("--list", action="store_true", help="list them and whether they are there")
    parser.add_argument(
        "--directory", type=Path, help="folder of the models (default: in MKV_ASCEND_CACHE)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes that train side by side"
    )
    parser.add_argument("--force", action="store_true", help="train again what is there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    directory = options.directory or store.default_directory()
    if options.list:
        print_list(directory)
        return 0
    chosen = TESTED_NAMES if options.tested else options.names
    names = list(ALL_NAMES if options.all else chosen)
    if not names:
        parser.error("name a model, or give --all, --tested or --list")
    for name in names:
        try:
            find_recipe(name)
        except ValueError as error:
            parser.error(str(error))
    train: Callable[..., Iterator[Path]] = one_by_one
    if options.jobs > 1:
        train = partial(side_by_side, jobs=options.jobs)
    try:
        for path in train(names, directory, options.force):
            sys.stdout.write(f"{path}\n")
    except InsensitiveModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def print_list(directory: Path) -> None:
    """One line for each model: name, family, folder or that it is still to be trained."""
    corpus = load_corpus()
    for recipe in [*RECIPES.values(), *DERIVED.values(), *FITTED_MODELS.values()]:
        path = store.checkpoint_path(recipe, corpus, directory)
        state = str(path) if store.is_complete(path) else "not trained yet"
        kind = f"from {recipe.source}" if isinstance(recipe, DerivedRecipe) else recipe.model_type
        sys.stdout.write(f"{recipe.name:30} {kind:25} {state}\n")


def one_by_one(names: Sequence[str], directory: Path, force: bool) -> Iterator[Path]:
    """The models' folders, each trained with a progress bar if need be."""
    for name in names:
        yield train_with_progress(name, directory, force=force)


def side_by_side(names: Sequence[str], directory: Path, force: bool, jobs: int) -> Iterator[Path]:
    """The models' folders, trained by ``jobs`` processes. A source is trained by one of them."""
    missing = [name for name in names if force or not is_there(name, directory)]
    if missing:
        # Spawned: torch does not survive a fork once it has threads.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(model_directory, directory=directory, force=force), missing))
    for name in names:
        yield model_directory(name, directory)


def is_there(name: str, directory: Path) -> bool:
    """Whether the model called ``name`` has been made before."""
    return store.is_complete(store.checkpoint_path(find_recipe(name), load_corpus(), directory))


def train_with_progress(name: str, directory: Path, *, force: bool) -> Path:
    """``model_directory`` with a progress bar on the error stream."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        steps = getattr(find_recipe(name), "steps", 1)
        task = bar.add_task(name, total=steps, state="")

        def advance(step: int, loss: float) -> None:
            bar.update(task, completed=step, state=f"loss {loss:.2f}")

        path = model_directory(name, directory, force=force, progress=advance)
        if not bar.tasks[task].completed:
            bar.update(task, completed=steps, state="trained before")
    return path


if __name__ == "__main__":
    # Before torch is imported: an installed torch_npu would otherwise start up with it, and nothing
    # here needs a device.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    sys.exit(main())
