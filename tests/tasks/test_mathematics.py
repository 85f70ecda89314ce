"""math-verify in worker processes: right and wrong answers, time limits, crashes."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("math_verify", reason="math-verify is not installed")

from shared_data import shared

from delphic.config import TaskConfig
from delphic.errors import UserError
from delphic.tasks import Problem, benchmark, load_rewards, make_task
from delphic.tasks.mathematics import MathVerifier
from delphic.tasks.workers import WorkerPool

LIMIT = 20.0
SLOW = ("college_math", "minerva_math")  # long expressions, a quarter of a second each to read


def judged(gold: str, *completions: str, limit: float = LIMIT) -> list[Any]:
    return MathVerifier(limit).reward([Problem("p", {"answer": gold})] * len(completions), completions)


def test_equal_expressions_count_and_others_do_not() -> None:
    assert judged("\\frac{1}{2}", "So $\\boxed{0.5}$.", "\\boxed{\\frac12}", "$\\boxed{2}$", "", "no idea") == [
        1,
        1,
        0,
        0,
        0,
    ]
    assert judged("14,16", "$\\boxed{14, 16}$", "$\\boxed{16,14}$", "\\boxed{14.16}") == [1, 1, 0]
    assert judged("4.5e3", "$\\boxed{4500}$", "$\\boxed{4.5 \\times 10^3}$", "\\boxed{4.5}") == [1, 1, 0]
    assert judged("\\$18.90", "$\\boxed{18.90}$", "\\boxed{\\$18.90}") == [1, 1]


def test_an_unparsable_gold_answer_never_counts() -> None:
    """[] against [] is where others have scored 1."""
    assert judged("", "", "\\boxed{}", "$x$") == [0, 0, 0]
    assert MathVerifier(LIMIT).parses(["5", "\\frac12", "np.arcsin(10/13)", ""]) == [True, True, False, False]


def test_it_works_outside_the_main_thread() -> None:
    """math_verify.parse itself raises there."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(judged("x+1", "$\\boxed{1+x}$")))
    thread.start()
    thread.join()
    assert out == [[1.0]]


def test_an_expression_that_never_ends_has_reward_0_and_the_rest_goes_on() -> None:
    evil = "$\\boxed{" + "9^{" * 6 + "9" + "}" * 6 + "}$"
    judged("2", "\\boxed{2}", limit=1.0)  # workers are up: what is timed is the answer
    began = time.monotonic()
    with pytest.warns(RuntimeWarning, match="reward is 0"):
        values = judged("9^{9^{9^{9^9}}}+1", evil, "$\\boxed{3}$", limit=1.0)
    assert values == [0.0, 0.0]
    assert time.monotonic() - began < 30
    assert judged("2", "\\boxed{2}", limit=1.0) == [1.0], "a new worker has taken its place"


def test_a_slow_answer_and_a_dead_worker_cost_their_own_reward_only() -> None:
    pool = WorkerPool("sleep", limit=0.5, size=2)
    requests = [("echo", 0), ("sleep", 30), ("echo", 2), ("die", 3), ("raise", 4), *(("echo", i) for i in range(5, 40))]
    with pytest.warns(RuntimeWarning, match=r"of 40 answers, 1 took longer than .* 0.5 s and 1 took their worker down"):
        values = pool.map(requests)
    assert values == [0, None, 2, None, None, *range(5, 40)], "in the order of the requests"
    assert (pool.timeouts, pool.crashes) == (1, 1)
    processes = [worker.process for worker in pool._workers]
    os.kill(processes[0].pid, 9)
    processes[0].wait()
    assert pool.map(requests[:1]) == [0], "one that died between two batches takes nothing with it"
    pool.close()
    assert all(process.poll() is not None for process in processes)


def test_workers_that_do_not_start_are_a_sentence() -> None:
    with pytest.raises(UserError, match="do not start: KeyError"):
        WorkerPool("no such judge", limit=1.0).map([1])


def test_the_gold_answer_of_a_row(tmp_path: Path) -> None:
    rows = [{"problem": "p", "solution": "so \\boxed{\\frac{1}{2}}."}, {"problem": "p", "solution": "\\boxed{7}"}]
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    settings = TaskConfig(name="math", path=str(path), held_out_share=0, reward_timeout=LIMIT)
    task = make_task(settings, 5, 0, tmp_path)
    assert sorted(p.columns["answer"] for p in task.train) == ["7", "\\frac{1}{2}"]
    assert load_rewards(task, [], [], tmp_path)[0].name == "math_verify"
    path.write_text(json.dumps({"problem": "p", "solution": "so 5"}))
    with pytest.raises(UserError, match='row 1: column "solution" has no'):
        make_task(settings, 5, 0, tmp_path)
    path.write_text(json.dumps(rows[0]) + "\n" + json.dumps({"problem": "p", "answer": "np.arcsin(10/13)"}))
    with pytest.raises(UserError, match=r"row 2: the gold answer 'np.arcsin\(10/13\)' is not an expression"):
        make_task(settings, 5, 0, tmp_path)


def test_nested_parquet_with_chat_prompts() -> None:
    """Row 3527 of the file as published has no answer (it was a \\mbox)."""
    settings = TaskConfig(
        name="file",
        path=str(shared("math_train", "test.parquet")),
        prompt_column="prompt",
        answer_column="reward_model.ground_truth.target",
        rewards=("exact_match",),
    )
    with pytest.raises(UserError, match=r"row 3527: column .* is empty"):
        make_task(settings, 5, 0, Path())
    with pytest.warns(UserWarning, match="rows left out, no gold answer"):
        task = make_task(settings.model_copy(update={"unparsable": "skip"}), 5, 0, Path())
    assert 4990 <= len(task.train) + len(task.held_out) < 5000
    assert task.train[0].prompt[0].keys() == {"role", "content"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["math500", "amc23", "aime24", "aime25", "aime26", "minerva_math", "olympiadbench", "college_math"]
)
@pytest.mark.filterwarnings("ignore:.*left out")
def test_gold_answers_of_benchmarks_are_right(name: str, tmp_path: Path) -> None:
    """Some rows of each, so that it stays quick; DELPHIC_ALL_ROWS=1 takes all (500 of 500 of MATH-500 are right)."""
    path = shared(name, "test.jsonl") if name == "math500" else shared("maths", name, "test.jsonl")
    lines = path.read_text(encoding="utf-8").strip().split("\n")
    every = 1 if os.environ.get("DELPHIC_ALL_ROWS") else max(1, len(lines) // (8 if name in SLOW else 30))
    some = tmp_path / "test.jsonl"
    some.write_text("\n".join(lines[::every]), encoding="utf-8")
    task = make_task(benchmark(name, str(some)).model_copy(update={"reward_timeout": LIMIT}), 5, 0, tmp_path)
    assert len(task.held_out) >= 0.9 * len(lines[::every]) - 1  # rows left out
    texts = [f"So it is $\\boxed{{{problem.columns['answer']}}}$." for problem in task.held_out]
    wrong = [
        p.columns["answer"] for p, r in zip(task.held_out, task.reward(task.held_out, texts), strict=True) if r != 1
    ]
    assert len(wrong) <= (0.02 * len(texts) if name == "college_math" else 0), wrong
    assert not any(task.reward(task.held_out, ["I do not know."] * len(texts)))
