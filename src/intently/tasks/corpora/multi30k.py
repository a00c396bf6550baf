"""Multi30k, task 1: captions of pictures in English, with German and French translations."""

from __future__ import annotations

from pathlib import Path

from intently.tasks.corpora.download import RemoteFile, obtain
from intently.tasks.corpora.files import ParallelText, read_parallel

LANGUAGES = ("en", "de", "fr")
CREDIT = (
    "Multi30k by D. Elliott, S. Frank, K. Sima'an, L. Specia and others (2016, 2017), "
    "github.com/multi30k/dataset; for non-commercial research and education"
)
COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
SHA256 = {
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
"""SHA-256 of the unpacked files."""


def read_multi30k(
    source: str, target: str, data_dir: Path | None
) -> tuple[ParallelText, ParallelText, dict[str, ParallelText]]:
    """Return the training pairs, the dev pairs and the test sets from one language to another."""
    splits = ("train", "val", "test_2016_flickr")
    names = [f"{split}.{language}" for split in splits for language in (source, target)]
    files = [RemoteFile((name,), f"{ADDRESS}/{name}.gz", SHA256[name]) for name in names]
    paths = iter(obtain("multi30k", files, data_dir))
    train, dev, test = (read_parallel(side, next(paths)) for side in paths)
    return train, dev, {"test_2016_flickr": test}
