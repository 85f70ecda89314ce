"""Seconds that vLLM takes for the sampling case of `bench_step.py`; run by it, in vLLM's own environment.

    python benchmarks/sample_vllm.py MODEL PROMPTS.json ROUNDS [STOP]

PROMPTS.json: a list of texts. 16 completions each, at most 64 tokens; with STOP until that text, else exactly 64.
Prints a JSON list of seconds, a number a round, after one round that warms up.
"""

import json
import os
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GB


def main() -> None:
    from vllm import LLM, SamplingParams

    model, file, rounds, *stop = sys.argv[1:]
    with open(file) as texts:
        prompts = json.load(texts)
    llm = LLM(model, dtype="float32", max_model_len=512, enable_prefix_caching=True)
    settings = SamplingParams(
        n=16, max_tokens=64, temperature=1.0, **({"stop": stop} if stop else {"min_tokens": 64, "ignore_eos": True})
    )
    seconds = []
    for _ in range(int(rounds) + 1):
        llm.reset_prefix_cache()
        began = time.perf_counter()
        llm.generate(prompts, settings, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds[1:]))


if __name__ == "__main__":
    main()
