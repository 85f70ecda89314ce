"""Options on the command line change what they name and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from delphic.cli import take_config
from delphic.config import RunConfig, load_config
from delphic.config_help import parse_overrides
from delphic.objective import build


def loaded(tmp_path: Path, text: str, *arguments: str) -> RunConfig:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load_config(path, parse_overrides(arguments))


def test_one_choice_leaves_the_others_those_of_the_row_that_would_have_run(tmp_path: Path) -> None:
    expected = build({"preset": "grpo", "clip_high": 0.3})
    assert loaded(tmp_path, "", "--objective.clip_high", "0.3").objective == expected
    assert loaded(tmp_path, 'objective = "grpo"', "--objective.clip_high=0.3").objective == expected
    assert loaded(tmp_path, '[objective]\npreset = "grpo"', "--clip-high", "0.3").objective == expected


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_options_does_not_matter(order: int, tmp_path: Path) -> None:
    pairs = [["--objective", "gspo"], ["--objective.clip_low", "0.01"]][::order]
    goal = loaded(tmp_path, 'objective = "rloo"', *pairs[0], *pairs[1]).objective
    assert goal == build({"preset": "gspo", "clip_low": 0.01})


def test_a_table_without_preset_starts_from_the_defaults(tmp_path: Path) -> None:
    goal = loaded(tmp_path, '[objective]\nbaseline = "mean"', "--objective.scale", "std").objective
    assert goal == build({"baseline": "mean", "scale": "std"})


def test_a_nucleus_is_fine_where_no_ratio_needs_the_full_support(tmp_path: Path) -> None:
    assert loaded(tmp_path, 'objective = "rloo"', "--top-p", "0.9").sampling.top_p == 0.9


def test_values_read_as_in_the_file(tmp_path: Path) -> None:
    options = ["--betas", "[0.8, 0.9]", "--dynamic", "true", "--stop", ".", "--learning-rate", "3e-5"]
    config = loaded(tmp_path, "", *options)
    assert config.train.betas == (0.8, 0.9)
    assert config.sampling.dynamic is True
    assert config.sampling.stop == "."
    assert config.train.learning_rate == 3e-5


def test_the_largest_seed_draws(tmp_path: Path) -> None:
    from delphic.randomness import Purpose, stream

    seed = loaded(tmp_path, "", "--seed", str(2**48 - 1)).seed
    assert 0 <= stream(seed, Purpose.DROP, 2**32 - 1, 2**32 - 1).random() < 1


def test_a_text_stays_text_even_where_toml_would_read_a_number() -> None:
    assert parse_overrides(["--sampling.stop", "7", "--stop", "7"]) == {"sampling.stop": "7"}
    assert parse_overrides(["--task.subset", "true"]) == {"task.subset": "true"}
    assert parse_overrides(["--sampling.stop", '"\\n"']) == {"sampling.stop": "\n"}


def test_the_config_may_stand_anywhere_among_the_options() -> None:
    flags = ("--resume", "--json")
    for arguments in (
        ["c.toml", "--steps", "50", "--resume"],
        ["--steps", "50", "--resume", "c.toml"],
        ["--steps=50", "--resume", "c.toml"],
        ["--resume", "c.toml", "--steps", "50"],
    ):
        config, rest = take_config(arguments, flags)
        assert config == Path("c.toml")
        assert rest == [a for a in arguments if a != "c.toml"]
    assert take_config(["--steps", "-5"], flags) == (None, ["--steps", "-5"])
    assert take_config(["a.toml", "b.toml"], flags) == (Path("a.toml"), ["b.toml"])
