"""lm-eval against a running server: `local-completions`, which scores answers by the log-probabilities of prompts.

    ROPEWALK_URL=http://127.0.0.1:8080 python lm_eval_client.py

The task lies in tasks/, so nothing but the server is asked. Its scores are compared with those that follow from the server's
log-probabilities directly.
"""

import json
import os
import tempfile
import unittest
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("HF_HOME", tempfile.mkdtemp())

import lm_eval  # noqa: E402
import yaml  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402
from running import MODEL, URL, post  # noqa: E402

TASKS = Path(__file__).resolve().parent / "tasks"
DOCUMENTS = [json.loads(line) for line in (TASKS / "ropes.jsonl").read_text().splitlines()]


class Tokenizer:
    """The server's own."""

    # What lm-eval puts before an empty context, which this task has none of.
    eot_token = 0

    def encode(self, text):
        return post("/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False})["tokens"]


def evaluate():
    """What lm-eval makes of the task."""
    model = LocalCompletionsAPI(base_url=f"{URL}/v1/completions", model=MODEL, tokenizer_backend="None", num_concurrent=4,
                                max_retries=1, batch_size=2)
    # Of itself it knows tokenizers from elsewhere only.
    model.tokenizer_backend, model.tokenizer, model.tokenized_requests = "server", Tokenizer(), True
    task = yaml.safe_load((TASKS / "ropes.yaml").read_text())
    task["dataset_kwargs"] = {"data_files": {"test": str(TASKS / "ropes.jsonl")}}
    return lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0)


def score(context, continuation):
    """The log-probability of a continuation, as the server gives it for a prompt of token ids."""
    tokenizer = Tokenizer()
    whole, before = tokenizer.encode(context + continuation), tokenizer.encode(context)
    answer = post("/v1/completions", {"model": MODEL, "prompt": whole, "echo": True, "logprobs": 1, "max_tokens": 0})
    return sum(answer["choices"][0]["logprobs"]["token_logprobs"][len(before):])


class Evaluation(unittest.TestCase):
    def test_scores_are_those_computed_directly(self):
        results = evaluate()
        right, right_by_length = 0, 0
        samples = {sample["doc_id"]: sample for sample in results["samples"]["ropes"]}
        self.assertEqual(len(samples), len(DOCUMENTS))
        for number, document in enumerate(DOCUMENTS):
            context = f"Question: {document['question']}\nAnswer:"
            scores = [score(context, f" {choice}") for choice in document["choices"]]
            found = [float(response[0]) for response in samples[number]["filtered_resps"]]
            for ours, theirs in zip(scores, found, strict=True):
                self.assertAlmostEqual(ours, theirs, places=3)
            by_length = [it / len(choice) for it, choice in zip(scores, document["choices"])]
            right += scores.index(max(scores)) == document["answer"]
            right_by_length += by_length.index(max(by_length)) == document["answer"]
        measured = results["results"]["ropes"]
        self.assertAlmostEqual(measured["acc,none"], right / len(DOCUMENTS))
        self.assertAlmostEqual(measured["acc_norm,none"], right_by_length / len(DOCUMENTS))
        print(f"acc {measured['acc,none']:.2f}, acc_norm {measured['acc_norm,none']:.2f}")


if __name__ == "__main__":
    unittest.main()
