#!/bin/bash
# e2e_components.sh - optional libraries (tools/mk/config.mk): --version lists those of this build. A program built without one trains, and
# reports the missing library when a run needs it. `make test-bare` runs this on a build that has none.
# QUICK:
. "$(dirname "$0")/e2e.sh"
. "$(dirname "$0")/train_common.sh"
run 0 ./dtrain --version
expect_text "--version lists the optional libraries" '^optional libraries: [a-zA-Z ]+$'
libraries=" $(sed -n 's/^optional libraries: //p' "$out") "
make_data || { not_ok "data for the tests" "dtrain-data failed"; exit 1; }
train 2 run run.max_steps=3
expect_exit "a text model trains" 0
case $libraries in
*" oneDNN "*) expect_text "the log names oneDNN" 'device .*, oneDNN [0-9]' ;;
*) expect_text "the log says that there is no oneDNN" 'device .*, no oneDNN' ;;
esac

without() { # LIBRARY FORMAT FIRST-BYTES
    case $libraries in *" $1 "*) return ;; esac
    printf "$3" >"$tmp/picture"
    echo '{"prompt": "<image> what is it?", "completion": " a square.", "image": "picture"}' >"$tmp/record.jsonl"
    run 0 ./dtrain-data -q --tokenizer tests/data/vision/hf/clip_llama --images tests/data/vision/hf/clip_llama -o "$tmp/image.h5" "$tmp/record.jsonl"
    expect_exit "$2 images without $1" 64
    expect_text "names image, format and library" "picture: $2 images need $1, and this program was built without it"
}
without libjpeg JPEG '\xff\xd8\xff\xe0'
without libpng PNG '\x89PNG\r\n\x1a\n'
without libwebp WebP 'RIFF    WEBP'
e2e_done
