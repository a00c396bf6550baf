"""All families of sentences and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .because import because, sake
from .being import activity, being_somebody, calling, likes_doing
from .greetings import answer, being_well, greeting, introduction, question_of, small_question
from .pair import Draft
from .predicates import being_somewhere, command, doing, state, there_is
from .questions import how_many, what, where_is, where_when_why, whether, whether_it_is, who
from .relative import (
    because_because,
    because_that,
    knows_who,
    knows_who_that,
    that_did,
    that_was,
    who_did,
)
from .sentences import (
    FOOD,
    GENERAL,
    PERSONAL,
    Choose,
    and_it,
    giving,
    giving_pronoun,
    object_pronoun,
    said,
)

Family = Callable[[Choose], Draft]

GREETING = "greeting"
"""The kind of the set phrases, all of which training shows."""

# Kind, family, weight.
FAMILIES: tuple[tuple[str, Family, int], ...] = (
    ("because", because, 165),
    ("reason", sake, 50),
    ("statement", partial(said, frames=GENERAL), 190),
    ("partitive", partial(said, frames=FOOD), 70),
    ("person", partial(said, frames=PERSONAL), 50),
    ("giving", giving, 40),
    ("giving", giving_pronoun, 25),
    ("pronoun", object_pronoun, 45),
    ("pronoun", and_it, 35),
    ("state", state, 60),
    ("place", being_somewhere, 25),
    ("there", there_is, 25),
    ("doing", doing, 130),
    ("command", command, 15),
    ("role", being_somebody, 24),
    ("calling", calling, 24),
    ("activity", activity, 24),
    ("activity", likes_doing, 8),
    ("question", whether, 30),
    ("question", whether_it_is, 15),
    ("question", where_is, 8),
    ("question", where_when_why, 14),
    ("question", what, 10),
    ("question", who, 10),
    ("question", how_many, 8),
    ("relative", who_did, 15),
    ("relative", knows_who, 10),
    ("relative", that_was, 35),
    ("relative", that_did, 20),
    (GREETING, greeting, 26),
    (GREETING, small_question, 36),
    (GREETING, question_of, 6),
    (GREETING, being_well, 9),
    (GREETING, answer, 5),
    (GREETING, introduction, 9),
)
DEEPER: tuple[tuple[str, Family, int], ...] = (
    ("because", because_that, 500),
    ("relative", knows_who_that, 300),
    ("reason", because_because, 200),
)
