# ruff: noqa: E501 - sentences stand on one line
"""The built-in language: its splits, its alignments and its French."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from zlib import crc32

import pytest

from intently.tasks.corpora import SPLITS, built_in

from .__main__ import SIZES, pairs, row
from .greetings import ANSWERS, GREETINGS, QUESTIONS, WELL
from .pair import Draft, Pair, english_side
from .parsing import translations
from .phrases import phrase
from .sentences import COUNTS, FOOD, GENERAL
from .shown import SHOWN
from .slots import when
from .splits import language, sample
from .verbs import VERB
from .words import ADJECTIVE, NAME, NOUN, Name, held_out

ROOT = Path(__file__).resolve().parents[2]
WORDS = re.compile(
    r"""[^\W\d_]*n['’]t\b
      | \w+(?:-\w+)*['’](?=\w)(?!(?:s|m|re|ve|ll|d|t)\b)
      | ['’](?:s|m|re|ve|ll|d)\b
      | \w+(?:-\w+)*
      | [^\w\s]""",
    re.VERBOSE,
)


@pytest.fixture(scope="module")
def train() -> list[Pair]:
    return list(islice(language("train"), 100_000))


@pytest.fixture(scope="module")
def novel() -> list[Pair]:
    return sample("novel", 3000)


@pytest.fixture(scope="module")
def deeper() -> list[Pair]:
    return sample("deeper", 2000)


# --- the stream ---------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_stream(split: str) -> None:
    first = list(islice(language(split, 3), 100))
    assert first == list(islice(language(split, 3), 100))
    assert first != list(islice(language(split, 4), 100))


def test_other_processes_see_the_same_stream() -> None:
    code = (
        "from itertools import islice; from tools.grammar.splits import language;"
        "print([p.source for s in ('train', 'novel') for p in islice(language(s, 1), 30)])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert eval(runs[0])[0] == next(language("train", 1)).source


def test_one_english_side_has_one_french_side() -> None:
    """Half a million pairs; only checksums are kept, 64 bits a pair."""
    french: dict[int, int] = {}
    counts = {
        "train": 460_000,
        "validation": 10_000,
        "test": 10_000,
        "novel": 5_000,
        "deeper": 15_000,
    }
    for split, count in counts.items():
        for pair in islice(language(split, 99), count):
            code = pair.source.encode()
            key = crc32(code) << 32 | crc32(code[::-1])
            target = crc32(pair.target.encode())
            assert french.setdefault(key, target) == target, pair.source


@pytest.mark.parametrize("split", SPLITS)
def test_the_package_holds_what_the_grammar_writes(split: str, train: list[Pair]) -> None:
    written = train if split == "train" else pairs(split, SIZES[split])
    for pair, held in zip(written, built_in.language(split), strict=True):
        assert row(pair) == held
    assert tuple(map(row, SHOWN)) == built_in.SHOWN


# --- the splits ---------------------------------------------------------------------------------


def test_splits_are_disjoint(train: list[Pair], novel: list[Pair], deeper: list[Pair]) -> None:
    sides = [{p.source for p in pairs} for pairs in (train, novel, deeper)]
    sides += [{p.source for p in sample(split, 2000)} for split in ("validation", "test")]
    sides.append({p.source for p in islice(language("train", 5), 100_000)} - sides[0])
    assert sum(map(len, sides)) == len(set().union(*sides))


def test_every_greeting_is_in_training_and_in_no_other_split(train: list[Pair]) -> None:
    kinds = {split: {p.kind for p in sample(split, 2000)} for split in SPLITS}
    assert [split for split in SPLITS if "greeting" in kinds[split]] == ["train"]
    found = Counter(p.source for p in train)
    for said in (*GREETINGS, *QUESTIONS, *WELL, *ANSWERS):
        ends = "?" if said in QUESTIONS else ".!"
        forms = [english_side(Draft((said, phrase(end, end))))[0] for end in ends]
        assert sum(found[form] for form in forms) > len(train) / 20_000, forms


def test_samples_are_distinct() -> None:
    for split in ("validation", "test", "novel", "deeper"):
        assert len({pair.source for pair in sample(split, 500)}) == 500


def test_shown_is_in_the_grammar_and_never_in_a_split(train: list[Pair]) -> None:
    assert len(SHOWN) == 13
    shown = {pair.source for pair in SHOWN}
    assert shown.isdisjoint(pair.source for pair in train)
    for pair in SHOWN:
        [parsed] = translations(pair.source)
        assert (parsed.kind, parsed[:4], parsed.alignment, parsed.pronoun) == (
            *(pair.kind, pair[:4], pair.alignment, pair.pronoun),
        )


def described(pair: Pair) -> set[tuple[str, str]]:
    """The (noun, adjective) that stand beside each other, or that a pronoun joins."""
    words = [w.lower() for w in pair.source_words]
    singular = {form: n.name for n in NOUN.values() for form in n.english if form}
    found = {(singular[n], a) for a, n in pairwise(words) if a in ADJECTIVE and n in singular}
    if pair.pronoun:
        found.add((singular[words[pair.pronoun.right]], words[-2]))
    return found


def taken(pair: Pair) -> set[tuple[str, str]]:
    """The (verb, noun) where the noun is the object two words after the verb."""
    words = [w.lower() for w in pair.source_words]
    singular = {form: n.name for n in NOUN.values() for form in n.english if form}
    verbs = {
        " ".join(form): v.name
        for v in VERB.values()
        for form in v.english
        if len(form) == 1 and v.name in ("eat", "drink", "buy", "sell", "open", "read", "lose")
    }
    return {
        (verbs[v], singular[n]) for v, n in zip(words, words[2:]) if v in verbs and n in singular
    }


def test_held_out_combinations_are_in_novel_only(
    train: list[Pair], novel: list[Pair], deeper: list[Pair]
) -> None:
    for pair in (*train, *deeper):
        combinations = described(pair) | taken(pair)
        assert not any(held_out(*c) for c in combinations), pair.source
    seen = [any(held_out(*c) for c in described(p) | taken(p)) for p in novel]
    assert sum(seen) > 0.5 * len(novel)  # the rest are combinations this test does not parse
    assert all(pair.draft.held for pair in novel)
    for pair in novel:
        if pair.pronoun:
            noun, adjective = pair.source_words[pair.pronoun.right], pair.source_words[-2]
            assert any(held_out(n.name, adjective) for n in NOUN.values() if noun in n.english)
    assert sum(pair.pronoun is not None for pair in novel) >= 0.25 * len(novel)


def test_training_shows_every_word(
    train: list[Pair], novel: list[Pair], deeper: list[Pair]
) -> None:
    english = {w.lower() for p in train for w in p.source_words}
    french = {w.lower() for p in train for w in p.target_words}
    for pair in (*novel, *deeper, *SHOWN, *sample("test", 1000)):
        assert english.issuperset(w.lower() for w in pair.source_words)
        assert french.issuperset(w.lower() for w in pair.target_words)


def clauses(pair: Pair) -> int:
    joints = Counter(pair.source_words)
    inner = joints["because"] + joints["that"] + joints["and"]
    return 1 + inner + (joints["who"] if pair.source_words[-1] == "." else 0)


def test_deeper_has_a_clause_more(train: list[Pair], novel: list[Pair], deeper: list[Pair]) -> None:
    assert max(clauses(pair) for pair in (*train, *novel)) == 2
    assert {clauses(pair) for pair in deeper} == {3}


# --- words and alignments -----------------------------------------------------------------------


def test_words_are_those_of_the_text(train: list[Pair]) -> None:
    for pair in train[:20_000]:
        assert tuple(WORDS.findall(pair.source)) == pair.source_words == row(pair).source_words
        assert tuple(WORDS.findall(pair.target)) == pair.target_words == row(pair).target_words


def test_every_word_is_linked(train: list[Pair], novel: list[Pair], deeper: list[Pair]) -> None:
    for pair in (*train[:20_000], *novel, *deeper):
        possible = pair.alignment.possible
        assert pair.alignment.sure <= possible
        assert {i for i, _ in possible} == set(range(len(pair.source_words))), pair
        assert {j for _, j in possible} == set(range(len(pair.target_words))), pair


def test_links_join_the_right_words(train: list[Pair]) -> None:
    """Nouns, adjectives and names are linked to their own translation, surely.

    In set phrases only the names are: "good morning" is "bonjour".
    """
    forms: dict[str, set[str]] = {name: {name} for name in NAME}
    for noun in NOUN.values():
        for english, french in zip(noun.english, noun.french):
            forms.setdefault(english, set()).add(french)
    for adjective in ADJECTIVE.values():
        forms.setdefault(adjective.name, set()).update({*adjective.forms, adjective.before_vowel})
    forms["student"].add("étudiante")
    forms["students"].add("étudiantes")
    forms["teacher"].add("professeure")
    forms["teachers"].add("professeures")
    forms["bank"].add("berge")
    forms["banks"].add("berges")
    for pair in train[:20_000]:
        joined: dict[int, set[str]] = {}
        for i, j in pair.alignment.sure:
            joined.setdefault(i, set()).add(pair.target_words[j])
        for i, word in enumerate(pair.source_words):
            if word in forms and (pair.kind != "greeting" or word in NAME):
                assert joined[i] and joined[i] <= forms[word], (word, pair)


def test_pronouns_name_their_noun(train: list[Pair], deeper: list[Pair]) -> None:
    nouns = {form: noun for noun in NOUN.values() for form in noun.english if form}
    seen: Counter[tuple[bool, bool, bool]] = Counter()
    for pair in (*train, *deeper):
        if pair.pronoun is None:
            continue
        it, target, right, wrong, expected, instead = pair.pronoun
        plural = pair.source_words[it] == "they"
        assert pair.source_words[it] == ("they" if plural else "it")
        assert pair.target_words[target] == expected
        noun, other = nouns[pair.source_words[right]], nouns[pair.source_words[wrong]]
        assert expected == ("elle" if noun.feminine else "il") + "s" * plural
        assert instead == ("elle" if other.feminine else "il") + "s" * plural
        seen[right < wrong, noun.feminine, other.feminine] += 1
    assert len(seen) == 8
    assert min(seen.values()) > 0.04 * seen.total()


def test_the_rarest_word_is_not_rare(train: list[Pair]) -> None:
    english = Counter(w for p in train for w in {w.lower() for w in p.source_words})
    french = Counter(w for p in train for w in {w.lower() for w in p.target_words})
    for counts in (english, french):
        assert min(counts.values()) > len(train) / 7000
        assert sum(n < len(train) / 4000 for n in counts.values()) < 0.02 * len(counts)


def size() -> int:
    """How many sentences the two largest families hold: a lower bound for the language.

    Each verb with each subject, tense, object and time that go together, every English side once.
    """
    total = 0
    for verb in {frame.verb for frame in (*GENERAL, *FOOD)}:
        frames = [frame for frame in (*GENERAL, *FOOD) if frame.verb is verb]
        objects = {p.english: p for f in frames for group in f.objects for p in group}
        denied = {p.denied.english: p for p in objects.values() if p.english[0] not in COUNTS}
        subjects = {p.english: p for group in frames[0].subjects for p in group}
        same_noun = Counter(p.noun for p in objects.values())
        for subject in subjects.values():
            if isinstance(subject.noun, Name):
                continue
            for mode in {m for group in frames[0].modes[subject.agreement] for m in group}:
                times = when(mode.tense, mode.negative, "h" in verb.tenses)
                possible = len(denied if mode.negative else objects) - same_noun[subject.noun]
                total += possible * len({time for group in times for time in group})
    return total


def test_sizes(train: list[Pair]) -> None:
    assert size() > 290 * 10**6
    assert sum(len(pair.source_words) for pair in train) / len(train) <= 9
    assert 400 <= len({w.lower() for pair in train for w in pair.source_words}) <= 600
    assert len({w.lower() for pair in train for w in pair.target_words}) <= 900


def test_il_and_elle_are_balanced(train: list[Pair]) -> None:
    found = Counter(p.pronoun.expected for p in train if p.pronoun)
    assert 0.12 <= found.total() / len(train) <= 0.18
    assert found["il"] < 1.5 * found["elle"] and found["ils"] < 1.5 * found["elles"]


# --- the French ---------------------------------------------------------------------------------

FRENCH = """
# articles, partitives, negation
I drink milk. | Je bois du lait.
I drink water. | Je bois de l'eau.
Mary bought some beer. | Mary a acheté de la bière.
I don't drink milk. | Je ne bois pas de lait.
Thomas won't buy any soup. | Thomas n'achètera pas de soupe.
I don't want water. | Je ne veux pas d'eau.
I don't drink the milk. | Je ne bois pas le lait.
She doesn't have a car. | Elle n'a pas de voiture.
I like milk. | J'aime le lait.
You don't like soup. | Vous n'aimez pas la soupe.
We like apples. | Nous aimons les pommes.
I sold good water. | J'ai vendu de la bonne eau.
Paul bought big boxes. | Paul a acheté de grandes boîtes.
Paul bought red coats. | Paul a acheté des manteaux rouges.
Lucas bought many cakes. | Lucas a acheté beaucoup de gâteaux.
# elision, h muet and h aspiré
The man has a cat. | L'homme a un chat.
The woman wants an owl. | La femme veut un hibou.
The owl ate the egg. | Le hibou a mangé l'œuf.
The hotel is big. | L'hôtel est grand.
I saw a high wall. | J'ai vu un haut mur.
# before and after the noun
My old friend has a beautiful house. | Mon vieil ami a une belle maison.
I saw this beautiful tree. | J'ai vu ce bel arbre.
She bought a new plane. | Elle a acheté un nouvel avion.
Do you have two black horses? | Est-ce que vous avez deux chevaux noirs ?
The women lost the white dresses. | Les femmes ont perdu les robes blanches.
I want the red hat. | Je veux le chapeau rouge.
# possessives, demonstratives
My brother saw this hotel. | Mon frère a vu cet hôtel.
Her sister lost her key. | Sa sœur a perdu sa clé.
These animals are lazy. | Ces animaux sont paresseux.
I read Alice's letters. | J'ai lu les lettres d'Alice.
Mary's dog is under the table. | Le chien de Mary est sous la table.
I saw Emma's brother. | J'ai vu le frère d'Emma.
# tenses
The boys cross the bridge. | Les garçons traversent le pont.
Paul will cross the road tomorrow. | Paul traversera la route demain.
I will see her. | Je la verrai.
They had a horse. | Ils avaient un cheval.
She wanted the book. | Elle voulait le livre.
We were too tired. | Nous étions trop fatigués.
We eat bread. | Nous mangeons du pain.
I can swim with Paul. | Je peux nager avec Paul.
Mary wants to buy a car. | Mary veut acheter une voiture.
She doesn't want to sleep. | Elle ne veut pas dormir.
# être, agreement of participles
Mary went to the church. | Mary est allée à l'église.
The girls didn't arrive. | Les filles ne sont pas arrivées.
We left yesterday. | Nous sommes partis hier.
You came to the garden. | Vous êtes venu au jardin.
Susan entered the kitchen. | Susan est entrée dans la cuisine.
The cat sat on the mat. | Le chat s'est assis sur le tapis.
Emma didn't sit on the chair. | Emma ne s'est pas assise sur la chaise.
We sat near the lake. | Nous nous sommes assis près du lac.
# pronouns as objects
I see him. | Je le vois.
I didn't see her. | Je ne l'ai pas vue.
She helped us. | Elle nous a aidés.
Paul wants to help me. | Paul veut m'aider.
You wait for me. | Vous m'attendez.
She sent him a letter. | Elle lui a envoyé une lettre.
I gave them two books. | Je leur ai donné deux livres.
Mary bought an apple and ate it. | Mary a acheté une pomme et l'a mangée.
She found the books and read them. | Elle a trouvé les livres et les a lus.
# giving
Mary gave Susan a book. | Mary a donné un livre à Susan.
Susan gave Mary a book. | Susan a donné un livre à Mary.
Mary gave roses to Susan. | Mary a donné des roses à Susan.
Mary gave Susan roses. | Mary a donné des roses à Susan.
The king gave roses to the queen. | Le roi a donné des roses à la reine.
The queen didn't give the king any roses. | La reine n'a pas donné de roses au roi.
He gave a coat to the boy. | Il a donné un manteau au garçon.
I showed the women my keys. | J'ai montré mes clés aux femmes.
# questions
Where is the cat? | Où est le chat ?
Did Alice eat the cake? | Est-ce qu'Alice a mangé le gâteau ?
Is the soup too salty? | Est-ce que la soupe est trop salée ?
What did Mary buy? | Qu'est-ce que Mary a acheté ?
Who ate the apple? | Qui a mangé la pomme ?
When will Paul arrive? | Quand est-ce que Paul arrivera ?
Why does she cry? | Pourquoi est-ce qu'elle pleure ?
How many apples did you eat? | Combien de pommes est-ce que vous avez mangées ?
# greetings and small talk
How are you? | Comment allez-vous ?
Hello, how are you? | Bonjour, comment allez-vous ?
I'm fine, thank you. And you? | Je vais bien, merci. Et vous ?
Where are you? | Où êtes-vous ?
Where is she? | Où est-elle ?
Good morning, Mary! | Bonjour, Mary !
Good morning Mary. | Bonjour Mary.
Thank you very much. | Merci beaucoup.
What is your name? | Comment vous appelez-vous ?
Hello, my name is Alice. | Bonjour, je m'appelle Alice.
What is this? | Qu'est-ce que c'est ?
This is my sister. | C'est ma sœur.
How old is your sister? | Quel âge a votre sœur ?
I am ten years old. | J'ai dix ans.
I love you. | Je t'aime.
# roles, and what is said to somebody
You are a wizard, Harry. | Vous êtes un sorcier, Harry.
Harry, you are a wizard! | Harry, vous êtes un sorcier !
He is a wizard. | C'est un sorcier.
They aren't kings. | Ce ne sont pas des rois.
Mary is a student. | Mary est étudiante.
She is a good student. | C'est une bonne étudiante.
The girls were students. | Les filles étaient étudiantes.
I am a queen. | Je suis une reine.
You were tired, Mary. | Vous étiez fatiguée, Mary.
Open the door, Paul. | Ouvrez la porte, Paul.
I lost Harry's book. | J'ai perdu le livre de Harry.
# activities, compounds, whole kinds
Building AI models is cool. | Construire des modèles d'IA est cool.
Reading books isn't hard. | Lire des livres n'est pas dur.
I don't like building models. | Je n'aime pas construire des modèles.
We trained an AI model. | Nous avons entraîné un modèle d'IA.
AI is cool. | L'IA est cool.
Roses are red. | Les roses sont rouges.
Mary saw the world. | Mary a vu le monde.
He went to the bank. | Il est allé à la banque.
She sat on the river bank. | Elle s'est assise sur la berge de la rivière.
The students swam in the pool. | Les étudiants ont nagé dans la piscine.
# there is, commands
There is a cat on the table. | Il y a un chat sur la table.
There isn't any milk in the kitchen. | Il n'y a pas de lait dans la cuisine.
There were twelve mice in the house. | Il y avait douze souris dans la maison.
Open the door. | Ouvrez la porte.
Don't open the window. | N'ouvrez pas la fenêtre.
# relative clauses
The car that Paul sold was old. | La voiture que Paul a vendue était vieille.
I lost the keys that she found. | J'ai perdu les clés qu'elle a trouvées.
The man who ate the cake is happy. | L'homme qui a mangé le gâteau est heureux.
I know the woman who sold the car. | Je connais la femme qui a vendu la voiture.
# because
The road was too wide. | La route était trop large.
Mary left because she was sick. | Mary est partie parce qu'elle était malade.
The animal didn't cross the road because it was too tired. | L'animal n'a pas traversé la route parce qu'il était trop fatigué.
The animal didn't cross the road because it was too wide. | L'animal n'a pas traversé la route parce qu'elle était trop large.
The cow didn't cross the bridge because it was too narrow. | La vache n'a pas traversé le pont parce qu'il était trop étroit.
The cow didn't cross the bridge because it was too tired. | La vache n'a pas traversé le pont parce qu'elle était trop fatiguée.
The girls didn't eat the cakes because they were too sweet. | Les filles n'ont pas mangé les gâteaux parce qu'ils étaient trop sucrés.
The dress didn't fit in the bag because it was too big. | La robe ne tenait pas dans le sac parce qu'elle était trop grande.
The dress didn't fit in the bag because it was too small. | La robe ne tenait pas dans le sac parce qu'il était trop petit.
"""
ROWS = [
    tuple(cell.strip() for cell in line.split("|"))
    for line in FRENCH.splitlines()
    if "|" in line and not line.startswith("#")
]


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 60


def test_french() -> None:
    for source, target in ROWS:
        assert [pair.target for pair in translations(source)] == [target], source
