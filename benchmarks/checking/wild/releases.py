"""What the cases need installed, each release in a folder of its own, without dependencies.

`python checking_wild.py --prepare` fills $WILD_HOME, by default ~/.cache/intently-wild.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HOME = Path(os.environ.get("WILD_HOME", "~/.cache/intently-wild")).expanduser() / "pkgs"

_ONNX = "ml-dtypes==0.6.0", "protobuf==7.36.2"
_HUB_5 = (
    *("anyio==4.16.0", "certifi==2026.10.18", "h11==0.16.0", "hf-xet==1.8.0", "httpcore==1.0.9"),
    *("httpx==0.28.1", "huggingface-hub==1.33.0", "idna==3.20", "shellingham==1.5.4"),
    "sniffio==1.3.1",
)

RELEASES: dict[str, tuple[str, ...]] = {
    "attngym-0.0.17": ("attn-gym==0.0.17",),
    "attngym-0.0.2": ("attn-gym==0.0.2",),
    "equinox-0.7.0": ("equinox==0.7.0",),
    "equinox-0.7.1": ("equinox==0.7.1",),
    "fastnlp-0.5.0": ("fastNLP==0.5.0",),
    "fastnlp-0.5.5": ("fastNLP==0.5.5",),
    "halonet-0.0.4": ("halonet-pytorch==0.0.4",),
    "halonet-0.0.5": ("halonet-pytorch==0.0.5",),
    "httpx": _HUB_5,
    "kh-0.29.0": ("keras-hub==0.29.0",),
    "kh-0.32.0": ("keras-hub==0.32.0",),
    "labml-0.4.126": ("labml-nn==0.4.126",),
    "litgpt-0.4.7": ("litgpt==0.4.7",),
    "local-attention-1.2.1": ("local-attention==1.2.1",),
    "local-attention-1.2.2": ("local-attention==1.2.2",),
    "onnx-1.18.0": ("onnx==1.18.0", *_ONNX),
    "onnx-1.23.2": ("onnx==1.23.2", *_ONNX),
    "onnxruntime-1.22.1": ("onnxruntime==1.22.1", "flatbuffers==25.2.10"),
    "onnxruntime-1.24.1": ("onnxruntime==1.24.1", "flatbuffers==25.2.10"),
    "opacus-1.5.4": ("opacus==1.5.4",),
    "openspeech-0.4.0": ("openspeech-core==0.4.0",),
    "performer-0.11.1": ("performer-pytorch==0.11.1",),
    "performer-0.11.2": ("performer-pytorch==0.11.2",),
    "pytorch-nlp-0.1.0": ("pytorch-nlp==0.1.0",),
    "pytorch-nlp-0.2.0": ("pytorch-nlp==0.2.0",),
    "rotary-embedding-torch-0.2.6": ("rotary-embedding-torch==0.2.6",),
    "rotary-embedding-torch-0.2.7": ("rotary-embedding-torch==0.2.7",),
    "sb-0.5.10": ("speechbrain==0.5.10",),
    "sb-0.5.13": ("speechbrain==0.5.13",),
    "tf-4.19.4": ("transformers==4.19.4", "huggingface-hub==0.10.1"),
    "tf-4.24.0": ("transformers==4.24.0", "huggingface-hub==0.10.1"),
    "tf-4.34.1": ("transformers==4.34.1", "huggingface-hub==0.17.3", "tokenizers==0.14.1"),
    "tf-4.40.2": ("transformers==4.40.2", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.41.2": ("transformers==4.41.2", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.42.1": ("transformers==4.42.1", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.42.2": ("transformers==4.42.2", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.51.0": ("transformers==4.51.0", "huggingface-hub==0.33.0", "tokenizers==0.21.2"),
    "tf-4.51.3": ("transformers==4.51.3", "huggingface-hub==0.33.0", "tokenizers==0.21.2"),
    "tf-5.17.0": ("transformers==5.17.0",),
    "timm-0.9.7": ("timm==0.9.7", "huggingface-hub==0.23.5"),
    "timm-0.9.8": ("timm==0.9.8", "huggingface-hub==0.23.5"),
    "timm-1.0.7": ("timm==1.0.7",),
    "timm-1.0.8": ("timm==1.0.8",),
    "torchtune-0.3.0": ("torchtune==0.3.0",),
    "ttc-1.0.4": ("torchtextclassifiers==1.0.4",),
    "video-diffusion-pytorch-0.3.12": ("video-diffusion-pytorch==0.3.12",),
    "video-diffusion-pytorch-0.3.19": ("video-diffusion-pytorch==0.3.19",),
    "vit-pytorch-0.6.5": ("vit-pytorch==0.6.5",),
    "vit-pytorch-0.6.8": ("vit-pytorch==0.6.8",),
    "widedeep-1.2.0": ("pytorch-widedeep==1.2.0",),
    "widedeep-1.2.1": ("pytorch-widedeep==1.2.1",),
    "xt-1.14.0": ("x-transformers==1.14.0",),
    "xt-1.21.4": ("x-transformers==1.21.4",),
    "xt-1.23.6": ("x-transformers==1.23.6",),
}


def prepare(folders: Iterable[str]) -> None:
    """Install what is not there yet."""
    for folder in folders:
        if not (HOME / folder).is_dir():
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            subprocess.run([*install, str(HOME / folder), *RELEASES[folder]], check=False)
