#!/bin/bash
# e2e_components.sh - optional libraries (tools/mk/config.mk): --version lists those of this build. A program built without one trains, and
# reports the missing library when a run needs it. `make test-bare` runs this on a build that has none.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
run 0 ./dtrain --version
expect_text "--version lists the optional libraries" '^optional libraries: [a-zA-Z0-9 ]+$'
libraries=" $(sed -n 's/^optional libraries: //p' "$out") "
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
train 2 run run.max_steps=3
expect_exit "a text model trains" 0
case $libraries in
*" oneDNN "*) expect_text "the log names oneDNN" 'device .*, oneDNN [0-9]' ;;
*) expect_text "the log says that there is no oneDNN" 'device .*, no oneDNN' ;;
esac

tokenizers=tests/data/tokenizer
ends "a tokenizer without regular expressions and normal forms needs no library" 0 \
    run 0 ./dtrain-data -q --tokenizer $tokenizers/llama2 -o "$tmp/llama2.h5" "$tmp/valid.txt"
lacks() { case $libraries in *" $1 "*) return 1 ;; esac; }
if lacks PCRE2; then
    missing='regular expressions need PCRE2, and this program was built without it'
    ends_saying "a tokenizer with regular expressions names PCRE2" 64 "$tokenizers/gpt2/tokenizer.json: $missing" \
        run 0 ./dtrain-data -q --tokenizer $tokenizers/gpt2 -o "$tmp/gpt2.h5" "$tmp/valid.txt"
    ends_saying "so does a pattern in [lora]" 64 "target_modules: $missing" train 1 lora lora.r=2 'lora.target_modules=.*q_proj'
    ends "names in [lora] need no library" 0 train 1 lora lora.r=2 lora.target_modules=q_proj,v_proj run.max_steps=2
    ends_saying "so does the reward format" 64 "format: $missing" train 1 grpo run.task=grpo grpo.reward_funcs=format
fi
if lacks utf8proc; then
    missing='Unicode normalisation needs utf8proc, and this program was built without it'
    ends_saying "a tokenizer with a normal form names utf8proc" 64 "$tokenizers/qwen2/tokenizer.json: $missing" \
        run 0 ./dtrain-data -q --tokenizer $tokenizers/qwen2 -o "$tmp/qwen2.h5" "$tmp/valid.txt"
    ends_saying "so does the reward accuracy" 64 "accuracy: $missing" train 1 grpo run.task=grpo grpo.reward_funcs=accuracy
fi

if lacks libmicrohttpd; then
    ends_saying "so does a server" 64 'a server needs libmicrohttpd, and this program was built without it' run 0 ./dtrain-generate "$tmp/run" --serve 0
fi

# A vision model whose tokenizer has no regular expression.
cp -r tests/data/vision/hf/clip_llama "$tmp/vision"
sed -i 's/"use_regex": true/"use_regex": false/' "$tmp/vision/tokenizer.json"
without() { # LIBRARY FORMAT FIRST-BYTES
    lacks "$1" || return
    printf "$3" >"$tmp/picture"
    echo '{"prompt": "<image> what is it?", "completion": " a square.", "image": "picture"}' >"$tmp/record.jsonl"
    run 0 ./dtrain-data -q --tokenizer "$tmp/vision" --images "$tmp/vision" -o "$tmp/image.h5" "$tmp/record.jsonl"
    expect_exit "$2 images without $1" 64
    expect_text "names image, format and library" "picture: $2 images need $1, and this program was built without it"
}
without libjpeg JPEG '\xff\xd8\xff\xe0'
without libpng PNG '\x89PNG\r\n\x1a\n'
without libwebp WebP 'RIFF    WEBP'
e2e_done
