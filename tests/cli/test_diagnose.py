"""delphic diagnose and watch: exit statuses, JSON, the page, a growing log."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from delphic import cli
from delphic.cli import main
from delphic.diagnosis.verdict import diagnose
from delphic.report.diagnosis_page import draw_diagnosis, pictures
from delphic.runs.columns import CANONICAL
from delphic.runs.log import RunLog

RNG = np.random.default_rng(0)
HEALTHY = 0.2 + 0.6 * (1 - np.exp(-np.arange(80) / 20)) + RNG.normal(0, 0.02, 80)


def log(path: Path, rewards: Any, **more: Any) -> Path:
    rows = [
        {"step": i + 1, "reward": float(r), **{k: float(v[i]) for k, v in more.items()}} for i, r in enumerate(rewards)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_exit_statuses_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = log(tmp_path / "good.jsonl", HEALTHY)
    assert main(["diagnose", str(good), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["verdict", "findings", "columns", "skipped", "reader", "forecast", "stability", "groups"]
    assert found["verdict"] == ["healthy"]
    assert found["columns"] == [{"canonical": "reward_mean", "source_key": "reward", "kind": ""}]
    assert found["reader"]["rows"] == 80
    assert found["forecast"]["end"] == 159
    bad = log(tmp_path / "bad.jsonl", np.where(np.arange(80) < 50, HEALTHY, 0.0))
    assert main(["diagnose", str(bad)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("collapse")
    assert "go back to a checkpoint before step" in out
    short = log(tmp_path / "short.jsonl", HEALTHY[:5])
    assert main(["diagnose", str(short)]) == 3
    assert main(["diagnose", str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_an_error_of_its_own_is_said_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delphic.commands.diagnose.run_diagnose", lambda _: 1 // 0)
    assert main(["diagnose", str(tmp_path)]) == 70
    assert "ZeroDivisionError at test_diagnose.py" in capsys.readouterr().err


def test_the_user_names_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("it,quality\n" + "".join(f"{i},{r}\n" for i, r in enumerate(HEALTHY)))
    assert main(["diagnose", str(path)]) == 2
    assert "--map reward=COLUMN (it has it, quality)" in capsys.readouterr().err
    assert main(["diagnose", str(path), "--map", "reward=quality", "--map", "step=it"]) == 0
    capsys.readouterr()
    assert main(["diagnose", str(path), "--map", "reward=quality", "--columns", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"][0]["source_key"] == "quality"
    assert main(["diagnose", str(path), "--map", "rewrd=quality"]) == 2
    assert 'no column "rewrd"; did you mean "reward"' in capsys.readouterr().err
    assert main(["diagnose", str(path), "--map", "reward"]) == 2


class Page(HTMLParser):
    """What a page loads and shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        self.ids += [str(known["id"])] if "id" in known else []
        self.outside += [str(known[k]) for k in ("src", "href") if k in known]


def full_run() -> RunLog:
    """Every panel has a column, and completions that try to break out of the page."""
    n = 60
    names = ("silent_share", "reward_std", "entropy", "kl_reference", "sampler_difference", "lag", "length_mean", "truncated_share", "gradient_norm", "learning_rate")  # fmt: skip
    columns = {name: 0.1 + 0.01 * RNG.random(n) for name in names}
    rewards = np.where(np.arange(n) < 40, HEALTHY[:n], 0.0)
    run = RunLog.from_table(pl.DataFrame({"step": np.arange(n), "reward_mean": rewards, **columns}), learning_rate=1e-6)
    text = ["<script>alert(1)</script>", "</script><b>x", "plain"]
    rollouts = pl.DataFrame(
        {
            "group": [0, 0, 1, 1],
            "reward": [0.0, 1.0, 0.5, 0.5],
            "completion": [*text, "y"],
            "prompt": ["<i>p", "p", "p", "p"],
        }
    )
    return RunLog(**{**run.__dict__, "rollouts": rollouts, "path": Path("a<b.jsonl")})


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path: Path) -> None:
    run = full_run()
    path = tmp_path / "page.html"
    draw_diagnosis(run, diagnose(run), path)
    text = path.read_text(encoding="utf-8")
    assert "groups: 2 of 2 completions; 50% with equal rewards" in text
    page = Page(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    assert page.outside == []
    assert [i for i in page.ids if i.startswith("figure")] == [f"figure{k}" for k in range(12)]
    assert "b" not in page.tags[page.tags.index("details") :]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    data = re.search(r"const figures = (\{.*?\});\n", text)
    assert data is not None
    figures = json.loads(data[1])
    assert all(figure["data"] and figure["data"][0]["y"] for figure in figures.values())
    assert "@media print" in text
    assert "width=device-width" in text


def test_a_refused_forecast_draws_no_band() -> None:
    run = full_run()
    found = diagnose(run)
    assert found.band is not None
    assert found.forecast is not None
    drawn = {
        refused: pictures(run, replace(found, forecast={**found.forecast, "refused": refused}))
        for refused in (True, False)
    }
    bands = {refused: [t["name"] for t in p[0][1]["data"] if "fill" in t] for refused, p in drawn.items()}
    assert bands == {True: [], False: ["forecast, 95 %"]}


def test_the_page_of_a_long_run_stays_small(tmp_path: Path) -> None:
    """50,000 steps of every column that there is."""
    n = 50_000
    rng = np.random.default_rng(1)
    columns = {name: rng.random(n) for name in CANONICAL}
    run = RunLog.from_table(pl.DataFrame({"step": np.arange(n), **columns}))
    draw_diagnosis(run, diagnose(run), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 6.3e6


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_picture_without_complaint(tmp_path: Path, width: int) -> None:
    run = full_run()
    draw_diagnosis(run, diagnose(run), tmp_path / "page.html")
    # an iframe of the width: a headless window has a least width of its own
    frame = f'<iframe id="f" src="page.html" width="{width}" height="900"></iframe>'
    measure = (
        "<script>addEventListener('load', () => setTimeout(() => { const d = document.getElementById('f').contentDocument;"
        "document.title = JSON.stringify({drawn: d.querySelectorAll('.plot .main-svg').length,"
        "pictures: d.querySelectorAll('.plot').length, wide: d.documentElement.scrollWidth}); }, 1500))</script>"
    )
    (tmp_path / "frame.html").write_text(frame + measure)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--enable-logging=stderr"]  # fmt: skip
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "frame.html").as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    assert "CONSOLE" not in done.stderr
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title is not None, done.stdout[:500]
    seen = json.loads(title[1].replace("&quot;", '"'))
    assert seen["pictures"] == 12
    assert seen["drawn"] >= seen["pictures"]
    assert seen["wide"] <= width


def test_watch_says_what_is_new_and_stops_at_the_first_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log(tmp_path / "a.jsonl", HEALTHY[:40])

    def grow() -> None:
        time.sleep(0.5)
        log(path, np.where(np.arange(80) < 45, HEALTHY, 0.0))

    thread = threading.Thread(target=grow)
    thread.start()
    status = main(["watch", str(path), "--every", "0.05", "--seconds", "20", "--until-finding"])
    thread.join()
    out = capsys.readouterr().out
    assert status == 1
    assert out.startswith("step 40, reward")
    assert "step 80" in out
    assert out.count("error: collapse") == 1
    assert main(["watch", str(path), "--seconds", "0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == ["collapse"]
    assert main(["watch", str(path), "--every", "0"]) == 2
    for option in ("--end", "--learning-rate", "--sync-interval"):
        capsys.readouterr()
        assert main(["diagnose", str(path), option, "0"]) == 2
        assert f"{option} must be positive, got 0" in capsys.readouterr().err


def test_watch_waits_for_a_run_that_has_only_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0, "eval_accuracy": 0.4}\n')

    def begin() -> None:
        time.sleep(0.5)
        log(path, HEALTHY)

    thread = threading.Thread(target=begin)
    thread.start()
    assert main(["watch", str(path), "--every", "0.05", "--seconds", "3"]) == 0
    thread.join()
    said = capsys.readouterr()
    assert said.err.count("waiting for rewards") == 1
    assert "step 80" in said.out


def test_help_of_every_command_fits(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("diagnose", "watch"):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert "RUN-or-LOG" in capsys.readouterr().out
        assert name in cli.HELP
