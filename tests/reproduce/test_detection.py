"""The detection study: causes do what they are meant to, verdicts are counted right, and a subset of the table holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from delphic.reproduce import detection, scenarios_model
from delphic.reproduce.detection import _false_alarms, _one_named
from delphic.reproduce.detection_looks import CALM, alarms, delay, expected, judge, logs, looked
from delphic.reproduce.scenarios import SCENARIOS, Scenario, bandit_runs
from delphic.reproduce.scenarios_model import MODEL_SCENARIOS, logged, model_run
from delphic.runs.log import RunLog
from delphic.statistics.interval import share

BY_LABEL = {scenario.label: scenario for scenario in SCENARIOS}
SEEDS = range(500, 510)  # one of each world


def runs(label: str) -> list[RunLog]:
    return logs(bandit_runs(BY_LABEL[label], SEEDS))


@pytest.mark.parametrize(
    "label",
    ["growing_oscillation 3", "concentration 3", "hacking 3", "degeneracy_hard 3", "degeneracy_easy 3", "all_truncated 3", "mismatch 3"],
)  # fmt: skip
def test_the_strongest_failures_are_named(label: str) -> None:
    """Ten runs. Where the study finds 9 in 10, fewer than 6 come once in 600."""
    rows, ends = looked(BY_LABEL[label], runs(label))
    assert rows[-1]["right_count"] >= 6
    assert sum(ends.values()) >= 10


@pytest.mark.parametrize("label", ["healthy_fast", "damped_ringing 3", "plateau", "noise_only"])
def test_runs_without_a_failure_are_left_alone(label: str) -> None:
    """Ten runs: at one false alarm in a hundred, two or more come once in 230."""
    found = runs(label)
    assert expected(BY_LABEL[label]) == CALM
    assert sum(judge(log, len(log.table)).verdict[0] not in CALM for log in found) <= 1
    if label == "healthy_fast":
        assert len(alarms(found[:3])) <= 1


def test_causes_do_what_they_claim() -> None:
    def late(label: str, name: str) -> tuple[float, float]:
        parts = [log.series(name)[1] for log in runs(label)]
        return float(np.mean([p[: len(p) // 5].mean() for p in parts])), float(
            np.mean([p[-len(p) // 5 :].mean() for p in parts])
        )

    before, after = late("concentration 3", "entropy")
    assert after < 0.1 * before
    before, after = late("hacking 3", "reward_mean")
    assert after > before
    peak = np.mean(
        [log.series("eval_reward")[1].max() - log.series("eval_reward")[1][-4:].mean() for log in runs("hacking 3")]
    )
    assert peak > 0.1
    swings = {
        name: np.mean([np.std(log.series("reward_mean")[1][-60:]) for log in runs(name)])
        for name in ("growing_oscillation 3", "damped_ringing 3")
    }
    assert swings["growing_oscillation 3"] > 2 * swings["damped_ringing 3"]
    assert late("degeneracy_hard 3", "silent_share")[1] > 0.95
    assert late("all_truncated 3", "truncated_share")[1] > 0.99


def test_a_run_depends_on_its_own_seed_alone() -> None:
    scenario = BY_LABEL["healthy_fast"]
    together, alone = bandit_runs(scenario, [3, 13, 4], 30), bandit_runs(scenario, [13], 30)
    assert_frame_equal(together[1], alone[0], abs_tol=1e-12)  # sums round by how many runs lie beside them
    assert not together[0].equals(together[1])


def test_the_delay_is_the_first_look_that_names_it() -> None:
    row = delay(BY_LABEL["degeneracy_hard 3"], runs("degeneracy_hard 3")[:3])
    assert row["named at some look"] == 3
    assert 8 <= int(row["tenth"]) <= int(row["median"]) <= int(row["nine tenths"]) <= 50
    never = delay(BY_LABEL["hacking 3"], runs("healthy_fast")[:2])
    assert (never["median"], never["named at some look"]) == ("never", 0)


def test_verdicts_are_counted_right() -> None:
    row = {"scenario": "hacking", "runs": 100, "right_count": 95, "other_modes": 2, "right": "95%"}
    assert _one_named(row, False).verdict == "holds"
    assert _one_named(row | {"other_modes": 6}, False).verdict == "does not hold"
    assert _one_named(row | {"right_count": 89}, False).verdict == "does not hold"
    assert _one_named(row, True).verdict == "cannot tell"
    assert _false_alarms(share(2, 600), 600, ["x", "x"], False).verdict == "holds"
    assert _false_alarms(share(12, 600), 600, ["x"] * 12, False).verdict == "does not hold"


def test_the_models_runs_are_logged_as_the_trainer_logs_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaky = next(s for s in MODEL_SCENARIOS if s.name == "model_leaky_verifier")
    log = model_run(leaky, 0, tmp_path / "runs.jsonl", 8)
    assert log.framework == "delphic"
    assert log.steps.tolist() == list(range(1, 9))
    assert log.has("entropy", "silent_share", "gradient_norm", "kl_update")
    assert len(log.series("eval_reward")[1]) == 2
    assert log.series("reward_mean")[1].mean() > log.series("eval_reward")[1].mean()  # it pays for more than is right
    monkeypatch.setattr(scenarios_model, "build_parts", None)
    again = model_run(leaky, 0, tmp_path / "runs.jsonl", 8)
    assert again.table.equals(log.table)
    assert logged.__doc__


def test_the_parts_in_their_quick_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(BY_LABEL[label] for label in ("healthy_fast", "hacking 3", "damped_ringing 3"))
    monkeypatch.setattr(detection, "SCENARIOS", few)
    outcome = detection.run_bandit(tmp_path, True, lambda _: None)
    assert {claim.verdict for claim in outcome.claims} == {"cannot tell"}
    assert [row["look"] for row in outcome.tables["the bandit, look by look"]] == ["25%", "50%", "100%"] * 3
    counts = Counter(
        {
            row["scenario"]: sum(v for k, v in row.items() if k != "scenario")
            for row in outcome.tables["verdicts at the end"]
        }
    )
    assert counts["healthy_fast"] == 10

    def short(scenario: Scenario, *_: object) -> list[RunLog]:
        return logs(bandit_runs(BY_LABEL["healthy_fast"], [0], 30))

    monkeypatch.setattr(detection, "model_runs", short)
    outcome = detection.run_model(tmp_path, True, lambda _: None)
    assert len(outcome.claims) == len(MODEL_SCENARIOS)
    assert [part.name for part in detection.detection().parts] == ["bandit", "model", "peer"]


def test_the_peer_is_asked_in_its_own_keys() -> None:
    pytest.importorskip("rl_doctor", reason="rldoctor is not installed")
    from delphic.reproduce.detection_peer import peer_names

    assert peer_names(runs("degeneracy_hard 3")[0]) >= {"advantage_degeneracy"}
