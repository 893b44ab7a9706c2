#!/bin/bash
# e2e_exits.sh - exported directories in other programs (docs/serving.md): llama.cpp converts them and continues prompts by the same tokens,
# vLLM likewise, and lm-evaluation-harness measures the same log-likelihoods. EXITS_PYTHON is a Python that has their packages, LLAMA_CPP the
# sources of llama.cpp. What is missing is skipped by name.
. "$(dirname "$0")/e2e.sh"
full_only
python=${EXITS_PYTHON:-python3}
has() { "$python" -c "import $1" 2>/dev/null; }
has "torch, transformers, sentencepiece" || { skip exits "no torch, transformers and sentencepiece in $python"; e2e_done; exit; }
printf '{"prompt": "the cat sat"}\n{"prompt": "a"}\n{"prompt": "It was the best of times"}\n' >"$tmp/prompts.jsonl"
compared() { # NAME PROGRAM ARGS...: prints and compares
    local name=$1 program=$2
    shift 2
    HF_HUB_OFFLINE=1 "$python" tools/open_elsewhere.py "$tmp/$name" "$tmp/$name.jsonl" --with "$program" "$@" >"$out" 2>&1
}

families="gpt2 llama mistral qwen2 qwen3 olmo2 seed_oss internlm3 ministral3 glm glm4 granite smollm3 gemma2 gemma3_text qwen2_moe qwen3_moe mixtral
    gpt_oss deepseek_v2 deepseek_v3 glm4_moe qwen3_5 qwen3_5_moe qwen3_next"
# shellcheck disable=SC2086
"$python" tests/make_exit_models.py "$tmp/models" "$tmp/tokenizers" $families >"$out" 2>&1 || not_ok "models are made" "$python failed"
for name in $families; do
    case $name in
    gemma* | internlm3) tokenizer=$tmp/tokenizers/spm ;;
    glm*) tokenizer=$tmp/tokenizers/glm ;;
    *) tokenizer=tests/data/tokenizer/gpt2 ;;
    esac
    ends "$name: exported" 0 run 0 ./dtrain-convert --to hf --tokenizer $tokenizer "$tmp/models/$name" "$tmp/$name"
    run 0 ./dtrain-generate "$tmp/$name" --prompts "$tmp/prompts.jsonl" --max-new-tokens 12 --greedy --jsonl --logprobs
    sed '/^dtrain-generate/d' "$out" >"$tmp/$name.jsonl"
    if ! has xllamacpp || [ ! -f "${LLAMA_CPP:-}/convert_hf_to_gguf.py" ]; then
        skip "$name: llama.cpp" "no xllamacpp in $python, or no convert_hf_to_gguf.py in LLAMA_CPP"
    else
        expect "$name: llama.cpp gives the same tokens" compared "$name" llama.cpp --pre-tokenizer gpt-2
    fi
done
for name in llama qwen3; do
    has vllm || { skip "$name: vLLM" "no vllm in $python"; continue; }
    expect "$name: vLLM gives the same tokens" compared "$name" vllm
done
for name in llama gemma2; do
    has lm_eval || { skip "$name: lm-eval" "no lm_eval in $python"; continue; }
    expect "$name: lm-evaluation-harness measures the same log-likelihoods" compared "$name" lm-eval
done
e2e_done
