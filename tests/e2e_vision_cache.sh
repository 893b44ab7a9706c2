#!/bin/bash
# e2e_vision_cache.sh - cached features of a frozen tower. Training has the same bits as without the cache, on any number of ranks, at any
# stage, in every task. Features are computed once. Damaged, killed, refused or full caches are reported and never trained on.
# DEVICES: cpu queue
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
fixture=tests/data/vision/run hf=tests/data/vision/hf
data_of() { # MODEL ARGS...
    local model=$hf/$1
    shift
    expect "data for $model" ./dtrain-data -q --tokenizer "$model" --images "$model" "$@"
}
data_of clip_llama -o "$tmp/images.h5" $fixture/records.jsonl
sed -n 's/<image>//gp' $fixture/records.jsonl | sed 's/, "images*": .*/}/' >"$tmp/texts.jsonl"
expect "texts without images" ./dtrain-data -q --tokenizer $hf/clip_llama -o "$tmp/texts.h5" "$tmp/texts.jsonl"
sed -n 4p $fixture/records.jsonl | sed "s|\.\./\.\./vision_data|$PWD/tests/data/vision_data|g" >"$tmp/few.jsonl"
data_of clip_llama -o "$tmp/few.h5" "$tmp/few.jsonl"
make_task sft run.max_steps=4 run.reproducible=true model.path=$hf/clip_llama data.train="$tmp/images.h5, $tmp/texts.h5" batch.train_batch_size=6 \
    batch.micro_batch_size=1 optimizer.lr=3e-3
cache=$tmp/cache
kept() { train "$@" vision.feature_cache="$cache"; }
n_files() { ls "$cache" | grep -c "$1"; }
peak_of() { sed -n 's/.*"memory_device": *\([0-9]*\).*/\1/p' "$tmp/$1/metrics.jsonl" | tail -1; }

# ---- the same bits
while read -r dtype np stage more; do
    [ "$np" != 1 ] || { train 1 "ref-$dtype" precision.dtype="$dtype" $more; expect_exit "$dtype without kept features" 0; }
    ends "$dtype on $np ranks, stage $stage, with them" 0 kept "$np" "kept-$dtype-$np-$stage" zero.stage="$stage" precision.dtype="$dtype" $more
    expect "the same bits" same_model "$(newest "ref-$dtype")" "$(newest "kept-$dtype-$np-$stage")"
    expect "as much memory as planned" as_planned
    [[ $more = *offload_param* ]] || expect "as --plan says" as_plan_says "$np" "$stage" precision.dtype="$dtype" vision.feature_cache="$cache" $more
    if [ "$np" = 1 ]; then expect_text "made first" 'computing features of 3 of 3 different images'
    else expect_text "found again" "features of 3 different images are cached in $cache"; fi
done <<LAYOUTS
fp32 1 0
fp32 2 1
fp32 2 2 zero.offload_optimizer=cpu
fp32 3 3 data.prefetch=0
bf16 1 0 model.activation_checkpointing=block
bf16 3 3 zero.offload_param=cpu
LAYOUTS
is "a file for each type" "$(n_files '^features-.*\.bin$')" 2
rm -r "$cache"
kept 3 made-by-3 zero.stage=3
expect "made by three ranks that share each block: the same bits" same_model "$(newest ref-fp32)" "$(newest made-by-3)"
per_token() { paste <(number "$1" flops_per_second) <(number "$1" tokens_per_second) | awk '{ print $1 / $2 }' | tail -1; }
expect "the FLOPs of the tower are not counted" awk -v a="$(per_token ref-fp32)" -v b="$(per_token made-by-3)" 'BEGIN { exit !(b < 0.97 * a) }'
expect "images per second are reported" above made-by-3 images_per_second 0

# ---- tasks, resuming, export
kept 2 valid data.train="$tmp/texts.h5" data.validation="$tmp/images.h5" zero.stage=3 checkpoint.export=hf
train 1 valid-ref data.train="$tmp/texts.h5" data.validation="$tmp/images.h5" checkpoint.export=hf
is "validated alike" "$(number valid validation_loss)" "$(number valid-ref validation_loss)"
expect "the whole model is exported" cmp "$tmp/valid/hf/model.safetensors" "$tmp/valid-ref/hf/model.safetensors"
evaluate() { "$1" "$2" "$3" run.task=eval model.path="$tmp/valid" data.train= data.validation="$tmp/images.h5" batch.train_batch_size=0; }
evaluate kept 2 eval
evaluate train 2 eval-ref
is "evaluated alike" "$(number eval validation_loss)" "$(number eval-ref validation_loss)"
train 2 resumed run.max_steps=2
prints "a run resumes with cached features" "resumed from .*step-00000002.h5" kept 3 resumed zero.stage=2
expect "the run has the same bits" same_model "$(newest ref-fp32)" "$(newest resumed)"
ends "a run resumes without cached features" 0 train 2 resumed run.max_steps=5
sed 's/"completion": \("[^"]*"\)/"chosen": \1, "rejected": "no idea?"/; s|\.\./\.\./vision_data|'"$PWD/tests/data/vision_data"'|g' $fixture/records.jsonl >"$tmp/pairs.jsonl"
data_of clip_llama -o "$tmp/pairs.h5" "$tmp/pairs.jsonl"
pairs="run.task=dpo data.train=$tmp/pairs.h5 run.max_steps=3"
while read -r name more; do
    train 1 "$name-ref" $pairs $more
    kept 2 "$name" $pairs zero.stage=3 $more
    expect "$name: the same bits" same_model "$(newest "$name-ref")" "$(newest "$name")"
    expect "as much memory as planned" as_planned
done <<DPO
dpo
dpo-follows dpo.sync_reference_steps=1
dpo-before dpo.precompute_reference=true
dpo-lora vision.train=llm lora.r=2
DPO

# ---- another tower, another model
before=$(n_files '\.bin$')
train 1 trained vision.train=tower run.max_steps=1
kept 1 other model.path="$tmp/trained"
train 1 other-ref model.path="$tmp/trained"
expect "another tower's features: the same bits" same_model "$(newest other-ref)" "$(newest other)"
is "the other tower has a feature file of its own" "$(n_files '\.bin$')" $((before + 1))
wrong "a reference with another tower" 64 'vision.feature_cache: .*trained.* has another vision tower' ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/towers" vision.feature_cache="$cache" $pairs dpo.reference_path="$tmp/trained"
data_of siglip_qwen2 -o "$tmp/siglip.h5" $fixture/records.jsonl
siglip="model.path=$hf/siglip_qwen2 data.train=$tmp/siglip.h5"
train 1 siglip-ref $siglip
kept 2 siglip $siglip
expect "of SigLIP: the same bits" same_model "$(newest siglip-ref)" "$(newest siglip)"
while read -r name file change; do # the same weights and pixels, and other features
    cp -r $hf/clip_llama "$tmp/$name"
    sed -i "$change" "$tmp/$name/$file"
    if cmp -s $hf/clip_llama/"$file" "$tmp/$name/$file"; then not_ok "$name" "$file is what it was"; fi
    expect "a dataset of it" ./dtrain-data -q --tokenizer "$tmp/$name" --images "$tmp/$name" -o "$tmp/$name.h5" $fixture/records.jsonl
    train 1 "$name-ref" model.path="$tmp/$name" data.train="$tmp/$name.h5"
    kept 1 "$name-kept" model.path="$tmp/$name" data.train="$tmp/$name.h5"
    expect "$name: the same bits" same_model "$(newest "$name-ref")" "$(newest "$name-kept")"
done <<CHANGES
normalised preprocessor_config.json s/0.48145466/0.5/
activated config.json s/"quick_gelu"/"gelu"/
CHANGES
wrong "a tower that is trained" 64 'vision.feature_cache: features can only be cached for a frozen tower, but vision.train = projector,tower' ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/no" vision.feature_cache="$cache" vision.train=projector,tower
expect "is the only error" test "$(grep -c 'error:' "$out")" = 1
for path in "$tmp/tiny.ini" "$tmp/tiny.ini/below" /proc/features; do
    wrong "$path for kept features" 64 'vision.feature_cache: (expected a directory|cannot write in /proc)' ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/no" vision.feature_cache="$path"
done
wrong "no tower" 64 'vision.feature_cache: the model has no vision tower' ./dtrain --check "$tmp/tiny.ini" run.output_dir="$tmp/no" vision.feature_cache="$cache" model.path=$hf/clip_llama_text data.train="$tmp/texts.h5"

# ---- some are there
cache=$tmp/parts
kept 2 few data.train="$tmp/few.h5"
n=$(sed -n 's/.*computing features of \([0-9]*\) of .*/\1/p' "$out")
kept 3 rest zero.stage=1
expect_text "the others are made" "computing features of $((3 - n)) of 3 different images"
expect "into a file of their own: the same bits" same_model "$(newest ref-fp32)" "$(newest rest)"
is "two files" "$(n_files '\.bin$')" 2

# ---- what goes wrong
cache=$tmp/of-few
kept 1 bad
good=$(ls "$cache"/*.bin)
cp "$good" "$tmp/good.bin"
damaged() { # NAME TEXT COMMAND...: a command makes FILE of it
    local name=$1 text=$2
    shift 2
    cp "$tmp/good.bin" "$good"
    "$@"
    wrong "$name" 65 "${good##*/}: ($text); remove the file to recompute its features" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/damaged" vision.feature_cache="$cache"
}
byte() { printf '\377' | dd of="$good" bs=1 seek="$1" conv=notrunc status=none; }
damaged "altered features" 'the features are damaged' byte 8195
damaged "an altered list" 'the image list is damaged' byte 4100
damaged "an altered head" 'not a feature file|the header is damaged or belongs to another tower' byte 3
damaged "a file that is cut short" 'the file was cut short or is damaged' truncate -s -1 "$good"
damaged "an empty file" 'the file was cut short or is not a feature file' truncate -s 0 "$good"
rm "$cache"/*
for fault in features.hash:1 features.create:0 features.make:1 features.write:1 features.publish:0; do
    fails_alone "${fault#*:}" "${fault%:*}" 1 kept 2 "fault-${fault%:*}" zero.stage=3
    is "nothing is left" "$(n_files ^features)" 0
    rm -f "$cache"/*.list
done
RUN_TIMEOUT=60 DTRAIN_FAULT=features.write:1:1:nospace ends "a full disk" 74 kept 3 full
is "leaves nothing either" "$(n_files ^features)" 0
RUN_TIMEOUT=60 DTRAIN_FAULT=features.publish:0:1:kill kept 2 killed
is "a kill leaves what is no file of features" "$(n_files '\.part$') $(n_files '\.bin$')" "1 0"
kept 2 killed
expect "the next run removes the partial file" test "$(n_files '\.part$') $(n_files '\.bin$')" = "0 1"
expect "the run has the same bits" same_model "$(newest ref-fp32)" "$(newest killed)"
rm "$cache"/*
DTRAIN_FAULT=features.publish:0:1:stop start 2 first vision.feature_cache="$cache"
wait_until_stopped first 1
kept 1 second
expect "a second run at the same time" same_model "$(newest ref-fp32)" "$(newest second)"
is "the second run writes a file of its own" "$(n_files '\.part$') $(n_files '\.bin$')" "1 1"
kill -CONT $(ranks_of first)
finish first
expect "the first run continues" same_model "$(newest ref-fp32)" "$(newest first)"
is "both runs leave one file" "$(n_files ^features)" 1
DTRAIN_FAULT=features.hash:0:1:error ends "images that are known are not read again" 0 kept 2 again data.train="$tmp/images.h5"
truncate -s -1 "$cache"/*.list
fails_alone 0 features.hash 1 kept 2 unknown data.train="$tmp/images.h5"
ends "a truncated list of images is not trusted" 0 kept 2 again run.max_steps=5 data.train="$tmp/images.h5"
e2e_done
mkfifo "$cache/${good##*/}.fifo" && mv "$cache/${good##*/}.fifo" "$cache/$(basename "$good" .bin)-x.bin"
RUN_TIMEOUT=60 wrong "a pipe instead of a feature file" 65 '-x.bin: the file was cut short or is not a feature file; remove the file' ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/pipe" vision.feature_cache="$cache"
rm "$cache"/*
mkdir "$cache/images.list" && kept 2 no-list
for list in "$cache"/*.list; do rm -rf "$list" && mkdir "$list"; done
ends_saying "a run continues if no list can be written" 0 'the next run reads all images again: .*\.list' kept 2 no-list-again
expect "the run has the same bits" same_model "$(newest ref-fp32)" "$(newest no-list-again)"

# ---- pixels that differ from those of the features leave no file for other runs
cache=$tmp/of-altered
cp "$tmp/images.h5" "$tmp/altered.h5"
at=$(h5dump -H -p -d /images/pixels "$tmp/altered.h5" | sed -n 's/.*OFFSET *\([0-9]*\).*/\1/p')
printf '\001\002\003\004' | dd of="$tmp/altered.h5" bs=1 seek=$((${at:-0} + 100)) conv=notrunc status=none
ends_saying "altered pixels" 65 'altered.h5: images/pixels: block [0-9]+ .*is damaged' kept 2 altered data.train="$tmp/altered.h5"
is "leave nothing" "$(ls "$cache" 2>/dev/null | wc -l)" 0
kept 1 list-alone data.train="$tmp/images.h5"
rm "$cache"/*.bin
ends "also where the images are known already" 65 kept 2 known data.train="$tmp/altered.h5"
expect_text "the message names the file" 'altered.h5: (images/pixels: block [0-9]+ .*is damaged|an image differs)'
is "leave no features" "$(n_files ^features)" 0

# ---- kernels that round in other ways make other features
if [ "$(./dtrain --version | sed -n 's/^instruction sets: //p')" = "v2 v3 v4" ] && grep -qw avx2 /proc/cpuinfo; then
    cache=$tmp/kernels
    DTRAIN_ISA=v2 kept 1 of-v2
    prints "another instruction set's are made anew" 'computing features of 3 of 3 different images' kept 1 of-this
    expect "the run has the same bits" same_model "$(newest ref-fp32)" "$(newest of-this)"
    cat >"$tmp/older" <<'SH'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" != 1 ] || export DTRAIN_ISA=v2
exec "$@"
SH
    chmod +x "$tmp/older"
    for i in 1 2; do
        RUN_TIMEOUT=60 run 2 "$tmp/older" ./dtrain "$tmp/tiny.ini" run.output_dir="$tmp/older-$i" vision.feature_cache="$cache"
        expect_exit "ranks with kernels of different kinds" 0
    done
    expect_text "all ranks find the cached features" "features of 3 different images are cached in $cache"
else skip "another instruction set's features are made anew" "this processor has one"; fi

# ---- images that no sample shows
cat "$tmp/few.jsonl" "$tmp/texts.jsonl" >"$tmp/mixed.jsonl"
data_of clip_llama -o "$tmp/mixed.h5" "$tmp/mixed.jsonl"
RUN_TIMEOUT=60 ends "a run without samples that show images" 0 kept 2 unseen data.seq_len=8 data.train="$tmp/mixed.h5"
expect_text "no features are computed" 'done: 4 steps'

# ---- memory
cache=$tmp/fresh
kept 1 makes
kept 1 finds
# lists, pixels and features of three images; the tower has its activations where the model has its own
expect "features are made in the memory that a run has anyway" [ $(($(peak_of makes) - $(peak_of finds))) -lt 65536 ]
