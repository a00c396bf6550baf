"""Short English stories whose sentences depend on one another: a text that rewards long context.

A story introduces a person with a pet and a friend with a thing, then tells what they do::

    Emma lives by the lake and has a grey dog. The dog is called Rex. Her friend is Paul. He has a
    red hat and likes soup. Paul took the red hat to the school. ... Emma called: Rex, come here!
    ... Where was the red hat? It was at the school. ...

A name, a colour or a place is told once and comes back sentences later, so it can be known from far
enough back only; so can the gender of *he* and *her*, and where a thing was left last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, NamedTuple, TypeVar

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
        while (drawn := self.one(of)) == than:
            pass
        return drawn

    def person(self) -> Person:
        """Draw a woman or a man."""
        if self.random() < 0.5:
            return Person(self.one(WOMEN), "she", "her")
        return Person(self.one(MEN), "he", "his")


@dataclass
class Story:
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
    last: Person | None = field(default=None, init=False)

    @classmethod
    def begin(cls, pick: Pick) -> Story:
        """Draw two people with different names, what they have, and where it is."""
        hero, friend = pick.person(), pick.person()
        while friend.name == hero.name:
            friend = pick.person()
        drawn = (PETS, PET_NAMES, COLOURS, THINGS, COLOURS, FOODS, DAYS, PLACES, PLACES)
        return cls(pick, hero, friend, *map(pick.one, drawn))

    @property
    def object(self) -> str:
        """The thing with its colour."""
        return f"{self.colour} {self.thing}"

    def subject(self, person: Person) -> str:
        """The person, by a pronoun if the sentence before was about the same one."""
        by_pronoun = self.last == person
        self.last = person
        return person.subject.capitalize() if by_pronoun else person.name

    def someone(self) -> Person:
        """Draw the hero or the friend."""
        return self.pick.one((self.hero, self.friend))

    def introduction(self) -> str:
        """Tell who has what, and where it is."""
        hero, friend = self.hero, self.friend
        return (
            f"{hero.name} lives {self.pick.one(HOMES)} and has a {self.fur} {self.pet}. "
            f"The {self.pet} is called {self.pet_name}. "
            f"{hero.possessive.capitalize()} friend is {friend.name}. "
            f"{friend.subject.capitalize()} has a {self.object} and likes {self.food}. "
            f"On {self.day} the {self.pet} was at the {self.pet_at} "
            f"and the {self.thing} was at the {self.thing_at}."
        )

    # what may be told next, all equally often

    def _carried(self) -> str:
        who, self.thing_at = self.someone(), self.pick.another(PLACES, self.thing_at)
        return f"{self.subject(who)} took the {self.object} to the {self.thing_at}."

    def _followed(self) -> str:
        who, self.pet_at = self.someone(), self.pick.another(PLACES, self.pet_at)
        self.last = None
        pet = f"{self.pet_name} the {self.fur} {self.pet}"
        return f"{pet} followed {who.name} to the {self.pet_at}."

    def _called(self) -> str:
        return f"{self.subject(self.someone())} called: {self.pet_name}, come here!"

    def _ate(self) -> str:
        name = self.subject(self.friend)
        return f"{name} bought {self.food} because {self.friend.subject} likes {self.food}."

    def _where_thing(self) -> str:
        self.last = None
        return f"Where was the {self.object}? It was at the {self.thing_at}."

    def _where_pet(self) -> str:
        self.last = None
        return f"Where was {self.pet_name}? The {self.pet} was at the {self.pet_at}."

    def _whose(self) -> str:
        self.last = None
        thing = self.pick.one((self.object, f"{self.fur} {self.pet}"))
        owner = self.friend if thing == self.object else self.hero
        return f"Whose is the {thing}? It is {owner.name}'s {thing.split()[1]}."

    def _met(self) -> str:
        self.last = None
        return f"On {self.day} {self.hero.name} met {self.friend.name} at the {self.thing_at}."

    TELLERS: ClassVar = (
        *(_carried, _followed, _called, _ate),
        *(_where_thing, _where_pet, _whose, _met),
    )


def stories(seed: int = 0) -> Iterator[str]:
    """Return an endless stream of stories, about 200 words each, the same for the same seed.

    >>> from itertools import islice
    >>> [story] = islice(stories(seed=1), 1)
    >>> story == next(stories(seed=1)), story == next(stories(seed=2))
    (True, False)
    """
    pick = Pick(f"stories {seed}")
    while True:
        story = Story.begin(pick)
        sentences, tell = [story.introduction()], pick.one(Story.TELLERS)
        for _ in range(EVENTS):
            sentences.append(tell(story))
            tell = pick.another(Story.TELLERS, tell)
        yield " ".join(sentences)
