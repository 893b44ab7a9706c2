#!/usr/bin/env python3
"""make_eval_fixtures.py - tests/data/eval: made-up documents in the form of published benchmarks, and the results of lm-evaluation-harness.

    python3 tests/make_eval_fixtures.py        (a development tool: needs torch, transformers, lm-eval 0.4.13)

model      a small llama with random weights and a tokenizer; bos: the same tokenizer, which begins texts with a token
files      documents by the paths of input/eval/*.ini, below eval.data_path
lm_eval.json   by setting and benchmark: every request of the harness (hf backend, fp32) as ids, with its log-probability, and the metrics.
           The tasks are those of the package; only the files are replaced
answers.json   answers that the harness extracts from texts, and whether they are equal to a target
"""
import json
import os
import pathlib
import random
import shutil

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", DISABLE_MULTIPROC="1")
here = pathlib.Path(__file__).parent / "data" / "eval"
files = here / "files"
N = 8     # documents
NEW = 16  # generated tokens
r = random.Random(7)
words = ("the a cat dog house tree river runs sits eats blue red old man woman child opens closes door window bread water sun moon stone road "
         "walks to from under over near quickly slowly and then because of in on with Mr. Smith's café naïve 12 345 3.5 $7").split()


def text(n):
    return " ".join(r.choice(words) for _ in range(n))


def arc(_):
    n = r.choice([3, 4, 4, 5])
    label = "ABCDE"[:n] if r.random() < .7 else "12345"[:n]
    return {"id": "Q", "question": text(8) + "?", "choices": {"text": [text(r.randint(1, 4)) for _ in range(n)], "label": list(label)},
            "answerKey": r.choice(label)}


def four(_):
    return [text(2) for _ in range(4)]


DOCS = {
    "hellaswag": lambda i: {"ind": i, "activity_label": "Doing " + text(2), "ctx_a": text(5).capitalize() + ". [header] ", "ctx_b": text(2),
                            "endings": [text(r.randint(2, 7)) + ". [title] " + text(2) + " [step] " for _ in range(4)], "label": str(r.randint(0, 3))},
    "arc": arc,
    "mmlu": lambda i: {"question": " " + text(7) + "? ", "subject": "anatomy", "choices": four(i), "answer": r.randint(0, 3)},
    "piqa": lambda i: {"goal": text(6), "sol1": text(5), "sol2": text(6), "label": r.randint(0, 1)},
    "winogrande": lambda i: {"sentence": text(4) + " _ " + text(4) + ".", "option1": r.choice(words), "option2": r.choice(words), "answer": r.choice("12")},
    "ceval": lambda i: {"id": i, "question": "关于" + text(3) + "的" + text(2) + "，正确的是____。 ", "A": text(1) + "天", "B": text(2) + "地", "C": text(1),
                        "D": text(3), "answer": r.choice("ABCD"), "explanation": ""},
    "wikitext": lambda i: {"page": " = " + text(2) + " = \n " + " . ".join(text(r.randint(5, 40)) for _ in range(r.randint(1, 4))) + " @-@ ( " + text(2) + " ) ; \n"},
    "lambada": lambda i: {"text": text(r.randint(6, 20))},
    "boolq": lambda i: {"passage": text(30), "question": text(5), "idx": i, "label": r.randint(0, 1)},
    "openbookqa": lambda i: {"id": "x", "question_stem": text(6), "choices": {"text": four(i), "label": list("ABCD")}, "answerKey": " " * (i % 2) + r.choice("ABCD")},
    "sciq": lambda i: {"question": text(6) + "?", "support": " " * (i % 2) + text(12) if i % 4 else "", "distractor1": text(1), "distractor2": text(2),
                       "distractor3": text(1), "correct_answer": text(2)},
    "truthfulqa": lambda i: {"question": text(6) + "?", "mc1_targets": {"choices": [text(r.randint(2, 6)) for _ in range(r.randint(2, 6))], "labels": [1]}},
    "gsm8k": lambda i: {"question": text(8) + "?", "answer": text(6) + " <<3*4=12>>12.\n#### " + str(r.randint(1, 99))},
    "math": lambda i: {"problem": text(7) + "$x^2$?", "level": "Level 1", "type": "Algebra",
                       "solution": text(5) + " so $\\boxed{" + r.choice(["\\frac{1}{2}", "12", "\\sqrt{3}", "(2,5)"]) + "}$."},
}
# benchmark, task of the package, documents, {split: file}, number of documents by split
TASKS = [
    ("hellaswag", "hellaswag/hellaswag.yaml", "hellaswag", {"train": "hellaswag/train.jsonl", "validation": "hellaswag/val.jsonl"}),
    ("arc_easy", "arc/arc_easy.yaml", "arc", {"train": "ai2_arc/ARC-Easy/train.jsonl", "test": "ai2_arc/ARC-Easy/test.jsonl"}),
    ("mmlu_anatomy", "mmlu/default/mmlu_anatomy.yaml", "mmlu", {"dev": "mmlu/anatomy/dev.jsonl", "test": "mmlu/anatomy/test.jsonl"}),
    ("piqa", "piqa/piqa.yaml", "piqa", {"train": "piqa/train.jsonl", "validation": "piqa/valid.jsonl"}),
    ("winogrande", "winogrande/default.yaml", "winogrande", {"train": "winogrande/train.jsonl", "validation": "winogrande/val.jsonl"}),
    ("ceval_law", "ceval/ceval-valid_law.yaml", "ceval", {"dev": "ceval/law/dev.jsonl", "val": "ceval/law/val.jsonl"}),
    ("wikitext", "wikitext/wikitext.yaml", "wikitext", {"test": "wikitext/test.jsonl"}),
    ("lambada_openai", "lambada/lambada_openai.yaml", "lambada", {"test": "lambada_openai/test.jsonl"}),
    ("boolq", "super_glue/boolq/default.yaml", "boolq", {"train": "boolq/train.jsonl", "validation": "boolq/val.jsonl"}),
    ("openbookqa", "openbookqa/openbookqa.yaml", "openbookqa", {"train": "openbookqa/train.jsonl", "test": "openbookqa/test.jsonl"}),
    ("sciq", "sciq/sciq.yaml", "sciq", {"train": "sciq/train.jsonl", "test": "sciq/test.jsonl"}),
    ("gsm8k", "gsm8k/gsm8k.yaml", "gsm8k", {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"}),
    ("math_algebra", "hendrycks_math/hendrycks_math_algebra.yaml", "math", {"train": "hendrycks_math/algebra/train.jsonl",
                                                                            "test": "hendrycks_math/algebra/test.jsonl"}),
    ("truthfulqa_mc1", "truthfulqa/truthfulqa_mc1.yaml", "truthfulqa", {"validation": "truthful_qa/validation.jsonl"}),
]
SETTINGS = [  # name, tokenizer, shots (None: the task's own), maximum length
    ("own", "model", None, None),
    ("two", "bos", 2, 64),
]


def write_documents():
    for _, _, docs, splits in TASKS:
        for split, name in splits.items():
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            n = 5 if split == "dev" else N
            (files / name).write_text("".join(json.dumps(DOCS[docs](i), ensure_ascii=False) + "\n" for i in range(n)))


def write_model():
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.train_from_iterator([f.read_text() for f in sorted(files.rglob("*.jsonl"))],
                            trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>", "<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>").save_pretrained(here / "model")
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>", bos_token="<s>").save_pretrained(here / "bos")
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                 max_position_embeddings=256, bos_token_id=None, eos_token_id=0, initializer_range=.4,
                                 tie_word_embeddings=True)).save_pretrained(here / "model")


def run(tokenizer, shots, max_length):
    import lm_eval.tasks
    from lm_eval import evaluator
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks._yaml_loader import load_yaml
    lm = HFLM(pretrained=str(here / "model"), tokenizer=str(here / tokenizer), dtype="float32", batch_size=8, device="cpu",
              **({"max_length": max_length} if max_length else {}))
    inner, log, results = lm._loglikelihood_tokens, [], {}

    def recorded(requests, **how):
        out = inner(requests, **how)
        log.extend([c[-lm.max_length - 1 + len(t):], t, x[0], bool(x[1])] for (_, c, t), x in zip(requests, out))
        return out
    lm._loglikelihood_tokens = recorded
    for name, path, _, splits in TASKS:
        config = dict(load_yaml(os.path.join(os.path.dirname(lm_eval.tasks.__file__), path), resolve_func=True))
        for key in ("tag", "group", "task_alias", "include"):
            config.pop(key, None)
        every = {**{config.get(k): splits.get(config.get(k), list(splits.values())[-1]) for k in ("training_split", "validation_split", "test_split")
                    if config.get(k)}, **splits}
        config.update(task=name, dataset_path="json", dataset_name=None, dataset_kwargs={"data_files": {k: str(files / v) for k, v in every.items()}})
        if shots is not None and config.get("num_fewshot") != 0:
            config["num_fewshot"] = shots
        if config.get("generation_kwargs"):
            config["generation_kwargs"] = dict(config["generation_kwargs"], max_gen_toks=NEW)
        if shots is None and name in ("mmlu_anatomy", "ceval_law"):
            config["num_fewshot"] = 5
        task = ConfigurableTask(config=config)
        task.set_fewshot_seed(1234)
        log.clear()
        found = evaluator.evaluate(lm=lm, task_dict={name: task}, log_samples=True, bootstrap_iters=2000)
        metrics = {k.removesuffix(",none"): v for k, v in found["results"][name].items() if "," in k and v != "N/A"}
        results[name] = {"requests": [list(x) for x in log], "metrics": {k: float(v) for k, v in metrics.items()}}
        if config["output_type"] == "generate_until":
            results[name]["texts"] = [s["resps"][0][0] for s in sorted({s["doc_id"]: s for s in found["samples"][name]}.values(), key=lambda s: s["doc_id"])]
    return results


def write_answers():
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter
    from lm_eval.tasks.hendrycks_math import utils
    parts = ["\\frac", "\\sqrt", "\\dfrac", "\\tfrac", "{", "}", "1", "2", "3", "x", "+", "-", "=", "/", ".", " ", "0.5", "\\text{ cm}", "\\text{ ", "\\left(",
             "\\right)", "^\\circ", "^{\\circ}", "\\%", "\\$", "%", "\\!", "\\\\", "\n", "k=", "12", "é", "_", "+3", "[1,2]", "$"]
    pieces = ["#### ", "12", "-3", "1,000", "$5", ".", "The ANSWER is ", "\n", " ", "x", "$", "7.5", "3.", "é", "A", "a", "!", "####"]

    def join(of, most):
        return "".join(r.choice(of) for _ in range(r.randint(0, most)))

    def math():
        a = join(parts, 6)
        try:
            b = r.choice([join(parts, 6), a, a.replace(" ", ""), "\\frac{1}{2}", utils.strip_string(a)])
        except Exception:
            b = "\\frac{3}{4}"
        return [a, b, bool(utils.is_equiv(a, b))]

    def boxed():
        s = join(parts, 6) + r.choice(["\\boxed{", "\\boxed ", "\\boxed{a{b}", ""]) + join(parts, 6) + r.choice(["}", "}$", "$", "}}"])
        try:
            return [s, utils.remove_boxed(utils.last_boxed_only_string(s))]
        except Exception:
            return [s, None]

    def texts(keys, n):
        filters, out = json.loads(keys.get("filter", "[]")), []
        flags = {k: keys.get(k) == "true" for k in ("ignore_case", "ignore_punctuation", "ignore_numbers")}
        ignored = json.loads(keys["regexes_to_ignore"]) if "regexes_to_ignore" in keys else None
        for _ in range(n):
            a = join(pieces, 8)
            b = r.choice([a, join(pieces, 8), "steps\n#### " + r.choice(["12", "-3", "1,000", "5", "7.5"])])
            found = [RegexFilter(f["regex_pattern"], f.get("group_select", 0)).apply([[a]], [{}])[0][0] for f in filters] or [a]
            out.append([a, b, [bool(exact_match_hf_evaluate([x], [b], ignored, **flags)["exact_match"] == 1) for x in found]])
        return {"keys": keys, "cases": out}
    gsm8k = {"filter": json.dumps([{"name": "strict", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"},
                                   {"name": "flexible", "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)", "group_select": -1}]),
             "regexes_to_ignore": json.dumps([",", "\\$", "(?s).*#### ", "\\.$"]), "ignore_case": "true"}
    sets = [gsm8k, {}, {"ignore_case": "true", "ignore_punctuation": "true"}, {"ignore_numbers": "true"},
            {"filter": json.dumps([{"name": "x", "regex_pattern": "[0-9.]+"}])},
            {"filter": json.dumps([{"name": "x", "regex_pattern": "(x*)([0-9]+)"}]), "regexes_to_ignore": json.dumps(["(?s).*#### "])}]
    units = [[a, b, bool(utils.is_equiv(a, b))] for a, b in [("5\\text{ m}", "5"), ("5\\text{ m}\\text{ m}", "5"), ("\\sqrt", "\\sqrt"), (" \\sqrt", "\\sqrt")]]
    (here / "answers.json").write_text(json.dumps({"math": [math() for _ in range(400)] + units, "boxed": [boxed() for _ in range(150)],
                                                   "text": [texts(keys, 80) for keys in sets]}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    shutil.rmtree(here, ignore_errors=True)
    files.mkdir(parents=True)
    write_documents()
    write_model()
    write_answers()
    found = {name: {"keys": f"model.tokenizer=tests/data/eval/{tokenizer}" + (f" eval.num_fewshot={shots}" if shots is not None else "")
                            + (f" eval.max_length={most}" if most else "") + f" eval.max_gen_toks={NEW}", "benchmarks": run(tokenizer, shots, most)}
             for name, tokenizer, shots, most in SETTINGS}
    (here / "lm_eval.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
