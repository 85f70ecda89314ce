"""The examples and the pages are true to the code."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from delphic.config import load_config, make_config
from delphic.objective import PRESETS
from delphic.training.loop import train

ROOT = Path(__file__).resolve().parent.parent


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Silent:
    def start(self, *_: object) -> None: ...
    def step(self, *_: object) -> None: ...
    def message(self, *_: object) -> None: ...
    def close(self) -> None: ...


def test_the_minimal_loop_takes_the_trainers_first_three_steps(tmp_path: Path) -> None:
    minimal = load_script(ROOT / "examples" / "minimal.py")
    config = make_config(
        {
            "sampling": {"prompts": 16, "completions": 16, "max_new_tokens": minimal.MAX_NEW_TOKENS},
            "train": {"steps": 3, "learning_rate": 1e-4},
            "evaluation": {"problems": 0},
            "model": {"threads": 1},
        },
        "test",
    )
    rows = train(config, tmp_path / "run", tmp_path, resume=False, display=Silent()).rows
    for (reward, gradient), row in zip(minimal.train(steps=3), rows, strict=True):
        assert reward == pytest.approx(row["reward_mean"], abs=1e-12)
        assert gradient == pytest.approx(row["gradient_norm"], rel=1e-4)  # summed in other micro-batches
    assert any(row["gradient_norm"] > 0 for row in rows)


def test_the_minimal_loop_is_short() -> None:
    assert len((ROOT / "examples" / "minimal.py").read_text().splitlines()) < 150


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda p: p.name)
def test_every_example_config_is_valid(path: Path) -> None:
    assert load_config(path).train.steps > 0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_trains_the_built_in_model_for_a_step(name: str, tmp_path: Path) -> None:
    config = make_config(
        {
            "objective": name,
            "sampling": {"prompts": 3, "completions": 4, "max_new_tokens": 5, "oracle_samples": 2 * (name == "oracle")},
            "train": {"steps": 2, "sync_interval": 2},
            "evaluation": {"problems": 0},
            "model": {"threads": 1},
        },
        "test",
    )
    rows = train(config, tmp_path / "run", tmp_path, resume=False, display=Silent()).rows
    assert rows[-1]["version"] == 2
    assert sum(row["gradient_norm"] for row in rows) > 0


@pytest.mark.parametrize("page", ["objectives.md", "metrics.md", "logs.md"])
def test_the_pages_that_come_from_the_code_are_up_to_date(page: str) -> None:
    pages = load_script(ROOT / "scripts" / "write_docs.py").PAGES
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == pages[page](), "run `make docs`"


def test_the_built_in_model_is_small_and_says_what_it_can_do() -> None:
    folder = ROOT / "src" / "delphic" / "assets" / "arithmetic"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    card = json.loads((folder / "card.json").read_text())
    assert 0.3 <= card["sampled"] <= 0.5
    assert card["pass@16"] >= 0.9
