#!/bin/bash
# e2e_bitsandbytes.sh - directories of bitsandbytes in the programs: as values, and as a base in nf4 whose codes stay as they are. The values
# are those that bitsandbytes dequantises (NAME_decoded).
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
make_data
sed -i -e '/^\[model\]/,/^\[data\]/{/^\[/!d}' "$tmp/tiny.ini"
hf=tests/data/hf
same_adapter() { cmp "$tmp/$1/adapter/adapter_model.safetensors" "$tmp/$2/adapter/adapter_model.safetensors"; }
lora() { # NP DIR MODEL ARGS...
    local np=$1 dir=$2 model=$3
    shift 3
    train "$np" "$dir" model.path="$hf/$model" model.tokenizer=bytes lora.r=4 run.max_steps=3 run.reproducible=true "$@"
}

# ---- as values: trained, quantised in another form, generated from, planned --------------------------------------------------------------------
for name in llama_nf4 gpt2_fp4 mistral_int8; do
    for keys in lora.base_quantization=none lora.base_quantization=int8 "lora.r=0 zero.stage=3"; do
        lora 2 coded $name $keys
        lora 2 plain ${name}_decoded $keys
        expect "$name, $keys: the losses of the decoded weights" close_losses plain coded 0
    done
    for model in $name ${name}_decoded; do
        ends "$model: generates" 0 run 1 ./dtrain-generate $hf/$model --tokenizer bytes --prompt "the of" --max-new-tokens 12 --greedy --jsonl
        sed '/^dtrain-generate/d' "$out" >"$tmp/$model.txt"
    done
    expect "$name: the tokens of the decoded weights" cmp "$tmp/$name.txt" "$tmp/${name}_decoded.txt"
    ends "$name: planned" 0 run 0 ./dtrain --plan --ranks 2 "$tmp/tiny.ini" model.path=$hf/$name model.tokenizer=bytes
done
cp -r $hf/mistral_int8 "$tmp/turing"
python3 - "$tmp/turing/model.safetensors" <<'PY'
import json, sys
with open(sys.argv[1], "r+b") as f:
    n = int.from_bytes(f.read(8), "little")
    f.seek(8 + n + json.loads(f.read(n))["model.layers.0.self_attn.q_proj.weight_format"]["data_offsets"][0])
    f.write(bytes([2]))
PY
ends_saying "codes in the order of a GPU's" 65 'q_proj.weight_format`: expected 0, codes in rows, found 2' run 0 ./dtrain-convert "$tmp/turing" "$tmp/rows" --to hf
full_only

# ---- a base in nf4 ------------------------------------------------------------------------------------------------------------------------------
nf4() { lora "$@" lora.base_quantization=nf4; }
kept() { expect_text "$1: $2 matrices are kept" "the codes and scales of $2 matrices in nf4 are kept as bitsandbytes stored them"; }
while read -r name matrices keys; do
    nf4 2 "still$name" $name optimizer.lr=0 run.max_steps=1 zero.stage=3
    kept $name "$matrices"
    ends "$name: exported" 0 run 2 ./dtrain-convert "$(newest "still$name")" "$tmp/out$name" --to hf --dtype bf16
    expect "$name: the base has the bits that bitsandbytes dequantises" cmp "$tmp/out$name/model.safetensors" $hf/${name}_decoded/model.safetensors
    nf4 1 "codes$name" $name precision.dtype=bf16 $keys
    lora 1 "values$name" ${name}_decoded precision.dtype=bf16 $keys
    expect "$name: adapters as on bitsandbytes' values in bf16, to the bit" same_adapter "codes$name" "values$name"
done <<MODELS
llama_nf4 7 lora.dropout=0
phi3_nf4 4 lora.dropout=0
MODELS
nf4 2 still gpt2_nf4 optimizer.lr=0 run.max_steps=1
kept gpt2_nf4 4
ends "gpt2_nf4: exported" 0 run 1 ./dtrain-convert "$(newest still)" "$tmp/outgpt2" --to hf --dtype bf16
expect "gpt2_nf4: the base has the bits that bitsandbytes dequantises" cmp "$tmp/outgpt2/model.safetensors" $hf/gpt2_nf4_decoded/model.safetensors
nf4 1 one llama_nf4
for layout in "1 1" "2 0" "2 2" "3 3"; do
    set -- $layout
    nf4 "$1" "on$1$2" llama_nf4 zero.stage="$2"
    expect "the same bits on $1 ranks at stage $2" same_model "$(newest one)" "$(newest "on$1$2")"
    expect "memory as planned" as_planned
done
nf4 1 again gpt2_fp4 run.max_steps=1
expect_text "another form is quantised again" "4 matrices of bitsandbytes are decoded and quantised again"
for sizes in "128 256" "64 512"; do # larger blocks, larger groups: every other scale remains
    cp -r $hf/llama_nf4 "$tmp/${sizes/ /x}"
    python3 - "$tmp/${sizes/ /x}/model.safetensors" $sizes <<'PY'
import json, sys
path, block, group = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = open(path, "rb").read()
n = int.from_bytes(file[:8], "little")
head, data = json.loads(file[8:8 + n]), b""
for name, t in head.items():
    if name == "__metadata__":
        continue
    values = file[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
    if ".quant_state." in name:
        values = json.dumps(json.loads(values) | {"blocksize": block, "nested_blocksize": group}).encode()
        t["shape"] = [len(values)]
    elif name.endswith("nested_absmax" if group > 256 else "absmax"):
        size = 4 if t["dtype"] == "F32" else 1
        t["shape"] = [(t["shape"][0] + 1) // 2]
        values = values[:t["shape"][0] * size]
    t["data_offsets"] = [len(data), len(data) + len(values)]
    data += values
head = json.dumps(head).encode()
open(path, "wb").write(len(head).to_bytes(8, "little") + head + data)
PY
    ends "blocks and groups of $sizes" 0 train 1 "again${sizes/ /x}" model.path="$tmp/${sizes/ /x}" model.tokenizer=bytes lora.r=4 lora.base_quantization=nf4 run.max_steps=1
    expect_text "are quantised again" "7 matrices of bitsandbytes are decoded and quantised again"
done

# a checkpoint that omits the base: resumed, converted, and refused if the base changes
cp -r $hf/llama_nf4 "$tmp/base"
part() { train "$1" part model.path="$tmp/base" model.tokenizer=bytes lora.r=4 run.reproducible=true lora.base_quantization=nf4 checkpoint.save=trainable "${@:2}"; }
part 2 run.max_steps=2
part 3 run.max_steps=3 zero.stage=3 checkpoint.resume=auto
expect "resumed on other ranks: the same adapter" same_adapter one part
run 2 ./dtrain-convert "$(newest part)" "$tmp/merged" --to hf --dtype fp32
run 2 ./dtrain-convert "$(newest one)" "$tmp/whole" --to hf --dtype fp32
expect "merged as from a whole checkpoint" cmp "$tmp/merged/model.safetensors" "$tmp/whole/model.safetensors"
for base in none nf4; do # a base is read in another form than the run before it had
    train 1 "part$base" model.path="$tmp/base" model.tokenizer=bytes lora.r=4 lora.base_quantization=$base checkpoint.save=trainable run.max_steps=1
done
for start in partnone partnf4; do
    train 2 "next$start" model.path="$(newest $start)" lora.r=4 lora.base_quantization=nf4 run.max_steps=1
    expect_exit "$start, continued with a base in nf4" 0
done
python3 - "$tmp/base/model.safetensors" <<'PY'
import json, sys
with open(sys.argv[1], "r+b") as f:
    n = int.from_bytes(f.read(8), "little")
    at = 8 + n + json.loads(f.read(n))["model.layers.0.self_attn.q_proj.weight.absmax"]["data_offsets"][0]
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 1]))
PY
part 1 run.max_steps=4 checkpoint.resume=auto
expect_text "one byte of a scale differs: refused by name" "q_proj.weight"
expect_exit "with its exit code" 65
e2e_done
