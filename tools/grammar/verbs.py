"""Verb phrases: every tense, negation and object pronoun, in both languages.

One English form has one French tense: present → présent, past → passé composé (imparfait for
states: be, have, want, fit in), will → futur simple, can and want to → pouvoir and vouloir with
the infinitive. A past participle agrees with the subject after être, and after avoir with an
object that stands before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .lexicon import VERBS
from .phrases import (
    FEMININE,
    HE,
    JE,
    PLURAL,
    POSSIBLE,
    SHE,
    SURE,
    THEY_F,
    THEY_M,
    WE,
    YOU,
    Link,
    Phrase,
    Words,
)
from .words import rows

# Rows of a conjugation table (je, il, nous, vous, ils) by who the subject is.
ROW = {JE: 0, HE: 1, SHE: 1, WE: 2, YOU: 3, THEY_M: 4, THEY_F: 4}
AVOIR = ("ai", "a", "avons", "avez", "ont")
ETRE = ("suis", "est", "sommes", "êtes", "sont")
IMPERFECT = ("ais", "ait", "ions", "iez", "aient")
FUTURE = ("ai", "a", "ons", "ez", "ont")
AUXILIARY = {
    "can": ("peux", "peut", "pouvons", "pouvez", "peuvent"),
    "want": ("veux", "veut", "voulons", "voulez", "veulent"),
}
REFLEXIVE = {JE: "me", WE: "nous", YOU: "vous", HE: "se", SHE: "se", THEY_M: "se", THEY_F: "se"}


@dataclass(frozen=True, slots=True)
class ObjectPronoun:
    """A pronoun as object, before the verb in French; `agreement` is what participles take."""

    english: str
    french: str
    agreement: int
    direct: bool = True


# English, French, French as the receiver, agreement.
OBJECT_PRONOUNS = (
    ("me", "me", "me", HE),
    ("you", "vous", "vous", HE),
    ("him", "le", "lui", HE),
    ("her", "la", "lui", SHE),
    ("us", "nous", "nous", THEY_M),
    ("them", "les", "leur", THEY_M),
)
DIRECT = {
    english: ObjectPronoun(english, french, agreement)
    for english, french, _, agreement in OBJECT_PRONOUNS
}
DATIVE = {
    english: ObjectPronoun(english, french, agreement, direct=False)
    for english, _, french, agreement in OBJECT_PRONOUNS
}
# What stands for a noun phrase of this agreement.
ANTECEDENT = {
    HE: ObjectPronoun("it", "le", HE),
    SHE: ObjectPronoun("it", "la", SHE),
    THEY_M: DIRECT["them"],
    THEY_F: ObjectPronoun("them", "les", THEY_F),
}


def participle(masculine: str, agreement: int) -> str:
    """Return the past participle that agrees.

    >>> participle("vu", SHE), participle("assis", THEY_M), participle("pris", THEY_F)
    ('vue', 'assis', 'prises')
    """
    form = masculine + "e" * (agreement in FEMININE)
    return form + "s" * (agreement in PLURAL and not form.endswith("s"))


class Verb:
    """A verb in both languages; call it for a phrase.

    >>> VERB["cross"]("past", HE, negative=True).french
    ('ne', 'a', 'pas', 'traversé')
    """

    def __init__(self, english: list[str], french: list[str], tenses: str) -> None:
        self.name = english[0]
        self.english = tuple(tuple(form.split("_")) for form in english)
        verb, _, auxiliary = french[0].partition("+")
        self.takes_être = auxiliary == "être"
        self.infinitive, *tail = verb.split("_")
        self.tail: Words = tuple(tail)
        stem = self.infinitive.removesuffix("er")
        if len(french) == 1:
            joined = stem + "e" if stem.endswith("g") else stem
            self.present: Words = (
                stem + "e",
                stem + "e",
                joined + "ons",
                stem + "ez",
                stem + "ent",
            )
            self.past, self.future = stem + "é", self.infinitive
        else:
            present, past, future = " ".join(french[1:]).split(";")
            self.present = tuple(present.split())
            self.past, self.future = past.strip(), future.strip()
        self.state = "!" in tenses
        self.tenses = tenses.replace("!", "")

    def __repr__(self) -> str:
        return f"Verb({self.name})"

    def simple(self, tense: str, row: int) -> str:
        """Return the one-word French form: présent, imparfait or futur.

        >>> VERB["be"].simple("past", 1), VERB["eat"].simple("present", 2)
        ('était', 'mangeons')
        """
        if tense == "present":
            return self.present[row]
        if tense == "past":
            stem = "ét" if self.name == "be" else self.present[2].removesuffix("ons")
            return stem + IMPERFECT[row]
        return self.future + FUTURE[row]

    @cache  # noqa: B019 - the verbs of the lexicon live as long as the process
    def __call__(
        self,
        tense: str,
        agreement: int,
        negative: bool = False,
        pronoun: ObjectPronoun | None = None,
        agree: int | None = None,
        asked: bool = False,
    ) -> Phrase:
        """Return the verb phrase, perhaps with an object pronoun.

        `tense` is present, past, future, can or want; `agree` is the agreement of an object that
        stands before the verb (the car that she bought); `asked` leaves the English auxiliary
        out, which a question puts before the subject.
        """
        row = ROW[agreement]
        english, helper, content = self.english_words(tense, agreement, negative, asked)
        negator = content if helper is None else range(helper, helper + 1)
        if self.name == "be" and negative and tense != "future":
            negator = range(len(english) - 1, len(english))
        if pronoun is not None:
            english = (*english, pronoun.english)
        last = range(len(english) - 1, len(english))
        clitic = () if pronoun is None else (pronoun.french,)
        not_ = ("pas",) * negative
        french: list[str] = []
        links: list[Link] = []

        def put(words: Words, sources: range, sure: bool = SURE) -> None:
            for word in words:
                links.extend((i, len(french), sure) for i in sources)
                french.append(word)

        put(("ne",) * negative, negator)
        if tense not in ("can", "want"):
            put(clitic, last)
        if self.infinitive.startswith("s'"):
            put((REFLEXIVE[agreement],), content, POSSIBLE)
        if tense in ("can", "want"):
            modal = range(0, 1) if tense == "can" else range(content.start - 2, content.start - 1)
            put((AUXILIARY[tense][row],), modal)
            put(not_, negator)
            put(clitic, last)
            if tense == "want":
                links.append((content.start - 1, len(french), POSSIBLE))
            put((self.infinitive,), content)
        elif tense == "past" and not self.state:
            put(((ETRE if self.takes_être else AVOIR)[row],), range(content.stop), POSSIBLE)
            put(not_, negator)
            if self.takes_être:
                agree = agreement
            elif pronoun is not None and pronoun.direct:
                agree = pronoun.agreement
            put((participle(self.past, HE if agree is None else agree),), content)
        else:
            if tense == "future" and helper is not None:
                links.append((helper, len(french), POSSIBLE if negative else SURE))
            put((self.simple(tense, row),), content)
            put(not_, negator)
        put(self.tail, content)
        return Phrase(english, tuple(french), tuple(sorted(set(links))), agreement)

    def english_words(
        self, tense: str, agreement: int, negative: bool, asked: bool
    ) -> tuple[Words, int | None, range]:
        """Return the English words, the index of the auxiliary, and those of the verb itself."""
        base, third, past = self.english
        singular = agreement in (HE, SHE)
        if self.name == "be" and not asked:
            words = be_words(tense, agreement, negative)
            return (words, 0, range(1, 2)) if tense == "future" else (words, None, range(0, 1))
        helpers: Words = ()
        if asked:
            verb = base
        elif tense in ("future", "can"):
            helpers, verb = (HELPERS[tense][negative],), base
        elif negative:
            does = "didn't" if tense == "past" else "doesn't" if singular else "don't"
            helpers, verb = (does, "want", "to") if tense == "want" else (does,), base
        elif tense == "want":
            helpers, verb = ("wants" if singular else "want", "to"), base
        else:
            verb = past if tense == "past" else third if singular else base
        content = range(len(helpers), len(helpers) + len(verb))
        return (*helpers, *verb), 0 if helpers else None, content


HELPERS = {"future": ("will", "won't"), "can": ("can", "can't")}


def be_words(tense: str, agreement: int, negative: bool) -> Words:
    """Return the English forms of be.

    >>> be_words("present", JE, negative=True), be_words("past", WE, negative=True)
    (('am', 'not'), ("weren't",))
    """
    if tense == "future":
        return (HELPERS[tense][negative], "be")
    if tense == "past":
        form = "was" if agreement in (JE, HE, SHE) else "were"
    else:
        form = "am" if agreement == JE else "is" if agreement in (HE, SHE) else "are"
    if not negative:
        return (form,)
    return ("am", "not") if form == "am" else (form + "n't",)


VERB = {english[0]: Verb(english, french, tenses[0]) for english, tenses, french in rows(VERBS)}
