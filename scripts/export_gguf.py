"""Turn a GGUF file of a Llama-type model into a plain float32 model folder: export_gguf.py FILE.gguf FOLDER.

transformers can read GGUF, but the object it returns remembers that it was quantised and refuses to be saved or
trained; a fresh model with the same weights does not. Needs `pip install gguf`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def export(source: Path, folder: Path) -> None:
    """Write `folder` from `source`; the end token of the tokenizer becomes the model's."""
    quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    plain = {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    model = type(quantised)(type(quantised.config)(**plain))
    model.load_state_dict(quantised.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    export(Path(sys.argv[1]), Path(sys.argv[2]))
