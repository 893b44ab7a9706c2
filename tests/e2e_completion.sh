#!/bin/bash
# e2e_completion.sh - completions that bash and zsh offer for the programs.
. "$(dirname "$0")/e2e.sh"
. tools/completion/dtrain.bash
complete_words() { # WORDS...: what bash would offer for the last; "KEY" "=" "VALUE" are three, as bash cuts them
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _dtrain_complete "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\n' "${COMPREPLY[@]}" >"$out"
}
offers() { expect "$1" test "$(tr '\n' ' ' <"$out")" = "$2 "; }

for p in dtrain dtrain-data dtrain-convert dtrain-generate dtrain-info dtrain-plot dtrain-sid; do
    complete_words ./$p --
    ./$p --help | grep -oE -- '(^|[^a-z-])--[a-z][a-z-]*' | grep -oE -- '--[a-z-]*' | sort -u >"$tmp/help"
    expect "all options of $p" cmp "$tmp/help" "$out"
done
complete_words ./dtrain-generate model --top
offers "options that begin so" "--top-k --top-logprobs --top-p"
complete_words ./dtrain-data --kind s
offers "the words of an option" "sft"
complete_words ./dtrain x.ini optimizer.we
offers "a key" "optimizer.weight_decay="
complete_words ./dtrain x.ini ''
sed 's/=$//' "$out" | sort >"$tmp/keys"
expect "all keys" cmp "$tmp/keys" <(awk -F'`' '/^## / { s = $0; gsub(/[^a-z]/, "", s) } /^\| `/ { print s "." $2 }' docs/keys.md | sort)
complete_words ./dtrain x.ini run.task = s
offers "the words of a key" "sft"
complete_words ./dtrain x.ini run.task =
offers "all words of a key" "pretrain sft rm dpo kto distill ppo grpo classify embed eval"
complete_words ./dtrain x.ini model.model_type = gemma
offers "values on several lines" "gemma2 gemma3_text"
complete_words ./dtrain --keys zero.st
offers "a key after --keys" "zero.stage"
mkdir "$tmp/d" && touch "$tmp/d/model.h5" "$tmp/d/my file.h5"
complete_words ./dtrain-info "$tmp/d/mod"
offers "a file" "$tmp/d/model.h5"
complete_words ./dtrain-info "$tmp/d/my"
offers "a file with a blank" "$tmp/d/my file.h5"
complete_words ./dtrain x.ini data.train = "$tmp/d/mod"
offers "a file as the value of a key" "$tmp/d/model.h5"

if ! command -v zsh >/dev/null; then
    skip "completion of zsh" "no zsh here"
    e2e_done
    exit
fi
cat >"$tmp/try.zsh" <<'Z'
_describe() { print -l -- ${(P)3%%:*} }
_files() { print FILES }
compadd() { if [[ $1 == -S ]]; then print -l -- ${(P)4}; elif [[ $1 == -a ]]; then print -l -- ${(P)2}; else print -l -- $@; fi }
words=("$@") CURRENT=$# PREFIX=${@[-1]}
complete_one() { eval "$(tail -n +3 tools/completion/_dtrain)" }
complete_one
Z
zsh "$tmp/try.zsh" ./dtrain-generate model --t >"$out" 2>&1
expect "zsh: all options" cmp <(sort -u "$out") <(./dtrain-generate --help | sed -n '/^  -/ { s/^  //; s/  .*//; p }' | grep -oE -- '--[a-z][a-z-]*' | sort -u)
zsh "$tmp/try.zsh" ./dtrain x.ini op >"$out" 2>&1
expect "zsh: keys and files" sh -c "grep -qx 'optimizer.lr' '$out' && grep -qx FILES '$out'"
zsh "$tmp/try.zsh" ./dtrain-info x >"$out" 2>&1
expect "zsh: files" grep -qx FILES "$out"
e2e_done
