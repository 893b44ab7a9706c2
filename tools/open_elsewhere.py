"""open_elsewhere.py DIRECTORY ANSWERS - open an exported model with transformers and continue greedily where dtrain-generate --greedy --jsonl did.

Prints both continuations; the exit status is 1 when their tokens differ.
"""
import json
import sys

import torch
import transformers

model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
same = True
for line in open(sys.argv[2]):
    answer = json.loads(line)
    prompt = torch.tensor([answer["prompt_ids"]])
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=answer["n_new_tokens"],
                         pad_token_id=0)[0, prompt.shape[1]:].tolist()
    print("transformers:", repr(tokenizer.decode(ids, skip_special_tokens=True)))
    print("dtrain:      ", repr(answer["text"]))
    same &= ids == answer["ids"]
print("the same tokens" if same else "the tokens differ")
sys.exit(not same)
