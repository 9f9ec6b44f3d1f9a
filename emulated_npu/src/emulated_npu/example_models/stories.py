# SPDX-License-Identifier: Apache-2.0
"""A little world of animals that lose and find things, as questions and stories about it.

Each sentence is chosen with unequal odds that depend on the animal or the thing, so that the next
word is partly certain (names, colours: copied from the question), partly likely. A model that reads
the question well tells the right story; a smaller one guesses some of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = (
    "Ada", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Kira",
    "Leo", "Mina", "Nils", "Olga", "Paul", "Rosa", "Sven", "Tilda", "Uma", "Viktor", "Wanda",
)  # fmt: skip
COLOURS = ("red", "green", "blue", "yellow", "white", "black", "golden", "silver")

HOMES = {
    "fox": "at the edge of the forest",
    "rabbit": "under the roots of an old oak",
    "owl": "in the bell tower",
    "duck": "on the quiet pond",
    "mouse": "behind the kitchen wall",
    "bear": "in a cave on the hill",
    "hedgehog": "in the garden",
    "otter": "beside the river",
}
"""Animal -> where it lives."""

THINGS = {
    "lantern": ("lit the way home every night", "the wind blew it out and carried it away"),
    "kite": ("flew it on the hill every evening", "its string broke and it flew away"),
    "boat": ("sailed it along the shore", "the current pulled it out of sight"),
    "key": ("opened the little library with it", "it slipped through a hole in a pocket"),
    "drum": ("played it at every feast", "it rolled down the hill"),
    "scarf": ("wore it all winter", "a magpie pulled it from the fence"),
}
"""Thing -> what its owner did with it, how it was lost."""

PLACES = (
    "in the tall grass", "under the bridge", "near the mill", "between two stones",
    "at the top of a tree", "beside the well",
)  # fmt: skip
GIFTS = ("a jar of honey", "a basket of pears", "a warm loaf of bread", "a bag of nuts")


@dataclass(frozen=True)
class Story:
    """A question of a user and the story that answers it."""

    question: str
    answer: str


def story(draw: random.Random) -> Story:
    """One story, with every choice made by ``draw``."""
    animal = draw.choice(tuple(HOMES))
    thing = draw.choice(tuple(THINGS))
    name, friend = draw.sample(NAMES, 2)
    return tell(name, animal, draw.choice(COLOURS), thing, friend, draw)


def tell(
    name: str, animal: str, colour: str, thing: str, friend: str, draw: random.Random
) -> Story:
    """The story of these; ``draw`` makes the choices that the question leaves open."""
    used, lost = THINGS[thing]
    # The helper and the place follow from animal and thing most of the time: a model can know them.
    animals, places = tuple(HOMES), PLACES
    helper = _usually(animals, animals.index(animal) + 1, draw)
    place = _usually(places, tuple(THINGS).index(thing), draw)
    gift = _usually(GIFTS, animals.index(helper), draw)
    question = _likely(
        (
            f"Tell me a story about {name} the {animal}, a {colour} {thing} and {friend}.",
            f"Do you know the story of {name} the {animal}, who lost a {colour} {thing}, and of "
            f"{friend}?",
        ),
        draw,
    )
    sentences = (
        _likely(
            (
                f"Once upon a time there was {_a(animal)} named {name}, who lived {HOMES[animal]}.",
                f"Long ago {_a(animal)} named {name} lived {HOMES[animal]}.",
            ),
            draw,
        ),
        f"{name} had a {colour} {thing} and {used}.",
        _likely((f"One day {lost}.", f"But one stormy morning {lost}."), draw),
        _likely(
            (
                f'{name} was sad and asked {friend} the {helper}: "Have you seen my {thing}?"',
                f"{name} looked for it all day, until {friend} the {helper} came to help.",
            ),
            draw,
        ),
        f"Together they found the {colour} {thing} {place}.",
        f"{name} thanked {friend} with {gift}.",
        _likely(
            (
                f"From that day on {name} and {friend} were the best of friends.",
                f"And {name} never lost the {thing} again.",
            ),
            draw,
        ),
    )
    return Story(question, " ".join(sentences))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _likely(choices: tuple[str, ...], draw: random.Random) -> str:
    """The first of ``choices`` four times out of five."""
    return choices[0] if draw.random() < 0.8 else draw.choice(choices[1:])


def _usually(choices: tuple[str, ...], place: int, draw: random.Random) -> str:
    """The choice at ``place``, counted around, three times out of four; else any."""
    return choices[place % len(choices)] if draw.random() < 0.75 else draw.choice(choices)


def questions(count: int) -> list[str]:
    """``count`` questions, the same ones always. Few of the many there are were trained on."""
    draw = random.Random("questions")
    return [story(draw).question for _ in range(count)]
