#!/usr/bin/env python3
"""make_ppo_fixtures.py - tests/data/ppo: completions with rewards, and what PPO makes of them, written out with PyTorch from the papers
(arXiv:1707.06347, 1506.02438, 2310.12773) and the masks and indices of TRL's trainer. Texts go through the models one by one, without padding.

    python3 tests/make_ppo_fixtures.py        (a development tool: needs torch, transformers, h5py)

The policy is tests/data/dpo/start, the critic, and the cost model, tests/data/rm/start.
rollouts.jsonl   three rollouts of eight completions
steps.txt        a line "run KEYS" names a run by the settings of dtrain that are the same; then a line a step: loss, ppo/loss/policy, ppo/loss/value,
                 ppo/policy/approxkl, clipfrac, entropy, ppo/val/ratio, ratio_var, clipfrac, ppo/objective/kl, entropy, non_score_reward, scores,
                 ppo/kl_coef, lr, grad_norm, critic/grad_norm, and with costs ppo/loss/cost_value, ppo/objective/costs, ppo/lambda
final.h5         of the first run: /model, /critic/model as in a checkpoint
"""
import json
import math
import pathlib
import shutil

import h5py
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import trl_runs

ROOM, ROWS, MINI, EPOCHS, LR, EOS = 8, 8, 2, 2, 3e-3, 256
here = pathlib.Path(__file__).parent / "data"
out = here / "ppo"
shutil.rmtree(out, ignore_errors=True)
out.mkdir()
torch.manual_seed(11)
torch.set_num_threads(1)
rng = np.random.default_rng(4)
DEFAULTS = dict(kl_coef=0.05, kl_estimator="k1", whiten_rewards=False, missing_eos_penalty=0.0, score_clip=0.0, scaling=False, norm=False,
                cliprange=0.2, cliprange_value=0.2, vf_coef=0.1, ent_coef=0.0, gamma=1.0, lam=0.95, adaptive=None, target_kl=0.0, costs=None)
RUNS = [
    ({}, ""),
    (dict(kl_estimator="k3", whiten_rewards=True, missing_eos_penalty=1.0, cliprange_value=0.0, ent_coef=0.02, gamma=0.98, vf_coef=0.5),
     "ppo.kl_estimator=k3 ppo.whiten_rewards=true ppo.missing_eos_penalty=1 ppo.cliprange_value=null ppo.ent_coef=0.02 ppo.gamma=0.98 ppo.vf_coef=0.5"),
    (dict(adaptive=(0.5, 40.0), scaling=True, norm=True, score_clip=1.2, kl_coef=0.3),
     "ppo.adaptive_kl=true ppo.adaptive_kl_target=0.5 ppo.adaptive_kl_horizon=40 ppo.use_score_scaling=true ppo.use_score_norm=true "
     "ppo.score_clip=1.2 ppo.kl_coef=0.3"),
    (dict(target_kl=0.002), "ppo.target_kl=0.002"),
    (dict(costs=dict(lr=0.1, init=1.0, min=0.01, max=5.0, limit=0.25, window=12)),
     "ppo.cost_path=tests/data/rm/start ppo.cost_limit=0.25 ppo.cost_window=12 ppo.kl_coef=0.05 ppo.cliprange_value=0.2"),
]


def make_rollouts():
    rows = []
    for i in range(3 * ROWS):
        prompt = [int(x) for x in rng.integers(97, 123, rng.integers(1, 6))]
        n = int(rng.integers(1, ROOM + 1)) if i % 5 else ROOM
        completion = [int(x) for x in rng.integers(97, 123, n)]
        if i % 3:
            completion[-1] = EOS  # some of them fill all the room; others are cut, also before it is full
        rows.append((prompt, completion, round(float(rng.normal()), 3)))
    return rows


rollouts = make_rollouts()
(out / "rollouts.jsonl").write_text("".join(json.dumps({"prompt_ids": p, "completion_ids": [c], "rewards": [[r]]}) + "\n" for p, c, r in rollouts))


def look(policy, prompt, completion, temperature=0.7):
    """Log-probabilities and entropies of a completion's tokens."""
    logits = policy(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1] / (temperature + 1e-7)
    logp = torch.log_softmax(logits, -1)
    return logp.gather(1, torch.tensor(completion)[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def values(critic, prompt, completion):
    """Values of the texts before each token and, if there is room, after the last; at most ROOM of them."""
    hidden = critic.model(torch.tensor([prompt + completion])).last_hidden_state[0]
    return critic.score(hidden)[len(prompt) - 1:, 0][:ROOM]


def whiten(rows, keep_mean):
    x = torch.cat(rows)
    y = (x - x.mean()) / torch.sqrt(x.var(unbiased=True) + 1e-8) + (x.mean() if keep_mean else 0)
    return list(y.split([len(r) for r in rows]))


def advantages_of(reward, value, s):
    a, next_value, last = torch.zeros(len(reward)), 0.0, 0.0
    for t in reversed(range(len(reward))):
        last = float(reward[t]) + s["gamma"] * next_value - float(value[t]) + s["gamma"] * s["lam"] * last
        next_value, a[t] = float(value[t]), last
    return a


def run(settings, f):
    s = DEFAULTS | settings
    policy = AutoModelForCausalLM.from_pretrained(here / "dpo" / "start", dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(here / "dpo" / "start", dtype=torch.float32)
    heads = [AutoModelForSequenceClassification.from_pretrained(here / "rm" / "start", dtype=torch.float32) for _ in range(3)]
    critics, judge = ([(heads[0], 1), (heads[1], -1)] if s["costs"] else [(heads[0], 1)]), heads[2]
    trained = [policy] + [c for c, _ in critics]
    optimizer = trl_runs.adamw(trained, LR)
    kl_coef, seen, window, log_lambda = s["kl_coef"], [], [], math.log(s["costs"]["init"]) if s["costs"] else 0.0
    lines = 0
    for number in range(3):
        rows = rollouts[number * ROWS:(number + 1) * ROWS]
        with torch.no_grad():
            old = [look(policy, p, c)[0] for p, c, _ in rows]
            ref = [look(reference, p, c)[0] for p, c, _ in rows]
            old_values = [[sign * values(critic, p, c) for p, c, _ in rows] for critic, sign in critics]
            score = np.array([r - (0 if c[-1] == EOS else s["missing_eos_penalty"]) for _, c, r in rows])
            if s["scaling"]:
                seen += list(score)
                score = (score - (np.mean(seen) if s["norm"] else 0)) / (np.std(seen, ddof=1) + np.finfo(np.float32).eps)
            if s["score_clip"] > 0:
                score = np.clip(score, -s["score_clip"], s["score_clip"])
            costs = [-values_at_end(judge, p, c) for p, c, _ in rows] if s["costs"] else []
            signals, kls = [[], []], []
            for i in range(ROWS):
                d = ref[i] - old[i]
                kl = -d if s["kl_estimator"] == "k1" else torch.exp(d) - 1 - d
                kls.append(kl)
                for k, (sign, end) in enumerate([(-1, score[i])] + ([(1, costs[i])] if s["costs"] else [])):
                    signal = torch.zeros(len(old_values[k][i]))
                    signal[:len(kl)] = sign * kl_coef * kl
                    signal[-1] += end
                    signals[k].append(signal)
            if s["whiten_rewards"]:
                signals[0] = whiten(signals[0], True)
            found = [[advantages_of(signals[k][i], old_values[k][i], s) for i in range(ROWS)] for k in range(len(critics))]
            returns = [[found[k][i] + old_values[k][i] for i in range(ROWS)] for k in range(len(critics))]
            advantage, lam = found[0], 0.0
            if s["costs"]:
                lam = min(max(math.exp(log_lambda), s["costs"]["min"]), s["costs"]["max"])
                advantage = [(a - lam * b) / (1 + lam) for a, b in zip(found[0], found[1])]
            advantage = whiten([a[:len(old[i])] for i, a in enumerate(advantage)], False)
        mean_kl = sum(float(k.sum()) for k in kls) / ROWS
        objective = [mean_kl, sum(float(-o.sum()) for o in old) / ROWS, -kl_coef * mean_kl, float(np.mean(score)), kl_coef]
        safe = [float(np.mean(costs)), lam] if s["costs"] else []
        rate = LR * (1 - number / 3)
        if s["adaptive"]:
            target, horizon = s["adaptive"]
            kl_coef *= 1 + min(max(mean_kl / target - 1, -0.2), 0.2) * ROWS / horizon
        if s["costs"]:
            window = (window + costs)[-s["costs"]["window"]:]
            log_lambda += s["costs"]["lr"] * lam * (np.mean(window) - s["costs"]["limit"])
        for epoch in range(EPOCHS):
            epoch_kl = []
            for mini in range(MINI):
                batch = range(mini * ROWS // MINI, (mini + 1) * ROWS // MINI)
                optimizer.zero_grad()
                looks = [look(policy, *rows[i][:2]) for i in batch]
                logp, entropy = torch.cat([x for x, _ in looks]), torch.cat([x for _, x in looks])
                before, a = torch.cat([old[i] for i in batch]), torch.cat([advantage[i] for i in batch])
                ratio = torch.exp(logp - before)
                free, clipped = -a * ratio, -a * ratio.clamp(1 - s["cliprange"], 1 + s["cliprange"])
                policy_loss = torch.max(free, clipped).mean()
                loss, value_losses, value_clipped = policy_loss - s["ent_coef"] * entropy.mean(), [], []
                for k, (critic, sign) in enumerate(critics):
                    v, v_old = torch.cat([sign * values(critic, *rows[i][:2]) for i in batch]), torch.cat([old_values[k][i] for i in batch])
                    goal = torch.cat([returns[k][i] for i in batch])
                    off, off2 = (v - goal) ** 2, (v_old + (v - v_old).clamp(-s["cliprange_value"], s["cliprange_value"]) - goal) ** 2
                    if s["cliprange_value"] == 0:
                        off2 = off
                    value_losses.append(0.5 * torch.max(off, off2).mean())
                    value_clipped.append((off2 > off).float().mean())
                    loss = loss + s["vf_coef"] * value_losses[k]
                loss.backward()
                norms = [math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in m.parameters())) for m in trained]
                torch.nn.utils.clip_grad_norm_([p for m in trained for p in m.parameters()], 0.3)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.step()
                with torch.no_grad():
                    half = 0.5 * (logp - before) ** 2
                    epoch_kl.append(half)
                    row = [loss, policy_loss, value_losses[0], half.mean(), (clipped > free).float().mean(), entropy.mean(), ratio.mean(),
                           ratio.var(unbiased=False), value_clipped[0], *objective, rate, *norms[:2], *([value_losses[1]] if s["costs"] else []), *safe]
                f.write(" ".join(f"{float(x):.7g}" for x in row) + "\n")
                lines += 1
            if 0 < s["target_kl"] < float(torch.cat(epoch_kl).mean()):
                break
    return policy, critics[0][0], lines


def values_at_end(judge, prompt, completion):
    return float(judge.score(judge.model(torch.tensor([prompt + completion])).last_hidden_state[0, -1])[0])


with open(out / "steps.txt", "w") as f:
    for k, (settings, keys) in enumerate(RUNS):
        f.write(f"run {keys}".rstrip() + "\n")
        policy, critic, lines = run(settings, f)
        print(settings, lines, "steps")
        if k == 0:
            with h5py.File(out / "final.h5", "w", libver="latest") as h5:
                for group, model in (("model", policy), ("critic/model", critic)):
                    for name, tensor in model.state_dict().items():
                        h5.create_dataset(f"{group}/{name}", data=tensor.numpy())
