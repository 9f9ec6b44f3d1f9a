# SPDX-License-Identifier: Apache-2.0
"""Pictures in prompts: made from a seed, handed to an engine, and judged by Hugging Face.

A prompt of an engine has one placeholder for a picture; the engine repeats it for each part of the
picture. What is judged has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.support import reference
from tests.support.models import pictured_depths
from tests.support.models.pictured_model import (
    END_TOKEN,
    IMAGE_TOKEN,
    MERGE,
    SECTION_OF_HEAD,
    START_TOKEN,
    TEXT_MODEL,
)
from tests.support.tiny_models import model_directory

Mixed = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Of three axes one: cosines or sines [1, tokens, head size]."""


class Picture(NamedTuple):
    """Random dots; the numbers are pixels."""

    seed: int
    height: int
    width: int

    def image(self) -> Any:
        """The picture as PIL has it."""
        import numpy
        from PIL import Image

        dots = numpy.random.default_rng(self.seed)
        shape = (self.height, self.width, 3)
        return Image.fromarray(dots.integers(0, 256, shape, dtype=numpy.uint8))


def with_picture(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """A prompt of an engine, with the place of a picture between two texts of token ids."""
    return [*before, START_TOKEN, IMAGE_TOKEN, END_TOKEN, *after]


@lru_cache(maxsize=2)
def image_processor(folder: Path) -> Any:
    """Cuts pictures into patches; without torchvision, which need not be there."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil.from_pretrained(folder)


def load_without_torchvision() -> None:
    """Let vLLM load processors of these families where there is no torchvision: without videos."""
    from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen3VLProcessor

    def of_images(family: Any) -> Callable[..., Any]:
        class WithoutVideos(family):
            """That of pictures stands in for its processor of videos, which takes torchvision."""

            def check_argument_for_proper_class(self, *_: Any) -> None:
                """Nothing is checked: the stand-in has another class."""

        def from_pretrained(folder: Any, **_: Any) -> Any:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            cuts = image_processor(Path(folder))
            return WithoutVideos(cuts, tokenizer, cuts)

        return from_pretrained

    for family in (Qwen2_5_VLProcessor, Qwen3VLProcessor):
        family.from_pretrained = of_images(family)


@lru_cache(maxsize=2)
def load_model(folder: Path) -> Any:
    """The model in ``folder`` in float32, eager attention, in evaluation mode."""
    from transformers import AutoModelForImageTextToText

    return reference.load_whole(AutoModelForImageTextToText, folder)


@contextmanager
def rope_of(head: Any, rope: torch.nn.Module) -> Iterator[None]:
    """Let a head rotate by ``rope`` while the block runs."""
    own = head.rope
    head.rope = rope
    try:
        yield
    finally:
        head.rope = own


class RopeAtPlaces(torch.nn.Module):
    """A rotary embedding that takes positions on three axes, given those of its tokens.

    Args:
        rope: the layer's own.
        positions: int64 [3, tokens].
    """

    def __init__(self, rope: Any, positions: torch.Tensor) -> None:
        super().__init__()
        self._rope, self._positions = rope, positions

    def forward(self, states: torch.Tensor, positions: torch.Tensor) -> Any:
        """Cosines and sines of the first tokens, as many as asked for."""
        return self._rope(states, self._positions[:, None, : positions.shape[1]])


class RopeOfAxes(torch.nn.Module):
    """Rotary embedding of a head's Llama layer by positions on three axes.

    Args:
        rope: the layer's own, of one axis.
        positions: int64 [3, tokens].
        mixed: cosines or sines of a head from those of each axis.
    """

    def __init__(self, rope: Any, positions: torch.Tensor, mixed: Mixed) -> None:
        super().__init__()
        self._rope, self._positions, self._mixed = rope, positions, mixed

    def forward(
        self, states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [1, tokens, head size] of the first tokens, as many as asked for."""
        axes = self._positions[:, None, : positions.shape[1]]
        cosines, sines = zip(*(self._rope(states, axis) for axis in axes), strict=True)
        return self._mixed(cosines), self._mixed(sines)


def in_turns(axes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pairs of a head from time, rows and columns in turns, and the last ones from time.

    As Qwen3-VL has it (``mrope_interleaved``); both halves of a head are alike.
    """
    halves = [axis.chunk(2, dim=-1)[0] for axis in axes]
    pairs = halves[0].shape[-1]
    ends = [3 * count for count in pictured_depths.SECTION_OF_HEAD]
    axis_of = [pair % 3 if pair < ends[pair % 3] else 0 for pair in range(pairs)]
    half = torch.stack([halves[axis][..., pair] for pair, axis in enumerate(axis_of)], dim=-1)
    return torch.cat([half, half], dim=-1)


def of_sections(axes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Each part of a head from its own axis; both halves of a head have the same parts."""
    parts = [axis.split([*SECTION_OF_HEAD, *SECTION_OF_HEAD], dim=-1) for axis in axes]
    return torch.cat([parts[index % 3][index] for index in range(6)], dim=-1)


@dataclass(frozen=True)
class PicturedHead:
    """A ``Drafter``: the head of method eagle3 on what the target says of a picture.

    Attributes:
        checkpoint: the head's.
        text: what the target sees.
        text_model: name of the tiny model that the head was trained on.
        mixed: how its rotation has three axes.
    """

    checkpoint: Path
    text: PicturedText
    text_model: str = TEXT_MODEL
    mixed: Mixed = of_sections

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """See ``Drafter``."""
        from tests.support import speculation

        head = speculation.load_head(self.checkpoint, model_directory(self.text_model))
        states = self.text.inputs_of_layers(context[:-1])
        rope = RopeOfAxes(head.rope, self.text.positions([*context, *drafted]), self.mixed)
        with rope_of(head, rope), torch.inference_mode():
            return speculation.rows_of_head(head, head.known(states), context, drafted)


@dataclass(frozen=True)
class PicturedMtp:
    """A ``Drafter``: the layer of multi-token prediction of a model that sees pictures."""

    checkpoint: Path
    text: PicturedText
    head: Any

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """See ``Drafter``."""
        from tests.support import speculation

        head = self.head
        head.pictures = self.text.embeddings()
        states = self.text.output(context[:-1], output_hidden_states=True).hidden_states
        rope = RopeAtPlaces(head.rope, self.text.positions([*context, *drafted]))
        with rope_of(head, rope), torch.inference_mode():
            return speculation.rows_of_head(head, head.known(states), context, drafted)


class PicturedText:
    """A text of token ids around a picture, or without one, as Hugging Face sees it.

    Args:
        folder: of the model.
        prompt: an engine's.
        picture: which it shows; None for a text alone.
    """

    def __init__(self, folder: Path, prompt: Sequence[int], picture: Picture | None) -> None:
        self.folder, self.prompt, self._given = folder, list(prompt), {}
        self._grid = None
        if picture is None:
            return
        cut = image_processor(folder)(images=[picture.image()], return_tensors="pt")
        self._given, self._grid = dict(cut), cut["image_grid_thw"]
        parts = int(self._grid.prod()) // MERGE**2
        place = self.prompt.index(IMAGE_TOKEN)
        self.prompt[place : place + 1] = [IMAGE_TOKEN] * parts

    def positions(self, tokens: Sequence[int]) -> torch.Tensor:
        """Of each token, in time, rows and columns: int64 [3, tokens]."""
        if self._grid is None:
            return torch.arange(len(tokens)).expand(3, -1)
        ids = torch.tensor([list(tokens)])
        kinds = (ids == IMAGE_TOKEN).int()
        found, _ = load_model(self.folder).model.get_rope_index(ids, kinds, self._grid)
        return found[:, 0]

    def embeddings(self) -> torch.Tensor | None:
        """Of the picture's parts [parts, width]; None without a picture."""
        if self._grid is None:
            return None
        with torch.inference_mode():
            model = load_model(self.folder).model
            found = model.get_image_features(self._given["pixel_values"], self._grid)
        return torch.cat(list(found.pooler_output))

    def output(self, tokens: Sequence[int], **options: Any) -> Any:
        """What the model says of ``tokens``, the prompt and more."""
        with torch.inference_mode():
            return load_model(self.folder)(
                input_ids=torch.tensor([list(tokens)]),
                position_ids=self.positions(tokens)[:, None],
                use_cache=False,
                **self._given,
                **options,
            )

    def inputs_of_layers(self, tokens: Sequence[int]) -> list[torch.Tensor]:
        """Hidden states [1, tokens, width] that each layer of the language part is given.

        Not the layers' outputs, which transformers hands out: what depths of the tower say is added
        to these.
        """
        found: list[torch.Tensor] = []
        layers = load_model(self.folder).model.language_model.layers
        hooks = [
            layer.register_forward_pre_hook(lambda _, given: found.append(given[0]))
            for layer in layers
        ]
        try:
            self.output(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after each token, float32 ``[len(tokens), vocabulary]``."""
        found: torch.Tensor = self.output(tokens).logits[0]
        return found.float()
