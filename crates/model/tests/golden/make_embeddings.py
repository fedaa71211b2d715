"""Record the embeddings that `transformers` computes with the tiny models of make_models.py, into embeddings.json.

They are the mean over all tokens, and that of the last token, of what the final norm leaves of the hidden states, scaled to
length 1: what sentence-transformers does for a decoder.
"""

import json

import torch

from make_models import HERE, MODELS, random_model


def main() -> None:
    torch.set_num_threads(1)
    recorded = {}
    for spec in MODELS:
        model = random_model(spec)
        prompts = json.loads((HERE / f"{spec.name}.json").read_text())["prompts"]
        recorded[spec.name] = [embeddings(model, prompt["tokens"]) for prompt in prompts]
    lines = [f"  {json.dumps(name)}: {json.dumps(prompts)}" for name, prompts in recorded.items()]
    (HERE / "embeddings.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def embeddings(model: torch.nn.Module, tokens: list[int]) -> dict:
    with torch.no_grad():
        # The base model ends with the final norm.
        hidden = model.model(torch.tensor([tokens])).last_hidden_state[0]
    poolings = dict(mean=hidden.mean(0), last=hidden[-1])
    return {name: [round(value, 7) for value in (pooled / pooled.norm()).tolist()] for name, pooled in poolings.items()}


if __name__ == "__main__":
    main()
