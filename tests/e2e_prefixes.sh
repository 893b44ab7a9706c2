#!/bin/bash
# e2e_prefixes.sh - weights saved from inside a wrapper (DDP, torch.compile, FSDP, Lightning, PEFT) have prefixed names. The error names the
# prefix and the command that removes it, and that command recovers the model. A model without its outermost module's name is read
# unchanged.
. "$(dirname "$0")/e2e.sh"
renamed() { # NAME FROM SED-EXPRESSION: of each tensor's name
    rm -rf "$tmp/$1" && cp -r "$2" "$tmp/$1" && python3 - "$tmp/$1/model.safetensors" "$3" <<'PY'
import re, sys
from fixtures import safetensors, write_safetensors
path, rule = sys.argv[1:]
_, pattern, new, _ = rule.split("|")
write_safetensors(path, {re.sub(pattern, new, name, count=1): tensor for name, tensor in safetensors(path).items()})
PY
}
llama=tests/data/dpo/start gpt2=tests/data/lora/gpt2 scored=tests/data/rm/start
while read -r prefix from rule; do
    renamed model ${!from} "$rule"
    ends "$from, $rule: refused" 65 run 0 ./dtrain-convert "$tmp/model" "$tmp/model.h5" --tokenizer none --force
    expect "with the prefix and the command" grep -q "names contain the prefix .$prefix.,.*dtrain-convert --to hf --strip-prefix $prefix $tmp/model" "$out"
    run 2 ./dtrain-convert --to hf --strip-prefix $prefix "$tmp/model" "$tmp/plain" --tokenizer none --force
    run 0 ./dtrain-convert --to hf ${!from} "$tmp/expected" --tokenizer none --force
    expect "the command makes the model of it" cmp "$tmp/plain/model.safetensors" "$tmp/expected/model.safetensors"
done <<'END'
module. llama s|^|module.|
_orig_mod. llama s|^|_orig_mod.|
base_model.model. llama s|^|base_model.model.|
module._orig_mod. gpt2 s|^|module._orig_mod.|
model. llama s|^|model.|
module. gpt2 s|^transformer.|module.|
_orig_mod. llama s|(layers\.[01]\.)|\1_orig_mod.|
_fsdp_wrapped_module. llama s|(layers\.[01]\.)|\1_fsdp_wrapped_module.|
module. scored s|^|module.|
END
renamed bare $gpt2 's|^transformer\.||'
ends "GPT-2 without transformer. is read as it is" 0 run 0 ./dtrain-convert "$tmp/bare" "$tmp/bare.h5" --tokenizer none
renamed bare tests/data/hf/qwen2 's|^model\.||'
run 0 ./dtrain-convert --to hf "$tmp/bare" "$tmp/plain" --tokenizer none --force
expect "a tied model without model. is, too" cmp "$tmp/plain/model.safetensors" tests/data/hf/qwen2/model.safetensors
wrong "a prefix that no name has" 65 "expected tensor names that start with the prefix .module.., found none" ./dtrain-convert --to hf --strip-prefix module. $llama "$tmp/x" --tokenizer none
renamed unmerged $llama 's|q_proj|q_proj.base_layer|'
wrong "adapters inside the model" 65 "saved with unmerged PEFT adapters" ./dtrain-convert --to hf "$tmp/unmerged" "$tmp/x" --tokenizer none
renamed other $llama 's|up_proj|w1|'
wrong "other names are not taken for a prefix" 65 "up_proj.weight. is missing" ./dtrain-convert --to hf "$tmp/other" "$tmp/x" --tokenizer none
e2e_done
