"""Write the tiny models of make_models.py as folders in Hugging Face's form, with the library that defines it.

The weights are those of the GGUF files, so that the logits recorded for them hold here too. README.md describes the folders.
"""

import json
import shutil

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from make_models import CHAT_TEMPLATE, HERE, MERGES, MODELS, SPECIAL_TOKENS, VOCABULARY, random_model

# Files of a model in several parts hold about so much.
PART = "150KB"


def main() -> None:
    torch.set_num_threads(1)
    for spec in MODELS:
        if spec.name == "tiny-llama":
            # The library refuses to write a head count that does not divide the width.
            continue
        folder = HERE / f"{spec.name}-folder"
        shutil.rmtree(folder, ignore_errors=True)
        model = random_model(spec)
        if spec.f16_suffixes:
            # What the GGUF file has in F16 is in F16 here, and the norms in F32.
            for name, parameter in model.named_parameters():
                if name.endswith(spec.f16_suffixes):
                    parameter.data = parameter.data.half()
        several = spec.name in ("tiny-llama3", "tiny-gemma3")
        model.save_pretrained(folder, max_shard_size=PART if several else "1GB")
        tokenizer().save_pretrained(folder)
        # Sampling of the library's own, which says nothing of the model.
        generation = folder / "generation_config.json"
        generation.write_text(json.dumps({"eos_token_id": [SPECIAL_TOKENS.index("<|im_end|>"), 0]}) + "\n")


def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the GGUF files."""
    model = models.BPE(
        vocab={token: index for index, token in enumerate(VOCABULARY)}, merges=[tuple(merge.split(" ")) for merge in MERGES]
    )
    fast = Tokenizer(model)
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


if __name__ == "__main__":
    main()
