"""delphic reproduce ustat: its pieces on a tiny model, and its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import toml

from delphic.cli import main
from delphic.config import make_config
from delphic.policy.logprobs import score
from delphic.reproduce import study
from delphic.reproduce.claims import Claim, Outcome, Part, interval_of, text
from delphic.reproduce.error_report import judge
from delphic.reproduce.examine import examine, kept_or_made, predict_apart, slopes, weighted_gradient
from delphic.reproduce.runs import course, plain_config
from delphic.reproduce.scaling import grows, part_of
from delphic.reproduce.study import Study, run_study
from delphic.reproduce.sweep import best_size, noninferiority
from delphic.rollouts import Rollouts
from delphic.statistics.interval import Interval
from delphic.training.loop import build_parts


@pytest.fixture
def rollouts(quick: dict[str, Any]) -> tuple[Any, Rollouts]:
    parts = build_parts(make_config(quick, "test"), Path())
    return parts.policy, parts.source.generate(1, 0).rollouts  # type: ignore[union-attr]


def test_slopes_are_scores_times_the_direction(rollouts: tuple[Any, Rollouts]) -> None:
    """Central differences against backward passes, and the weighted gradient against their sum."""
    policy, batch = rollouts
    weights = np.linspace(-1, 1, len(batch))
    direction = weighted_gradient(policy, batch, weights, 1.0, 4096)
    before = {name: p.detach().clone() for name, p in policy.parameters().items()}
    found = slopes(policy, batch, direction, 1.0, 4096)
    assert all(torch.equal(before[name], p) for name, p in policy.parameters().items()), "the weights are as before"
    exact = []
    for i in range(len(batch)):
        policy.model.zero_grad()
        score(policy, [batch.prompt_tokens[i]], [batch.tokens[i]], 1.0).logp.sum().backward()
        gradient = {name: p.grad for name, p in policy.parameters().items()}
        exact.append(sum(float((gradient[name].double() * v).sum()) for name, v in direction.items()))
    np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-2 * np.abs(exact).max())
    assert weights @ exact == pytest.approx(sum(float(v.double().square().sum()) for v in direction.values()), rel=1e-4)


def test_the_experiment_is_the_distance_to_the_reference_gradient(
    quick: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    """‖ĝ − g‖² of one group, put together from Gram matrix and slopes, against the gradients themselves."""
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    config = make_config(quick, "test")
    seen = kept_or_made(tmp_path / "seen.npz", lambda: examine(config, reward_folder, 6, 4, 4, lambda _: None))
    again = kept_or_made(tmp_path / "seen.npz", lambda: pytest.fail("it was kept"))
    assert again.moments() == seen.moments()
    np.testing.assert_array_equal(again.measured("critic", 2), seen.measured("critic", 2))
    assert seen.along.shape == seen.rewards.shape == (6, 4)
    assert seen.norm > 0
    kept = seen.measured("loo", 4)
    # ‖ĝ‖² of the pilot's own moments: without the reference, distance and norm are the same
    for b, moments in enumerate(seen.pilot.prompts):
        w = (seen.rewards[b] - seen.rewards[b].mean()) / 3
        assert kept[b] == pytest.approx(moments.norm - 2 * w @ seen.along[b] + seen.norm, rel=1e-9)
    shrunk = seen.measured("self_inclusive", 4)
    inner = np.array([(z - z.mean()) / 3 @ a for z, a in zip(seen.rewards, seen.along, strict=True)])
    expected = (kept + 2 * inner - seen.norm) * 9 / 16 - 1.5 * inner + seen.norm
    np.testing.assert_allclose(shrunk, expected, rtol=1e-9)
    assert seen.moments().critic >= 0


def test_the_critic_predicts_problems_that_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 5))
    value = states @ np.array([1.0, -1.0, 0.5, 0.0, 0.0]) + 0.1 * rng.normal(size=200)
    assert np.corrcoef(predict_apart(states, value), value)[0, 1] > 0.98
    # noise has nothing to predict; in-sample fits would correlate by about √(5/200) = 0.16 at least
    noise = rng.normal(size=200)
    assert np.corrcoef(predict_apart(states, noise), noise)[0, 1] < 0.15


def test_a_run_is_kept_and_read(tmp_path: Path) -> None:
    config = plain_config(2, 2, 2, seed=3, problems=4, samples=2)
    notes: list[str] = []
    first = course(config, (1, 2), tmp_path / "runs.jsonl", notes.append)
    assert set(first) == {1, 2}
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"run": "cut sh')
    assert course(config, (1, 2), tmp_path / "runs.jsonl", notes.append) == first
    assert len(notes) == 1, "the second time nothing ran"


def test_best_size_and_how_sure_it_is() -> None:
    clear = np.array([[0.1, 0.5, 0.2]] * 4)
    assert best_size(clear, (2, 4, 8))[:3] == (4, 4, 4)
    open_ = np.array([[0.4, 0.5], [0.5, 0.4]])
    best, low, high, first = best_size(open_, (2, 4))
    assert (low, high) == (2, 4)
    assert first.sum() == pytest.approx(1)
    assert best in (2, 4)


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (np.array([0.01, 0.0, -0.005, 0.01]), "non-inferior"),
        (np.array([-0.2, -0.21, -0.19, -0.2]), "inferior"),
        (np.array([-0.2, 0.2, -0.1, 0.1]), "cannot tell"),
    ],
)
def test_noninferiority_has_three_answers(difference: np.ndarray, verdict: str) -> None:
    assert noninferiority(difference)["verdict"] == verdict


def test_verdicts_are_by_intervals() -> None:
    sure, open_, against = Interval(2, 1.5, 2.5), Interval(2, 0.5, 3.5), Interval(0.5, 0.2, 0.8)
    assert judge([sure], 1, above=True) == "holds"
    assert judge([sure, open_], 1, above=True) == "cannot tell"
    assert judge([sure, against], 1, above=True) == "does not hold"
    assert judge([against], 1, above=False) == "holds"
    assert grows([(against, sure)]) == "holds"
    assert grows([(sure, against), (against, sure)]) == "does not hold"
    assert grows([(open_, sure)]) == "cannot tell"
    assert interval_of(text(Interval(1.0, -2.0, float("inf")))) == Interval(1.0, -2.0, float("inf"))


def test_part_of_a_pilot_keeps_its_cross_products() -> None:
    from delphic.statistics.group_size import Pilot
    from delphic.statistics.ustatistic import prompt_moments

    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4, 5, 3))
    prompts = [prompt_moments(s @ s.T, rng.random(5)) for s in scores]
    pilot = Pilot(prompts, np.arange(16.0).reshape(4, 4))
    half = part_of(pilot, np.array([3, 1]))
    assert half.prompts == [prompts[3], prompts[1]]
    np.testing.assert_array_equal(half.cross, [[15, 13], [7, 5]])


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    calls: list[str] = []

    def part(name: str, fails: bool) -> Part:
        def run(folder: Path, quick: bool, note: Any) -> Outcome:
            calls.append(name)
            note("working")
            if fails:
                raise KeyboardInterrupt
            claim = Claim(f"{name} | works", "here", "1 (0 to 2)", "holds")
            return Outcome([claim], {"T": [{"a": 1.23456, "b": "x"}, {"a": 2.0, "c": "y"}]})

        return Part(name, "about", run)

    def made(fails: bool, setting: str = "s") -> Study:
        parts = [part("one", False), part("two", fails)]
        return Study("mine", setting, "Title", "About.", parts, {"Paper": [{"found": "x"}]}, lambda _: [])

    with pytest.raises(KeyboardInterrupt):
        run_study(made(fails=True), tmp_path, True, lambda *_: None)
    report = run_study(made(fails=False), tmp_path, True, lambda *_: None)
    assert calls == ["one", "two", "two"], "the finished part is read"
    assert [c["verdict"] for c in report["claims"]] == ["holds", "holds"]
    assert report == json.loads((tmp_path / "report.json").read_text())
    page = (tmp_path / "report.md").read_text()
    assert "| one \\| works | here | 1 (0 to 2) | holds |" in page
    assert "| 1.235 | x |  |" in page
    assert "one | works" in (tmp_path / "report.html").read_text()
    from delphic.errors import UserError

    with pytest.raises(UserError, match="holds mine of s; name another --to"):
        run_study(made(fails=False, setting="other"), tmp_path, True, lambda *_: None)
    assert study.cell(0.123456) == "0.1235"


def test_the_command_on_a_model_of_ones_own(
    quick: dict[str, Any], reward_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    config = toml(reward_folder / "own.toml", quick)
    arguments = ["reproduce", "ustat", "--task", str(config), "--quick", "--to", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["quick"] is True
    assert {claim["part"] for claim in report["claims"]} == {"errors"}
    rows = report["parts"]["errors"]["tables"]["Models"]
    assert rows[0]["problems"] == 4
    assert "plotly" in (tmp_path / "out" / "report.html").read_text()
    assert main(arguments) == 0
    assert "report.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ustatt"], 'there is no study "ustatt"; did you mean "ustat"?'),
        ([], "reproduce: the following arguments are required: STUDY"),
        (["ustat", "--task", "arithmetik"], 'no task "arithmetik"; did you mean "arithmetic"?'),
        (["ustat", "--model", "./nowhere"], 'nothing at "./nowhere"'),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
