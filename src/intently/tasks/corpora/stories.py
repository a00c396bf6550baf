"""Short English stories whose sentences depend on one another: a text that rewards long context.

A story introduces a person with a pet and a friend with a thing, then tells what they do::

    Emma lives by the lake and has a grey dog. The dog is called Rex. Her friend is Paul. He has a
    red hat and likes soup. Paul took the red hat to the school. ... Emma called: Rex, come here!
    ... Where was the red hat? It was at the school. ...

A name, a colour or a place is told once and comes back sentences later, so it can be known from far
enough back only; so can the gender of *he* and *her*, and where a thing was left last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar

WOMEN = ("Mary", "Emma", "Anna", "Alice", "Clara", "Nina", "Julia", "Sophie")
MEN = ("Paul", "Tom", "Peter", "Harry", "Leo", "Mark", "David", "Oscar")
PET_NAMES = ("Rex", "Luna", "Max", "Molly", "Felix", "Ruby", "Simba", "Bella", "Toby", "Coco")
PETS = ("dog", "cat", "bird", "goat", "horse", "mouse", "hen", "turtle")
COLOURS = ("black", "white", "red", "green", "blue", "brown", "yellow", "grey")
THINGS = ("hat", "bag", "ball", "book", "coat", "key", "cup", "letter")
FOODS = ("bread", "cheese", "soup", "rice", "cake", "milk", "fish", "fruit")
HOMES = ("by the lake", "by the river", "near the church", "near the wall", "on the hill")
PLACES = ("school", "market", "bridge", "station", "museum", "hotel", "tower", "bank")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

EVENTS = 20
"""Sentences, or questions with their answers, after the introduction."""

T = TypeVar("T")


class Person(NamedTuple):
    """A name, and its pronouns: she, her or he, his."""

    name: str
    subject: str
    possessive: str


class Pick:
    """Draws from a stream of numbers that is the same on every platform."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed).random

    def one(self, of: Sequence[T]) -> T:
        """Draw one of a sequence."""
        return of[int(self.random() * len(of))]

    def another(self, of: Sequence[T], than: T) -> T:
        """Draw one that is not ``than``."""
        while (found := self.one(of)) == than:
            pass
        return found

    def person(self) -> Person:
        """Draw a woman or a man."""
        if self.random() < 0.5:
            return Person(self.one(WOMEN), "she", "her")
        return Person(self.one(MEN), "he", "his")


@dataclass
class Scene:
    """Who and what a story is about, and where everything is now; ``last`` was the last subject."""

    pick: Pick
    hero: Person
    friend: Person
    pet: str
    pet_name: str
    fur: str
    thing: str
    colour: str
    food: str
    day: str
    pet_at: str
    thing_at: str
    last: Person | None = None

    @property
    def object(self) -> str:
        """The thing with its colour."""
        return f"{self.colour} {self.thing}"

    def name(self, person: Person) -> str:
        """The person, by a pronoun if the sentence before was about the same one."""
        by_pronoun = self.last == person
        self.last = person
        return person.subject.capitalize() if by_pronoun else person.name

    def someone(self) -> Person:
        """Draw the hero or the friend."""
        return self.pick.one((self.hero, self.friend))


def stories(seed: int = 0) -> Iterator[str]:
    """Return an endless stream of stories, about 200 words each, the same for the same seed.

    >>> from itertools import islice
    >>> [story] = islice(stories(seed=1), 1)
    >>> story == next(stories(seed=1)), story == next(stories(seed=2))
    (True, False)
    """
    pick = Pick(f"stories {seed}")
    while True:
        yield story(pick)


def story(pick: Pick) -> str:
    """Return one story."""
    scene = _scene(pick)
    said, tell = [_introduction(scene)], pick.one(TELLERS)
    for _ in range(EVENTS):
        said.append(tell(scene))
        tell = pick.another(TELLERS, tell)
    return " ".join(said)


def _scene(pick: Pick) -> Scene:
    hero = pick.person()
    friend = pick.person()
    while friend.name == hero.name:
        friend = pick.person()
    return Scene(
        pick,
        hero,
        friend,
        pet=pick.one(PETS),
        pet_name=pick.one(PET_NAMES),
        fur=pick.one(COLOURS),
        thing=pick.one(THINGS),
        colour=pick.one(COLOURS),
        food=pick.one(FOODS),
        day=pick.one(DAYS),
        pet_at=pick.one(PLACES),
        thing_at=pick.one(PLACES),
    )


def _introduction(scene: Scene) -> str:
    hero, friend = scene.hero, scene.friend
    return (
        f"{hero.name} lives {scene.pick.one(HOMES)} and has a {scene.fur} {scene.pet}. "
        f"The {scene.pet} is called {scene.pet_name}. "
        f"{hero.possessive.capitalize()} friend is {friend.name}. "
        f"{friend.subject.capitalize()} has a {scene.object} and likes {scene.food}. "
        f"On {scene.day} the {scene.pet} was at the {scene.pet_at} "
        f"and the {scene.thing} was at the {scene.thing_at}."
    )


def _carried(scene: Scene) -> str:
    who, scene.thing_at = scene.someone(), scene.pick.another(PLACES, scene.thing_at)
    return f"{scene.name(who)} took the {scene.object} to the {scene.thing_at}."


def _followed(scene: Scene) -> str:
    who, scene.pet_at = scene.someone(), scene.pick.another(PLACES, scene.pet_at)
    scene.last = None
    return (
        f"{scene.pet_name} the {scene.fur} {scene.pet} followed {who.name} to the {scene.pet_at}."
    )


def _called(scene: Scene) -> str:
    return f"{scene.name(scene.someone())} called: {scene.pet_name}, come here!"


def _ate(scene: Scene) -> str:
    name = scene.name(scene.friend)
    return f"{name} bought {scene.food} because {scene.friend.subject} likes {scene.food}."


def _where_thing(scene: Scene) -> str:
    scene.last = None
    return f"Where was the {scene.object}? It was at the {scene.thing_at}."


def _where_pet(scene: Scene) -> str:
    scene.last = None
    return f"Where was {scene.pet_name}? The {scene.pet} was at the {scene.pet_at}."


def _whose(scene: Scene) -> str:
    scene.last = None
    thing = scene.pick.one((scene.object, f"{scene.fur} {scene.pet}"))
    owner = scene.friend if thing == scene.object else scene.hero
    return f"Whose is the {thing}? It is {owner.name}'s {thing.split()[1]}."


def _met(scene: Scene) -> str:
    scene.last = None
    return f"On {scene.day} {scene.hero.name} met {scene.friend.name} at the {scene.thing_at}."


TELLERS: tuple[Callable[[Scene], str], ...] = (
    *(_carried, _followed, _called, _ate),
    *(_where_thing, _where_pet, _whose, _met),
)
"""What may be told next, all equally often."""
