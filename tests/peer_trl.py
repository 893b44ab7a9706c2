#!/usr/bin/env python3
"""Steps of GRPO by other implementations, on a random model: the peer of tests/bench_grpo.sh. One line for each way: its name, and of a step the median seconds of
generation, of all of it, and the completions' tokens.

  peer_trl.py MODEL PROMPTS.jsonl [--device cpu|cuda] [--dtype fp32|bf16] [--rows R] [--group G] [--length C] [--micro M] [--threads N] [--steps N]
              [--ways trl,plain]

MODEL is a Hugging Face directory, PROMPTS.jsonl has prompts of equal length, whose bytes are its ids. A step: R/G prompts are completed G times by C
tokens (none ends earlier but by chance), rewarded, and trained on in micro-batches of M; beta 0, so neither old nor reference log-probabilities are
scored; norm clipped, AdamW. Ways:
  trl      TRL's GRPOTrainer with transformers' generate; under torchrun on several ranks
  plain    a loop of PyTorch that does the same work and no more: transformers' generate and model, log-probabilities, loss, fused AdamW. In bf16:
           bf16 weights with fp32 ones
"""
import argparse, json, os, statistics, sys, time
import torch
from transformers import AutoModelForCausalLM

cli = argparse.ArgumentParser()
cli.add_argument("model")
cli.add_argument("prompts")
cli.add_argument("--device", default="cpu")
cli.add_argument("--dtype", default="fp32")
for name, default in (("rows", 16), ("group", 8), ("length", 64), ("micro", 4), ("threads", 0), ("steps", 3)): cli.add_argument("--" + name, type=int, default=default)
cli.add_argument("--ways", default="trl")
o = cli.parse_args()
cuda = o.device == "cuda"
sync = torch.cuda.synchronize if cuda else lambda: None
if o.threads: torch.set_num_threads(o.threads)
prompts = [json.loads(line)["prompt"] for line in open(o.prompts)]
WARM, END = 1, 256


def reward(completions_ids): return [float(ids[-1] % 10) for ids in completions_ids]


def print_way(name, rollout, step, n_tokens):
    print(f"{name} {statistics.median(rollout[WARM:]):.4f} {statistics.median(step[WARM:]):.4f} {statistics.median(n_tokens[WARM:]):.0f}", flush=True)


def by_trl():
    import tempfile
    from datasets import Dataset
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ranks = int(os.environ.get("WORLD_SIZE", 1))
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes as GPT-2's pre-tokenizer spells them
    others = [b for b in range(256) if b not in plain]
    spelled = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    of_bytes = Tokenizer(models.BPE({spelled[b]: b for b in range(256)} | {"<eos>": END, "<pad>": END + 1}, []))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    of_bytes.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes, eos_token="<eos>", pad_token="<pad>", padding_side="left")
    rollout, step, n_tokens, ends = [], [], [], []

    class Timed(GRPOTrainer):
        def _generate_single_turn(self, *args, **more):
            sync()
            begin = time.perf_counter()
            out = super()._generate_single_turn(*args, **more)
            sync()
            rollout.append(time.perf_counter() - begin)
            n_tokens.append(ranks * sum(len(ids) for ids in out[0]))
            return out

    class Clock(TrainerCallback):
        def on_step_begin(self, *args, **more):
            if not ends: ends.append(time.perf_counter())

        def on_step_end(self, *args, **more):
            sync()
            ends.append(time.perf_counter())
            step.append(ends[-1] - ends[-2])

    def by_last_id(completion_ids, **_): return reward(completion_ids)

    with tempfile.TemporaryDirectory() as work:
        arguments = GRPOConfig(output_dir=work, max_steps=WARM + o.steps, per_device_train_batch_size=o.micro,
                               gradient_accumulation_steps=o.rows // (o.micro * ranks), num_generations=o.group, max_completion_length=o.length, beta=0.0,
                               learning_rate=1e-6, weight_decay=0.1, max_grad_norm=1.0, temperature=1.0, top_k=0, top_p=1.0, loss_type="dapo",
                               gradient_checkpointing=False, disable_dropout=True, bf16=o.dtype == "bf16", use_cpu=not cuda, report_to=[],
                               save_strategy="no", logging_strategy="no", disable_tqdm=True, **({"ddp_backend": "gloo"} if ranks > 1 and not cuda else {}))
        model = AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32)
        trainer = Timed(model=model, reward_funcs=by_last_id, args=arguments, train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
                        processing_class=tokenizer, callbacks=[Clock()])
        trainer.train()
    if int(os.environ.get("RANK", 0)) == 0: print_way("trl", rollout, step, n_tokens)


def by_plain():
    bf16 = o.dtype == "bf16"
    model = AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.bfloat16 if bf16 else torch.float32).to(o.device)
    params = list(model.parameters())
    master = [p.detach().float().clone() for p in params] if bf16 else params
    if bf16:
        for m in master: m.grad = torch.zeros_like(m)
    opt = torch.optim.AdamW(master, lr=1e-6, weight_decay=0.1, fused=True)
    n_prompts, rollout, whole, n_tokens = o.rows // o.group, [], [], []

    def train(ids, advantage):
        for at in range(0, o.rows, o.micro):
            x = ids[at : at + o.micro]
            logits = model(x, logits_to_keep=o.length + 1, use_cache=False).logits[:, :-1]
            logp = torch.log_softmax(logits.float(), dim=-1).gather(2, x[:, -o.length :, None]).squeeze(2)
            ratio = torch.exp(logp - logp.detach())
            (-(ratio * advantage[at : at + o.micro, None]).sum() / (o.rows * o.length)).backward()
        if bf16: torch._foreach_copy_([m.grad for m in master], [p.grad for p in params])
        torch.nn.utils.clip_grad_norm_(master, 1.0)
        opt.step()
        if bf16:
            with torch.no_grad(): torch._foreach_copy_(params, master)
        for p in params: p.grad = None

    for k in range(WARM + o.steps):
        chosen = [prompts[(k * n_prompts + i) % len(prompts)] for i in range(n_prompts)]
        begin = time.perf_counter()
        x = torch.tensor([list(p.encode()) for p in chosen for _ in range(o.group)], device=o.device)
        model.eval()
        with torch.no_grad():
            ids = model.generate(x, attention_mask=torch.ones_like(x), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=o.length,
                                 min_new_tokens=o.length, pad_token_id=END + 1)
        sync()
        rollout.append(time.perf_counter() - begin)
        r = torch.tensor(reward(ids.tolist()), device=o.device).view(-1, o.group)
        train(ids, ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten())
        sync()
        whole.append(time.perf_counter() - begin)
        n_tokens.append(o.rows * (ids.shape[1] - x.shape[1]))
    print_way("plain", rollout, whole, n_tokens)


status = 0
for name in o.ways.split(","):
    try: {"trl": by_trl, "plain": by_plain}[name]()
    except Exception as e:
        print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", file=sys.stderr, flush=True)
        status = 1
sys.exit(status)
