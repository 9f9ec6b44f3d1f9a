# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.support.tiny_models``: unpack tiny models, train them anew, or list them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.support.tiny_models import ALL_NAMES, InsensitiveModelError, model_directory, store
from tests.support.tiny_models.making import train_anew
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
        description="Unpack byte-level test models, or train them anew. "
        "The folder of each model is printed, one a line.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(ALL_NAMES)}")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--list", action="store_true", help="list them and whether they are there")
    parser.add_argument(
        "--train",
        action="store_true",
        help="train them anew, each in under a minute, and put them in the place of the files of "
        "the repository, by which all tests judge; sources first, then heads",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes that train side by side"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.list:
        print_list()
        return 0
    names = list(ALL_NAMES if options.all else options.names)
    if not names:
        parser.error("name a model, or give --all or --list")
    for name in names:
        try:
            find_recipe(name)
        except ValueError as error:
            parser.error(str(error))
    if not options.train:
        for name in names:
            sys.stdout.write(f"{model_directory(name)}\n")
        return 0
    train: Callable[..., Iterator[Path]] = partial(map, train_anew)
    if options.jobs > 1:
        train = partial(side_by_side, jobs=options.jobs)
    try:
        # Those that others are made from come first.
        sources = [DERIVED[name].source for name in names if name in DERIVED]
        every = dict.fromkeys([*(one for one in sources if not store.is_kept(one)), *names])
        for stage in (False, True):
            chosen = [name for name in every if (name in DERIVED) is stage]
            for path in train(chosen):
                sys.stdout.write(f"{path}\n")
    except InsensitiveModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def print_list() -> None:
    """One line for each model: name, family, folder or that it is still to be unpacked."""
    for recipe in [*RECIPES.values(), *DERIVED.values(), *FITTED_MODELS.values()]:
        state = "not trained yet"
        if store.is_kept(recipe.name):
            path = store.checkpoint_path(recipe.name)
            state = str(path) if store.is_complete(path) else "not unpacked yet"
        kind = f"from {recipe.source}" if isinstance(recipe, DerivedRecipe) else recipe.model_type
        sys.stdout.write(f"{recipe.name:30} {kind:25} {state}\n")


def side_by_side(names: Sequence[str], jobs: int) -> Iterator[Path]:
    """The models' folders, trained by ``jobs`` processes."""
    # Spawned: torch does not survive a fork once it has threads.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(train_anew, names)


if __name__ == "__main__":
    # Before torch is imported: an installed torch_npu would otherwise start up with it, and nothing
    # here needs a device.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    sys.exit(main())
