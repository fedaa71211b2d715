"""Ropewalk and llama.cpp behind the same questions: how fast with these lengths, when is the first token there."""

import json

from processes import Failed, drop_from_cache, run, together, watch

PROMPT = 512
# Tokens generated in a measurement of decode.
GENERATED = 48
DEPTHS = (0, 512)
# Tokens before those of a batch, and in it.
BATCH_PROMPT, BATCH_GENERATED = 32, 32
# Room for a prompt and what follows it.
CONTEXT = 1024
ANSWER = 16
# Measurements of each of two processes that run at once: the first or the last may be alone, the median is not.
REPETITIONS = 3

SHORT_TEXT = "Why do sailors twist strands into rope?"
LONG_TEXT = " ".join(f"Strand {number} is laid beside strand {number + 1}, and both are twisted." for number in range(28))


class Ropewalk:
    """One layout of Ropewalk."""

    def __init__(self, program, layout):
        self.program, self.layout = program, layout

    def speed(self, model, depth):
        """Figures in tokens per second: prefill at depth 0, decode at any."""
        prompt = PROMPT if depth == 0 else 0
        row = self.bench(model, prompt, GENERATED, depth)
        figures = {f"decode at {depth}": row["decode_tok_s"]["median"]}
        if prompt:
            figures[f"prefill {prompt}"] = row["prefill_tok_s"]["median"]
            figures["weight bytes"] = row["weight_bytes_per_token"]
        return figures

    def busy(self, model):
        return {"decode at 0, busy core": self.bench(model, 0, GENERATED, 0)["decode_tok_s"]["median"]}

    def batch(self, model, sequences):
        parallel = ["--parallel", str(sequences), "-c", "2048"]
        row = self.bench(model, 0, BATCH_GENERATED, BATCH_PROMPT, *parallel)
        return {f"decode of {sequences}": row["decode_tok_s"]["median"]}

    def bench(self, model, prompt, generated, depth, *more):
        return json.loads(run(self.bench_command(model, prompt, generated, depth, 1, *more)))[0]

    def bench_command(self, model, prompt, generated, depth, repetitions, *more):
        return [self.program, "bench", model, "-p", str(prompt), "-n", str(generated), "-d", str(depth), "-r", str(repetitions),
                *self.layout, "--json", *more]

    def first_and_second_start(self, model):
        """Milliseconds to the first token when the file has to come from the disk, and when the system has it in memory."""
        drop_from_cache(model)
        return {f"first token, {which} start": self.start(model, SHORT_TEXT)[0] * 1000 for which in ("first", "second")}

    def start(self, model, text):
        """Seconds to the first token of a process that starts with this prompt, and the memory that it takes."""
        return watch([self.program, "run", model, "-p", text, "-n", str(ANSWER), "--temp", "0", "--ignore-eos",
                      "-c", str(CONTEXT), *self.layout])

    def limits(self, threads):
        """Bytes per second that so many threads read from memory."""
        command = [self.program, "bench", "kernels", "--only", "limits", "-t", str(threads), "--json"]
        return json.loads(run(command))["limits"][0]["memory_gb_s"] * 1e9


class TwoProcesses(Ropewalk):
    """Two processes that have nothing to do with each other and run at the same time: what two cores do at all. Figures are
    sums."""

    def speed(self, model, depth):
        figures = {f"decode at {depth}": self.sum("decode_tok_s", model, 0, GENERATED, depth)}
        if depth == 0:
            figures[f"prefill {PROMPT}"] = self.sum("prefill_tok_s", model, PROMPT, 0, 0)
        return figures

    def batch(self, model, sequences):
        return {f"decode of {sequences}": self.sum("decode_tok_s", model, 0, BATCH_GENERATED, BATCH_PROMPT, "-c", "2048")}

    def sum(self, figure, model, prompt, generated, depth, *more):
        """Tokens per second of both, who have to run at the same time but for one measurement of those that are made."""
        outputs, apart = together(2, self.bench_command(model, prompt, generated, depth, REPETITIONS, *more))
        rates = [json.loads(output)[0][figure]["median"] for output in outputs]
        if apart > max(prompt, generated) / max(rates):
            raise Failed(f"one of two processes ended {apart:.2f} s after the other, so that their sum says nothing")
        return sum(rates)


class Llama:
    """llama.cpp with some threads."""

    def __init__(self, tools, threads):
        self.tools, self.threads = tools, str(threads)

    def speed(self, model, depth):
        prompt = PROMPT if depth == 0 else 0
        figures = {}
        for row in self.bench(model, prompt, GENERATED, depth):
            name = f"prefill {prompt}" if row["n_prompt"] else f"decode at {depth}"
            figures[name] = row["avg_ts"]
        return figures

    def busy(self, model):
        # Its threads spin while they wait, so that this takes far longer than it should.
        return {"decode at 0, busy core": self.bench(model, 0, 8, 0)[0]["avg_ts"]}

    def bench(self, model, prompt, generated, depth):
        command = [self.tools["llama-bench"], "-m", model, "-t", self.threads, "-p", str(prompt), "-n", str(generated),
                   "-d", str(depth), "-r", "1", "-o", "json"]
        return json.loads(run(command))

    def batch(self, model, sequences):
        if "llama-batched-bench" not in self.tools:
            return {}
        command = [self.tools["llama-batched-bench"], "-m", model, "-c", "2048", "-npp", str(BATCH_PROMPT), "-ntg",
                   str(BATCH_GENERATED), "-npl", str(sequences), "-t", self.threads, "--output-format", "jsonl"]
        rows = [json.loads(line) for line in run(command).splitlines() if line.startswith("{")]
        return {f"decode of {sequences}": rows[0]["speed_tg"]}

    def start(self, model, text):
        tool = self.tools.get("llama-completion") or self.tools.get("llama-cli")
        if tool is None:
            return None
        # Without a pass that warms up, and without the prompt before the answer.
        return watch([tool, "-m", model, "-t", self.threads, "-p", text, "-n", str(ANSWER), "--temp", "0", "--ignore-eos",
                      "-c", str(CONTEXT), "-no-cnv", "--no-warmup", "--no-display-prompt"])

    def version(self, model):
        """What llama-bench says about itself."""
        command = [self.tools["llama-bench"], "-m", model, "-p", "1", "-n", "0", "-r", "1", "-o", "json"]
        row = json.loads(run(command))[0]
        return f"{row['build_number']} ({row['build_commit']})"


def contenders(program, tools):
    """All contenders by name."""
    # Ranks that share each layer, stages, threads of each rank.
    layouts = {"ropewalk 1 thread": (1, 1, 1), "ropewalk 2 threads": (1, 1, 2), "ropewalk 2 ranks": (2, 1, 1),
               "ropewalk 3 stages": (1, 3, 1)}
    ours = {
        name: Ropewalk(program, ["--tp", str(tp), "--pp", str(pp), "--threads", str(threads), "--transport", "shm"])
        for name, (tp, pp, threads) in layouts.items()
    }
    ours["ropewalk 2 processes"] = TwoProcesses(program, ours["ropewalk 1 thread"].layout)
    theirs = {"llama.cpp 1 thread": Llama(tools, 1), "llama.cpp 2 threads": Llama(tools, 2)}
    return ours | theirs
