"""Token in, token out: what was sampled is what is scored, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_tiny_model
from scipy.stats import chi2

from delphic.errors import UserError
from delphic.policy.load import load_policy
from delphic.policy.logprobs import score
from delphic.policy.model import Policy
from delphic.policy.sampling import Completions, SamplingSettings, sample
from delphic.randomness import Purpose

PROMPTS = ["1+2=", "3*3+10-2=", "7=", "(1-2)*13+5="]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    if request.param == "gpt2":  # learned absolute positions: left padding without position ids would show
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1)
        config = GPT2Config(
            vocab_size=21,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=1,
            eos_token_id=1,
            initializer_range=0.3,
        )
        GPT2LMHeadModel(config).save_pretrained(folder)
    return load_policy(str(folder))


def draw(
    policy: Policy,
    prompts: Sequence[str],
    count: int = 6,
    rows: np.ndarray | None = None,
    seed: int = 0,
    **changes: object,
) -> Completions:
    values = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8, "stop": "", "batch_rows": 512, **changes}
    rows = np.arange(len(prompts) * count) if rows is None else rows
    return sample(
        policy,
        prompts,
        count,
        SamplingSettings(**values),  # type: ignore[arg-type]
        seed=seed,
        purpose=Purpose.TRAIN_SAMPLE,
        step=1,
        rows=rows,
    )


def test_a_row_alone_samples_what_it_samples_in_a_batch(policy: Policy) -> None:
    batch = draw(policy, PROMPTS)
    flips = 0
    for group, prompt in enumerate(PROMPTS):
        for member in range(6):
            row = group * 6 + member
            alone = draw(policy, [prompt], count=1, rows=np.array([row]))
            flips += not np.array_equal(alone.tokens[0], batch.tokens[row])
            if np.array_equal(alone.tokens[0], batch.tokens[row]):
                assert np.allclose(alone.logp[0], batch.logp[row], atol=1e-5)
                assert np.allclose(alone.entropy[0], batch.entropy[row], atol=1e-5)
    assert flips == 0, "a uniform within rounding of a boundary may flip a token; none does here"


def test_the_number_of_rows_decoded_at_once_does_not_matter(policy: Policy) -> None:
    whole, cut = draw(policy, PROMPTS), draw(policy, PROMPTS, batch_rows=6)
    assert all(np.array_equal(a, b) for a, b in zip(whole.tokens, cut.tokens, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_the_learner_scores_at_the_samplers_own_temperature(policy: Policy, temperature: float) -> None:
    out = draw(policy, PROMPTS, temperature=temperature)
    scored = score(policy, out.prompt_tokens, out.tokens, temperature)
    for i, logp in enumerate(out.logp):
        assert np.allclose(scored.logp[i, : len(logp)].detach().numpy(), logp, atol=1e-5), "ratio = 1 at lag 0"


def test_a_row_alone_is_scored_as_in_a_batch(policy: Policy) -> None:
    out = draw(policy, PROMPTS)
    together = score(policy, out.prompt_tokens, out.tokens, 1.0, with_entropy=True)
    assert together.entropy is not None
    for i, tokens in enumerate(out.tokens):
        alone = score(policy, [out.prompt_tokens[i]], [tokens], 1.0, with_entropy=True)
        assert alone.entropy is not None
        assert torch.allclose(alone.logp[0], together.logp[i, : len(tokens)], atol=1e-5)
        assert torch.allclose(alone.entropy[0], together.entropy[i, : len(tokens)], atol=1e-5)
        assert np.allclose(out.entropy[i], alone.entropy[0].detach().numpy(), atol=1e-5), "entropy at sampling is exact"


def test_log_probs_and_entropy_are_those_of_transformers_logits(policy: Policy) -> None:
    out = draw(policy, PROMPTS[:1], count=2)
    for prompt, tokens, logp, entropy in zip(out.prompt_tokens, out.tokens, out.logp, out.entropy, strict=True):
        ids = torch.tensor(np.concatenate([prompt, tokens])[None], dtype=torch.long)
        with torch.no_grad():
            full = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        assert np.allclose(full[torch.arange(len(tokens)), ids[0, len(prompt) :]].numpy(), logp, atol=1e-5)
        assert np.allclose(-(full.exp() * full).sum(-1).numpy(), entropy, atol=1e-5)


def test_first_tokens_follow_the_softmax(policy: Policy) -> None:
    """Chi-square over 4,000 draws; seeds fixed, false-failure rate 1e-4."""
    n = 4000
    out = draw(policy, ["1+2="], count=n, max_new_tokens=1)
    with torch.no_grad():
        ids = torch.tensor(out.prompt_tokens[0][None], dtype=torch.long)
        p = policy.model(input_ids=ids).logits[0, -1].double().softmax(-1).numpy()
    seen = np.bincount([int(t[0]) for t in out.tokens], minlength=len(p))
    enough = n * p > 5
    statistic = ((seen - n * p) ** 2 / (n * p))[enough].sum()
    assert statistic < chi2.ppf(1 - 1e-4, enough.sum())


def test_rows_draw_their_own_numbers(policy: Policy) -> None:
    first, again, other = draw(policy, PROMPTS), draw(policy, PROMPTS), draw(policy, PROMPTS, seed=1)
    same = [np.array_equal(a, b) for a, b in zip(first.tokens, again.tokens, strict=True)]
    assert all(same)
    assert not all(np.array_equal(a, b) for a, b in zip(first.tokens, other.tokens, strict=True))


def test_a_completion_ends_with_its_end_token_and_keeps_it(policy: Policy) -> None:
    out = draw(policy, PROMPTS, count=40, max_new_tokens=20)
    ended = [tokens for tokens, cut in zip(out.tokens, out.truncated, strict=True) if not cut]
    assert ended
    assert all(tokens[-1] == 1 and 1 not in tokens[:-1] for tokens in ended), "the end token is learned"
    assert all(len(t) == 20 and 1 not in t for t, cut in zip(out.tokens, out.truncated, strict=True) if cut)
    assert all("<eos>" not in text for text in out.text)


def test_a_pad_token_that_is_the_end_token_loses_nothing(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = make_tiny_model(tmp_path / "model")
    plain = draw(load_policy(str(folder)), PROMPTS, count=20)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    policy = load_policy(str(folder))
    same = draw(policy, PROMPTS, count=20)
    assert all(np.array_equal(a, b) for a, b in zip(plain.tokens, same.tokens, strict=True))
    ended = next(i for i, cut in enumerate(same.truncated) if not cut)
    scored = score(policy, same.prompt_tokens, same.tokens, 1.0).logp
    assert scored[ended, len(same.tokens[ended]) - 1] != 0, "masks come from lengths, not from the pad id"


def test_a_stop_text_ends_a_completion(policy: Policy) -> None:
    out = draw(policy, PROMPTS, count=40, max_new_tokens=20, stop="7")
    assert any(text.endswith("7") for text in out.text)
    assert all("7" not in text[:-1] for text in out.text)


def test_a_nucleus_keeps_only_the_smallest_set_that_reaches_its_mass(policy: Policy) -> None:
    out = draw(policy, ["1+2="], count=500, max_new_tokens=1, top_p=0.5)
    with torch.no_grad():
        ids = torch.tensor(out.prompt_tokens[0][None], dtype=torch.long)
        p = policy.model(input_ids=ids).logits[0, -1].double().softmax(-1).numpy()
    order = np.argsort(-p)
    size = int(np.searchsorted(np.cumsum(p[order]), 0.5)) + 1
    assert {int(t[0]) for t in out.tokens} == set(order[:size].tolist())
    kept = p[order[:size]].sum()
    for tokens, logp in zip(out.tokens, out.logp, strict=True):
        assert logp[0] == pytest.approx(np.log(p[int(tokens[0])] / kept), abs=1e-4)


def test_prompts_that_cannot_be_sampled_are_refused(policy: Policy) -> None:
    with pytest.raises(UserError, match="must not be empty"):
        draw(policy, ["1+1=", ""])
    with pytest.raises(UserError, match="context of 64"):
        draw(policy, ["1+" * 30 + "1="])


def test_temperature_0_takes_the_likeliest_token_and_records_its_log_prob_at_temperature_1(policy: Policy) -> None:
    out = draw(policy, PROMPTS, count=2, temperature=0.0, top_p=0.3)
    for row, prompt in enumerate(out.prompt_tokens):
        assert np.array_equal(out.tokens[row], out.tokens[row - row % 2]), "nothing is drawn"
        for t, token in enumerate(out.tokens[row]):
            ids = torch.from_numpy(np.concatenate([prompt, out.tokens[row][:t]])).long()[None]
            with torch.no_grad():
                logp = torch.log_softmax(policy.model(input_ids=ids).logits[0, -1].float(), -1)
            assert logp[token] >= logp.max() - 1e-5
            assert out.logp[row][t] == pytest.approx(float(logp[token]), abs=1e-4)


def test_of_equally_likely_tokens_the_lowest_id_is_taken(tmp_path: Path) -> None:
    policy = load_policy(str(make_tiny_model(tmp_path)))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
    assert all((tokens == 0).all() for tokens in draw(policy, PROMPTS, temperature=0.0).tokens)
