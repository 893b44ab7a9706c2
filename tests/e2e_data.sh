#!/bin/bash
# e2e_data.sh - dtrain-data: datasets of text and records, held-out documents, messages about invalid input, info and show.
# QUICK:
. "$(dirname "$0")/e2e.sh"

info() { ./dtrain-data info "$1" 2>&1; }
field() { info "$1" | awk -v key="$2" '$1 == key { print $2; exit }'; }

# ---- command line
ends_saying "help" 0 "chatml" run 0 ./dtrain-data --help
ends "no output" 64 run 0 ./dtrain-data
ends "no input" 64 run 0 ./dtrain-data --force -o "$tmp/x.h5"
ends_saying "unknown option" 64 "no-such-thing" run 0 ./dtrain-data --no-such-thing -o "$tmp/x.h5" README.md
prints "the nearest option is named" 'unknown option; the nearest is --tokenizer' run 0 ./dtrain-data --tokeniser bytes -o "$tmp/x.h5" README.md
ends_saying "a Jinja file that is missing" 65 'no-chat.jinja: cannot' run 0 ./dtrain-data --template no-chat.jinja -o "$tmp/x.h5" README.md
echo '{% for m in messages %}' >"$tmp/open.jinja"
ends_saying "a Jinja file that is damaged" 64 "the chat template in $tmp/open.jinja cannot be evaluated" \
    run 0 ./dtrain-data --tokenizer tests/data/tokenizer/smollm --template "$tmp/open.jinja" -o "$tmp/x.h5" input/chat.jsonl
ends "an invalid number" 64 run 0 ./dtrain-data --force -o "$tmp/x.h5" --max-length ten README.md
ends "unknown kind" 64 run 0 ./dtrain-data --force -o "$tmp/x.h5" --kind words README.md
ends "unknown template" 64 run 0 ./dtrain-data --force -o "$tmp/x.h5" --template llama README.md
prints "the nearest template is named" 'found llama3; did you mean llama-3' run 0 ./dtrain-data --force -o "$tmp/x.h5" --template llama3 README.md
prints "a tokenizer of the hub: how to fetch it" 'found "gpt2" .*hf download gpt2 --local-dir gpt2' run 0 ./dtrain-data --force -o "$tmp/x.h5" --tokenizer gpt2 README.md
run 0 ./dtrain-data -o "$tmp/new/folder/x.h5" --validation "$tmp/other/y.h5" --validation-fraction 0.5 --documents lines README.md
expect_exit "the folders of the outputs are made" 0
expect "both" test -s "$tmp/new/folder/x.h5" -a -s "$tmp/other/y.h5"
ends "validation without a fraction" 64 run 0 ./dtrain-data --force -o "$tmp/x.h5" --validation "$tmp/y.h5" README.md
ends_saying "absent input" 65 "absent.txt" run 0 ./dtrain-data --force -o "$tmp/x.h5" "$tmp/absent.txt"

# ---- records: what to change
make_one() { echo "$1" >"$tmp/one.jsonl" && run 0 ./dtrain-data --force "${@:2}" -o "$tmp/x.h5" "$tmp/one.jsonl"; }
ends "no answer" 65 make_one '{"messages":[{"role":"user","content":"q"}]}'
expect_text "no answer: line and remedy" 'one.jsonl:1: none of the 1 record has an answer to train on; add a message of role assistant'
prints "an unclosed record" 'one.jsonl:1: not valid JSON: the record ends before it is closed ..' make_one '{"prompt":"a","completion":"b"'
prints "keys of another convention" 'found the keys: query, response; rename query to prompt and response to completion' make_one '{"query":"a","response":"b"}'
prints "a response is not dropped" 'rename response to completion' make_one '{"prompt":"a","response":"b"}'
prints "responses that are one text" 'responses: expected a list; rename it to completion' make_one '{"prompt":"a","responses":"b"}'
ends "a prompt may have other fields" 0 make_one '{"prompt":"a","response":"b"}' --kind prompts
make_one '{"messages":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}]}'
expect_text "unusual chats" 'unusual chats were kept: 1 with two answers in a row, 1 without a message of role user; .*one.jsonl:1'
make_one '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}' --quiet
expect "a usual chat and --quiet: no output" test ! -s "$out"

# ---- text
printf '\xef\xbb\xbfalpha beta\r\n\n   \ngamma\nlast without newline' >"$tmp/lines.txt"
ends "text by lines" 0 run 0 ./dtrain-data --force -o "$tmp/t.h5" --documents lines "$tmp/lines.txt"
is "blank lines are no documents" "$(field "$tmp/t.h5" documents)" 3
is "bytes and one end of text each" "$(field "$tmp/t.h5" tokens)" $((10 + 5 + 20 + 3))
is "no byte order mark, no carriage return" "$(./dtrain-data show "$tmp/t.h5" 0 | tail -1)" "alpha beta<|endoftext|>"
run 0 ./dtrain-data --force -o "$tmp/t.h5" --no-append-eos "$tmp/lines.txt"
is "a file is a document" "$(field "$tmp/t.h5" documents) $(field "$tmp/t.h5" tokens)" "1 43"
run 0 ./dtrain-data --force -o "$tmp/t.h5" --documents paragraphs "$tmp/lines.txt"
is "paragraphs" "$(field "$tmp/t.h5" documents)" 2
is "a paragraph keeps its lines" "$(./dtrain-data show "$tmp/t.h5" 1 | tail -2)" "gamma
last without newline<|endoftext|>"
printf 'one<|end|>two\ntwo<|end|>\n<|end|>three' | ./dtrain-data --force -q -o "$tmp/t.h5" --separator '<|end|>' - >/dev/null
is "documents up to a separator, from standard input" "$(field "$tmp/t.h5" documents)" 3
prints "cut documents are counted" "3 documents truncated to 4 tokens" run 0 ./dtrain-data --force -o "$tmp/t.h5" --max-length 4 --documents lines "$tmp/lines.txt"
is "a cut document has no end of text" "$(./dtrain-data show "$tmp/t.h5" 0 | tail -1)" "alph"

# ---- records
cat >"$tmp/chat.jsonl" <<'RECORDS'
{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": [{"type": "text", "text": "Ciao"}]}]}

{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "\u00e9"}], "system": "Be brief."}
{"prompt": "2+2=", "completion": "4"}
{"instruction": "Add", "input": "1 2", "output": "3"}
{"conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
{"messages": [{"role": "user", "content": "no answer"}]}
RECORDS
ends_saying "records" 0 "1 record without any token to train on" run 0 ./dtrain-data --force -o "$tmp/s.h5" "$tmp/chat.jsonl"
is "kind by the first record" "$(field "$tmp/s.h5" kind)" sft
is "samples" "$(field "$tmp/s.h5" samples)" 5
is "only answers and their ends are targets" "$(./dtrain-data show "$tmp/s.h5" 0 | tail -n +2)" \
    'User: Hi
Assistant:{+ Hello<|endoftext|>+}User: Bye
Assistant:{+ Ciao<|endoftext|>+}'
run 0 ./dtrain-data --force -o "$tmp/c.h5" --template chatml "$tmp/chat.jsonl"
expect_text "a template without its tokens" 'warn.*template chatml: the tokenizer lacks <\|im_start\|>, <\|im_end\|>: each .*end-of-text token ends the last answer'

(echo '['; grep . "$tmp/chat.jsonl" | sed '$!s/$/,/'; echo ']') >"$tmp/array.json"
run 0 ./dtrain-data --force -o "$tmp/a.h5" "$tmp/array.json"
expect "a JSON array and JSON lines give the same dataset" cmp "$tmp/a.h5" "$tmp/s.h5"
mkdir "$tmp/folder" && cp "$tmp/chat.jsonl" "$tmp/folder/b.jsonl" && cp "$tmp/array.json" "$tmp/folder/a.json" && echo no >"$tmp/folder/notes.md"
run 0 ./dtrain-data --force -o "$tmp/a.h5" "$tmp/folder"
is "a folder's files" "$(field "$tmp/a.h5" samples)" 10
printf '{"text": "one"}\n{"text": "two"}\n' >"$tmp/text.jsonl"
run 0 ./dtrain-data --force -o "$tmp/a.h5" --kind sft --weight-key w "$tmp/text.jsonl"
is "text records as sft on request" "$(field "$tmp/a.h5" kind) $(field "$tmp/a.h5" weights)" "sft yes"

printf '\xef\xbb\xbf\r\n{"prompt": "p", "completion": "c"}\r\n   \r\n{"prompt": "q", "completion": "d"}' >"$tmp/crlf.jsonl"
run 0 ./dtrain-data --force -o "$tmp/a.h5" "$tmp/crlf.jsonl"
is "a byte order mark, carriage returns, blank lines" "$(field "$tmp/a.h5" samples)" 2
printf '\xef\xbb\xbf [\r\n{"prompt": "p", "completion": "c"} ,\r\n\r\n{"prompt": "q", "completion": "d"}\r\n]\r\n' >"$tmp/crlf.json"
run 0 ./dtrain-data --force -o "$tmp/b.h5" "$tmp/crlf.json"
expect "the same in an array" cmp "$tmp/a.h5" "$tmp/b.h5"

# ---- preferences and prompts
cat >"$tmp/pairs.jsonl" <<'RECORDS'
{"prompt": "Q: ", "chosen": "good", "rejected": "bad", "margin": 0.5}
{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}], "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]}
{"prompt": "q", "response_0": "x", "response_1": "y", "better_response_id": 1, "safer_response_id": 0, "is_response_0_safe": true, "is_response_1_safe": false}
RECORDS
ends "preferences" 0 run 0 ./dtrain-data --force -o "$tmp/p.h5" "$tmp/pairs.jsonl"
is "kind preference" "$(field "$tmp/p.h5" kind) $(field "$tmp/p.h5" samples) $(field "$tmp/p.h5" margins)" "preference 3 yes"
is "both sides are shown" "$(./dtrain-data show "$tmp/p.h5" 2 | tail -n +3)" "---- chosen: 4 tokens, 2 of them prompt, unsafe
q
{+y<|endoftext|>+}
---- rejected: 4 tokens, 2 of them prompt, safe
q
{+x<|endoftext|>+}"
prints "dtrain-info knows pairs" "rejected/prompt_length" run 0 ./dtrain-info "$tmp/p.h5"
echo '{"prompt": "q", "chosen": "x"}' >"$tmp/half.jsonl"
ends "half a pair" 65 run 0 ./dtrain-data --force -o "$tmp/half.h5" "$tmp/half.jsonl"
expect_text "an incomplete pair is reported" 'half.jsonl:1: found chosen, but not rejected: a pair of answers needs both'
ends "--kind prompts accepts it as a prompt" 0 run 0 ./dtrain-data --force --kind prompts -o "$tmp/half.h5" "$tmp/half.jsonl"
cat >"$tmp/prompts.jsonl" <<'RECORDS'
{"prompt": "tell"}
{"question": "1+1?", "answer": 2}
RECORDS
run 0 ./dtrain-data --force -o "$tmp/r.h5" "$tmp/prompts.jsonl"
is "kind prompts" "$(field "$tmp/r.h5" kind) $(field "$tmp/r.h5" answers) $(field "$tmp/r.h5" records)" "prompts yes yes"
is "a question is a turn, with its answer" "$(./dtrain-data show "$tmp/r.h5" 1 | tail -n +2)" "User: 1+1?
Assistant:
---- answer: 1 token
2
---- record
{\"question\":\"1+1?\",\"answer\":2}"

# ---- fields of records
fields() { # LINES...: what dtrain-data says of these records
    printf '%s\n' "$@" >"$tmp/fields.jsonl"
    run 0 ./dtrain-data --force -o "$tmp/fields.h5" "$tmp/fields.jsonl"
}
chat='"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'
ends "unused fields are accepted" 0 fields "{$chat, \"source\": \"x\", \"id\": 1}" "{$chat, \"id\": 2}" "{$chat, \"id\": null}"
expect_text "unused fields are listed, the most frequent first" 'ignored fields: id \(2\), source \(1\)$'
(printf '{'; sleep 0.2; printf '\n "text":'; sleep 0.2; printf ' "a"\n}\n') | ./dtrain-data --force -q --format json -o "$tmp/fields.h5" - >/dev/null 2>&1
is "a record over several lines from a pipe, a few bytes at a time" "$(field "$tmp/fields.h5" documents)" 1
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >"$tmp/pointer.parquet"
ends "a Git LFS pointer instead of a table" 65 run 0 ./dtrain-data --force -o "$tmp/fields.h5" "$tmp/pointer.parquet"
expect_text "is recognised" 'pointer.parquet: found a Git LFS pointer.*git lfs pull'

# ---- shards
ends "shards" 0 run 0 ./dtrain-data --force -o "$tmp/sh.h5" --shards 2 "$tmp/chat.jsonl"
is "shards are named in order" "$(cd "$tmp" && echo sh*.h5)" "sh-00000-of-00002.h5 sh-00001-of-00002.h5"
prints "how many files" "in [2-5] files" run 0 ./dtrain-data --force -o "$tmp/sh.h5" --shard-size 200 "$tmp/chat.jsonl"
expect_text "shards of an older dataset are reported" "is a shard of another dataset"
prints "an invalid size" "--shard-size: expected a size in bytes .*, found .many." run 0 ./dtrain-data --force -o "$tmp/sh.h5" --shard-size many "$tmp/chat.jsonl"
ends "no shards" 64 run 0 ./dtrain-data --force -o "$tmp/sh.h5" --shards 0 "$tmp/chat.jsonl"
ends "no threads" 64 run 0 ./dtrain-data --force -o "$tmp/sh.h5" --threads 0 "$tmp/chat.jsonl"
prints "rows as they will be packed" "bfd +[0-9]+ rows" run 0 ./dtrain-data info --seq-len 64 "$tmp/s.h5"

# ---- tokenizers and templates
ends "a tokenizer.json" 0 run 0 ./dtrain-data --force -o "$tmp/q.h5" --tokenizer tests/data/tokenizer/qwen2 --template qwen2.5 "$tmp/chat.jsonl"
is "its special tokens by name" "$(./dtrain-data show --tokenizer tests/data/tokenizer/qwen2/tokenizer.json "$tmp/q.h5" 4 | tail -n +2)" \
    '<|im_start|>system
You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>
<|im_start|>user
q<|im_end|>
<|im_start|>assistant
{+a<|im_end|>+}'
prints "without its tokenizer, ids" "<[0-9]+><[0-9]+>" run 0 ./dtrain-data show "$tmp/q.h5" 4
ends_saying "another tokenizer" 64 "created with the tokenizer" run 0 ./dtrain-data show --tokenizer tests/data/tokenizer/gpt2 "$tmp/q.h5" 4

# ---- malformed
bad() { # name, record, reason
    printf '{"prompt": "p", "completion": "c"}\n\n%s\n' "$2" >"$tmp/bad.jsonl"
    rm -f "$tmp/b.h5"
    ends_saying "$1: code" 65 "bad.jsonl:3: .*$3" run 0 ./dtrain-data --force -o "$tmp/b.h5" "$tmp/bad.jsonl"
    expect "$1: no output" test ! -e "$tmp/b.h5" -a ! -e "$tmp/b.h5.part"
}
bad "not JSON" '{"prompt": "p", ' "not valid JSON"
bad "not an object" '[1, 2]' "object"
bad "unknown keys" '{"question": "q", "reply": "a"}' "question, reply"
bad "unknown role" '{"messages": [{"role": "wizard", "content": "x"}]}' "wizard"
bad "content that is no text" '{"messages": [{"role": "user", "content": 3}]}' "content"
bad "an empty chat" '{"messages": []}' "list of messages"
bad "completion that is no text" '{"prompt": "p", "completion": null}' "completion"
bad "text among sft records" '{"text": "x"}' "kind sft"
bad "a lone surrogate" '{"text": "\ud800"}' "not valid JSON"
ends "bad records can be skipped" 0 run 0 ./dtrain-data --force -o "$tmp/b.h5" --skip-bad "$tmp/bad.jsonl"
expect_text "skipped ones are counted" "1 malformed"
expect_text "dropped records are counted by reason" "1 x not valid JSON.*\(first: .*bad.jsonl:3\)"
run 0 bash -c "ulimit -v 3000000; { printf '[\n{\"prompt\": [1,'; yes '{\"prompt\": \"q\", \"completion\": \"d\"},'; } | ./dtrain-data --force --threads 1 --format json -o '$tmp/b.h5' -"
expect_exit "an array that has no end" 65
expect_text "is not read into memory whole" "standard input:2: the record that begins here is longer than 256 MiB"
: >"$tmp/empty.txt"
ends "nothing in the input" 65 run 0 ./dtrain-data --force -o "$tmp/b.h5" "$tmp/empty.txt"

# ---- what is no text, recognised by its content
refused() { # name, file, next step
    rm -f "$tmp/b.h5"
    ends "$1 is refused" 65 run 0 ./dtrain-data --force -o "$tmp/b.h5" "$2"
    expect_text "$1: why, and what to do" "$(basename "$2"): .*$3"
    expect "$1: no output" test ! -e "$tmp/b.h5"
}
gzip -c "$tmp/text.jsonl" >"$tmp/text.jsonl.gz"
refused "gzip" "$tmp/text.jsonl.gz" "gzip -dc"
cp "$tmp/text.jsonl.gz" "$tmp/packed.jsonl"
refused "gzip under the name of JSON" "$tmp/packed.jsonl" "gzip -dc"
refused "a dataset" "$tmp/s.h5" "data.train"
refused "a program" ./dtrain-data "zero byte"
printf 'a,b\n1,2\n' >"$tmp/table.csv"
refused "a table" "$tmp/table.csv" "looks like a table"
printf '\317\360\350\342\345\362, \354\350\360! \312\340\352 \344\345\353\340?\n' >"$tmp/cyrillic.txt"
refused "another character set" "$tmp/cyrillic.txt" "iconv"
cp "$tmp/text.jsonl" "$tmp/records.txt"
refused "JSON lines under the name of text" "$tmp/records.txt" "add --format json"
cp "$tmp/array.json" "$tmp/array.txt"
refused "an array under the name of text" "$tmp/array.txt" "add --format json"
ends "--format json accepts the file" 0 run 0 ./dtrain-data --force -o "$tmp/b.h5" --format json "$tmp/records.txt"
is "as records" "$(field "$tmp/b.h5" documents)" 2
ends "--format text takes any bytes" 0 run 0 ./dtrain-data --force -o "$tmp/b.h5" --format text "$tmp/table.csv" "$tmp/records.txt" "$tmp/cyrillic.txt"
printf 'caf\351 au lait, na\357ve, r\351sum\351: text with a few letters of Latin-1\n' >"$tmp/latin.txt"
ends "a few stray bytes are still text" 0 run 0 ./dtrain-data --force -o "$tmp/b.h5" "$tmp/latin.txt"

# ---- held-out documents
seq 1 3000 | sed 's/^/document number /' >"$tmp/many.txt"
ends "a split" 0 run 0 ./dtrain-data --force -o "$tmp/train.h5" --validation "$tmp/valid.h5" --validation-fraction 0.1 --documents lines "$tmp/many.txt" "$tmp/many.txt"
n_train=$(field "$tmp/train.h5" documents) n_valid=$(field "$tmp/valid.h5" documents)
is "no document is lost" $((n_train + n_valid)) 6000
is "equal documents stay together" $((n_valid % 2)) 0
if [ "$n_valid" -gt 480 ] && [ "$n_valid" -lt 720 ]; then ok "about the fraction asked for"; else not_ok "about the fraction asked for" "$n_valid of 6000"; fi
cp "$tmp/valid.h5" "$tmp/again.h5"
run 0 ./dtrain-data --force -o "$tmp/train.h5" --validation "$tmp/valid.h5" --validation-fraction 0.1 --documents lines "$tmp/many.txt" "$tmp/many.txt"
expect "the same again" cmp "$tmp/valid.h5" "$tmp/again.h5"
ends "one document cannot be split" 65 run 0 ./dtrain-data --force -o "$tmp/train.h5" --validation "$tmp/valid.h5" --validation-fraction 0.1 "$tmp/many.txt"
expect_text "the error names the remedy" "paragraphs"
expect "files of before are kept" cmp "$tmp/valid.h5" "$tmp/again.h5"

# ---- recommendation data (what samples say: test_data_rec)
rec="--force --format minionerec --tokenizer tests/data/rec/qwen2"
run 0 ./dtrain-data $rec --index tests/data/rec/x.index.json --items tests/data/rec/x.item.json --max-length 512 -o "$tmp/r.h5" tests/data/rec/x.csv
expect_exit "rows of interactions" 0
expect_text "samples without a title are counted: two of a row, two each of two items" "6 records without any token to train on dropped"
is "kind and samples" "$(field "$tmp/r.h5" kind) $(field "$tmp/r.h5" samples)" "sft 26"
run 0 ./dtrain-data $rec --recipe rl --tasks sids-sid:2 --seed 7 --longest-only -o "$tmp/r.h5" tests/data/rec/x.csv
is "prompts of a sample of rows" "$(field "$tmp/r.h5" kind) $(field "$tmp/r.h5" samples)" "prompts 2"
run 0 ./dtrain-data $rec --recipe eval --template input/minionerec.json -o "$tmp/r.h5" tests/data/rec/x.csv
is "a prompt of evaluation, and its answer" "$(./dtrain-data show --tokenizer tests/data/rec/qwen2 "$tmp/r.h5" 1 | tail -n +2)" \
    'Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request. 

### Instruction:
Can you predict the next possible item that the user may expect?

### User Input: 
The user has interacted with items  in chronological order. Can you predict the next possible item that the user may expect?

### Response:

---- answer: 3 tokens
<a_3><b_1><c_2>
---- record
{"answer":"<a_3><b_1><c_2>","task":"sids-sid","user_id":"A2","item_title":"Bob'"'"'s screws\n(100)","item_id":"2","item_sid":"<a_3><b_1><c_2>"}'
{ cat tests/data/rec/x.csv && printf 'A9,[],x\r\n'; } >"$tmp/bad.csv"
ends_saying "a broken row" 65 'bad.csv:8: expected 7 fields as in the first line, found 3' run 0 ./dtrain-data $rec --recipe eval -o "$tmp/r.h5" "$tmp/bad.csv"
run 0 ./dtrain-data $rec --recipe eval --skip-bad -o "$tmp/r.h5" "$tmp/bad.csv"
is "a broken row is left out" "$code $(field "$tmp/r.h5" samples)" "0 5"
prints "rows without --format: what to do" '--format minionerec' run 0 ./dtrain-data --force -o "$tmp/r.h5" tests/data/rec/x.csv
echo '{"text": "x"}' >"$tmp/text.jsonl"
for option in --recipe=rl --index=x --items=x --tasks=x --category=x --longest-only --seed=9 --catalogue=x; do
    ends_saying "${option%=*} is for rows" 64 "${option%=*} needs --format minionerec" run 0 ./dtrain-data --force "$option" -o "$tmp/r.h5" "$tmp/text.jsonl"
done
cp tests/data/rec/x.index.json tests/data/rec/x.item.json input/minionerec.json "$tmp"
for input in x.index.json x.item.json minionerec.json; do
    run 0 ./dtrain-data $rec --recipe eval --index "$tmp/x.index.json" --items "$tmp/x.item.json" --template "$tmp/minionerec.json" --catalogue "$tmp/$input" -o "$tmp/r.h5" tests/data/rec/x.csv
    expect_exit "$input is not replaced by the catalogue" 64
done

# ---- looking
ends "no such sample" 64 run 0 ./dtrain-data show "$tmp/s.h5" 5
ends "info of another file" 65 run 0 ./dtrain-data info "$tmp/chat.jsonl"
if command -v h5dump >/dev/null; then
    prints "h5dump reads the attributes" '"dtrain-dataset"' run 0 h5dump -A "$tmp/s.h5"
else
    skip "h5dump reads the attributes" "no h5dump"
fi

# ---- disk full: simulated by a limit on the size of files
head -c 3000000 /dev/zero | tr '\0' 'x' >"$tmp/big.txt"
vision=tests/data/vision_data
mkdir "$tmp/large"
sed -E 's/: 8(,?)$/: 224\1/' $vision/model/preprocessor_config.json >"$tmp/large/preprocessor_config.json"
cp $vision/model/tokenizer*.json "$tmp/large" # no config.json, which says 8
large=(--tokenizer "$tmp/large" --images "$tmp/large" --image-tokens 4 --image-folder $vision)
record='{"image": "wide.ppm", "text": "<image>a"}'
yes "$record" | head -40 >"$tmp/large.jsonl" # 6 MB of pixels
echo old >"$tmp/full.h5"
ends "no room" 74 run 0 bash -c "ulimit -f 2000; exec ./dtrain-data --force -o '$tmp/full.h5' '$tmp/big.txt'"
is "no room: the old file is kept" "$(cat "$tmp/full.h5")" old
expect "no room: nothing else is left" test ! -e "$tmp/full.h5.part"
ends "no room for images" 74 run 0 bash -c 'ulimit -f 2000; exec ./dtrain-data --force "$@"' - -o "$tmp/full.h5" "${large[@]}" "$tmp/large.jsonl"
is "no room for images: the old file is kept" "$(cat "$tmp/full.h5")" old
expect "no room for images: nothing else is left" test ! -e "$tmp/full.h5.part"
if [ "$(id -u)" = 0 ] && mkdir "$tmp/disk" && mount -t tmpfs -o size=9m none "$tmp/disk" 2>/dev/null; then
    trap 'umount "$tmp/disk"; rm -rf "$tmp"' EXIT
    run 0 ./dtrain-data --force -o "$tmp/disk/d.h5" "$tmp/big.txt" # 6 MB aside fit, 6 MB more do not
    expect_exit "a full disk" 74
    expect "a full disk: nothing is left" test -z "$(ls -A "$tmp/disk")"
    ends "a disk full of images" 74 run 0 ./dtrain-data --force -o "$tmp/disk/d.h5" "${large[@]}" "$tmp/large.jsonl"
    expect "a disk full of images: nothing is left" test -z "$(ls -A "$tmp/disk")"
else
    skip "a full disk" "no file system can be mounted here"
fi

# ---- answers beyond the end of the sequence
echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}' >"$tmp/late.jsonl"
./dtrain-data -q --template chatml -o "$tmp/late.h5" "$tmp/late.jsonl"
run 0 ./dtrain --check /dev/null run.task=sft data.train="$tmp/late.h5" data.seq_len=16 run.output_dir="$tmp/late" batch.micro_batch_size=1 \
    model.model_type=llama model.hidden_size=32 model.num_attention_heads=4 model.num_hidden_layers=1 model.intermediate_size=64 model.vocab_size=257
expect_text "answers that seq_len cuts off are named" 'late.h5: no sample has a target within the first data.seq_len = 16 tokens'

full_only

# ---- images: the number of placeholders comes from the config.json next to the preprocessor, from the tower's, or from the option
pictures() { run 0 ./dtrain-data --force -o "$tmp/i.h5" --tokenizer $vision/model --template chatml "$@"; }
ends_saying "records with images" 0 "^8 images" pictures --images $vision/model $vision/records.jsonl
is "info counts them" "$(info "$tmp/i.h5" | grep '^images')" "images       8 of 8 x 8 pixels, each 4 tokens of id 292; in 6 samples, at most 2 in one"
mkdir "$tmp/tower" "$tmp/alone"
cp $vision/model/preprocessor_config.json "$tmp/tower"
cp $vision/model/{tokenizer,tokenizer_config}.json "$tmp/alone"
ends "the option overrides the model next to the tokenizer" 0 pictures --images "$tmp/tower" $vision/records.jsonl --image-tokens 3
is "the number of placeholders is that of the option" "$(field "$tmp/i.h5" images)" 8
expect "of the option" grep -q "each 3 tokens" <(info "$tmp/i.h5")
ends "no config.json that says how many placeholders an image has" 64 pictures --images "$tmp/tower" --tokenizer "$tmp/alone" $vision/records.jsonl
expect_text "the option is named" "^.*--image-tokens: expected the number of"
echo '{"model_type": "siglip_vision_model", "image_size": 8, "patch_size": 2}' >"$tmp/tower/config.json"
pictures --images "$tmp/tower" --tokenizer "$tmp/alone" $vision/records.jsonl
expect "of a tower its patches" grep -q "each 16 tokens" <(info "$tmp/i.h5")
sed -i 's/"image_size": 8/"image_size": 16/' "$tmp/tower/config.json"
ends "a preprocessor that is not the tower's" 65 pictures --images "$tmp/tower" --tokenizer "$tmp/alone" $vision/records.jsonl
expect_text "both sizes are said" "produces images of 8 pixels per side, but the model's tower takes 16"
echo '{"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model"}}' >"$tmp/tower/config.json" # as Google's SigLIP B/16 has it
echo '{"image_processor_type": "SiglipImageProcessor"}' >"$tmp/tower/preprocessor_config.json"
pictures --images "$tmp/tower" --tokenizer "$tmp/alone" $vision/records.jsonl
expect "of one that says nothing the usual ones" grep -q "224 x 224 pixels, each 196 tokens" <(info "$tmp/i.h5")
awk -v picture="$PWD/$vision/wide.ppm" 'BEGIN {
    printf "{\"text\": \"a\"}\n{\"images\": ["
    for (i = 0; i < 30000; i++) printf "%s\"%s\"", i ? ", " : "", picture
    printf "], \"prompt\": \""
    for (i = 0; i < 30000; i++) printf "<image>"
    printf "\", \"completion\": \"y\"}\n" }' >"$tmp/album.jsonl"
run 0 bash -c "ulimit -v 3000000; ./dtrain-data --force --threads 1 -o '$tmp/i.h5' --images '$tmp/tower' --tokenizer '$tmp/alone' '$tmp/album.jsonl'"
expect_exit "a record whose images take more memory than there is" 70
expect_text "is named by its line" "album.jsonl:2: out of memory for images of 4515840000 bytes"
echo '{"image": "gone.png", "text": "<image>"}' >"$tmp/gone.jsonl"
ends "an image missing from its record's folder" 65 pictures --images $vision/model "$tmp/gone.jsonl"
expect_text "the error names the option for the image folder" "gone.png: cannot be opened: No such file or directory; set the directory for relative image paths with --image-folder"
expect_text "the error names the option that drops records" "gone.png: .*--skip-bad drops records"
ends_saying "a missing preprocessor" 65 "not-here: cannot be opened" pictures --images "$tmp/not-here" --tokenizer "$tmp/alone" $vision/records.jsonl
ends_saying "a tokenizer without <image>" 64 "dtrain-convert --add-tokens" pictures --images $vision/model --tokenizer bytes $vision/records.jsonl
printf '{"images": ["%s", "%s"], "prompt": "<image><image>which?", "responses": ["a", "b", "c", "d"]}' "$PWD/$vision/wide.ppm" "$PWD/$vision/high.ppm" >"$tmp/rank.jsonl"
prints "records too long because of their images are reported" "is short enough: each image takes 4 tokens of --max-length" pictures --images $vision/model --max-length 3 "$tmp/rank.jsonl"
DTRAIN_FAULT=image.read:*:3:error prints "the images of a ranking are read once" "^12 images" pictures --images $vision/model "$tmp/rank.jsonl"
head -c 40 tests/data/image/files/cut.png | tee "$tmp/left.png" >"$tmp/wrong"
{ for i in one two three four five; do echo "{\"image\": \"$i.png\", \"text\": \"<image>\"}"; done
  for i in left.png wrong; do echo "{\"image\": \"$i\", \"text\": \"<image>\"}"; done
  echo "{\"image\": \"$PWD/$vision/wide.ppm\", \"text\": \"<image>a\"}"; } >"$tmp/many.jsonl"
pictures --skip-bad --image-folder "$tmp" --images $vision/model "$tmp/many.jsonl"
expect_text "missing images are counted as one reason" " 5 x cannot be opened: No such file.*first: $tmp/many.jsonl:1, $tmp/one.png\\)"
expect_text "truncated images are counted as another reason" " 2 x the image is cut short.*first: $tmp/many.jsonl:6, $tmp/left.png\\)"
DTRAIN_FAULT=image.read:*:1:error pictures --skip-bad --images $vision/model "$tmp/rank.jsonl"
expect_exit "a read error of the machine aborts and drops no record" 70
expect_text "the read error names the record" 'rank.jsonl:1: image.read: a fault'
pictures --images $vision/model $vision/records.jsonl
ends "a picture of images" 0 run 0 ./dtrain-info --images "$tmp/sheet.png" --n-images 5 "$tmp/i.h5"
expect_text "dtrain-info knows their form" "images       8 of 8 x 8 pixels, each 4 tokens of id 292"
printf '{"image": "sheet.png", "text": "<image>a"}' >"$tmp/sheet.jsonl" # read as an input: a PNG of 3 x 2 images with lines between
expect "the picture is one" ./dtrain-data -q --force -o "$tmp/s.h5" --images $vision/model --tokenizer $vision/model "$tmp/sheet.jsonl"
for name in sq-00000-of-00002.h5 sq-00001-of-00002.h5.part link.ppm; do # the last is a link to the first
    rm -f "$tmp"/sq-*
    cp $vision/wide.ppm "$tmp/sq-00000-of-00002.h5"
    cp $vision/wide.ppm "$tmp/sq-00001-of-00002.h5.part"
    ln -sf sq-00000-of-00002.h5 "$tmp/link.ppm"
    printf '{"image": "%s", "text": "<image>a"}\n{"image": "%s/high.ppm", "text": "<image>b"}\n' "$name" "$PWD/$vision" >"$tmp/sq.jsonl"
    run 0 ./dtrain-data --force --shards 2 -o "$tmp/sq.h5" --images $vision/model --tokenizer $vision/model "$tmp/sq.jsonl"
    expect_exit "an image where a shard would come, $name" 64
    expect_text "is named, $name" "sq-0000.-of-00002.h5(.part)?: is an input \\($tmp/$name\\)"
    expect "the input is unchanged, $name" cmp "$tmp/$name" $vision/wide.ppm
done
rm -f "$tmp"/sq-* "$tmp/link.ppm"
mkdir -p "$tmp/folder"
echo text >"$tmp/two.txt"
for other in "$tmp/folder/../one.h5" "$tmp/./one.h5"; do
    ends "two outputs that are one file in another spelling" 64 run 0 ./dtrain-data --validation "$other" --validation-fraction 0.5 -o "$tmp/one.h5" "$tmp/two.txt"
done
for other in "$tmp/new.d/one.h5" "$tmp/new.d/./one.h5"; do
    ends "two outputs that are one file in a new folder" 64 run 0 ./dtrain-data --validation "$other" --validation-fraction 0.5 -o "$tmp/new.d/one.h5" "$tmp/two.txt"
    rm -rf "$tmp/new.d"
done
for other in "$tmp/one-00001-of-00002.h5" "$tmp/folder/../one-00007-of-00009.h5"; do
    for how in "--shards 2" "--shard-size 4"; do
        run 0 ./dtrain-data $how --validation "$other" --validation-fraction 0.5 -o "$tmp/one.h5" "$tmp/two.txt"
        expect_exit "a validation file with the name of a shard, $how" 64
    done
    run 0 ./dtrain-data $rec --shards 2 --index tests/data/rec/x.index.json --items tests/data/rec/x.item.json --catalogue "$other" -o "$tmp/one.h5" tests/data/rec/x.csv
    expect_exit "a catalogue with the name of a shard" 64
    expect_text "a catalogue with the name of a shard: why" "this name matches the shards of the output .*one.h5"
done
for other in one-00001-of-002.h5 two-00001-of-00002.h5 one-00001-of-00002 folder/one-00001-of-00002.h5 one-x-of-00002.h5; do
    run 0 ./dtrain-data --force --shards 2 --documents lines --validation "$tmp/$other" --validation-fraction 0.5 -o "$tmp/one.h5" "$tmp/many.txt"
    expect_exit "another name: $other" 0
done
cp "$tmp/i.h5" "$tmp/same.h5"
ends "an image sheet that would overwrite its dataset" 64 run 0 ./dtrain-info --images "$tmp/same.h5" "$tmp/same.h5"
expect "the dataset is left alone" cmp -s "$tmp/i.h5" "$tmp/same.h5"
is "the image sheet has the expected size" "$(od -An -tu1 -j16 -N8 "$tmp/sheet.png" | tr -s ' ')" " 0 0 0 32 0 0 0 22"
ends "--images for a dataset without images" 64 run 0 ./dtrain-info --images "$tmp/sheet.png" "$tmp/late.h5"

# ---- progress: what is done, while the input still comes; 55 images of 224 pixels are a set
expect "a terminal sees images go by" python3 - "$record" ./dtrain-data --force -o "$tmp/seen.h5" --format json "${large[@]}" - <<'PY'
import os, pty, re, select, subprocess, sys, time
record, command = sys.argv[1].encode() + b"\n", sys.argv[2:]
terminal, theirs = pty.openpty()
job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs)
os.close(theirs)
seen, end = b"", time.time() + 60
def read_on():
    global seen
    try:
        some = os.read(terminal, 4096) if select.select([terminal], [], [], 0.2)[0] else None
    except OSError:  # the other side is closed
        some = b""
    seen += some or b""
    return some != b"" and time.time() < end
job.stdin.write(record * 60)
job.stdin.flush()
while not re.search(rb"\r[^\r]*\b55 documents  55 images  [0-9]+ tokens  [^\r]*/s", seen):
    assert read_on(), seen
job.stdin.close()
while read_on():
    pass
told = job.stdout.read()
assert job.wait() == 0 and seen.endswith(b"\r\033[K") and b"\n60 images" in told, (seen, told)  # and leave its line
PY
run 0 ./dtrain-data -q --force -o "$tmp/seen.h5" "${large[@]}" "$tmp/large.jsonl"
is "with -q nothing does" "$code $(grep -c '40 images.*/s' "$out")" "0 0"

# ---- stopped and killed while an old file has the output's name
stopped() { # NAME SIGNAL LINE ARGS...: a dataset of lines without end
    local name=$1 signal=$2 line=$3 pid
    shift 3
    echo old >"$tmp/stopped/x.h5"
    yes "$line" | ./dtrain-data --force -q -o "$tmp/stopped/x.h5" "$@" - >"$out" 2>&1 &
    pid=$!
    sleep 1
    kill "-$signal" $pid
    wait $pid 2>/dev/null
    is "$name: the exit status is that of the signal" $? $((128 + $(kill -l "$signal")))
    is "$name: only the old file remains" "$(ls -A "$tmp/stopped") $(cat "$tmp/stopped/x.h5")" "x.h5 old"
}
mkdir "$tmp/stopped"
stopped "texts, SIGTERM" TERM "a document without end" --documents lines
stopped "images, SIGTERM" TERM "$record" --format json "${large[@]}"
stopped "images, SIGKILL" KILL "$record" --format json "${large[@]}"
DTRAIN_FAULT=data.publish:0:1:stop ./dtrain-data -q -o "$tmp/both.h5" "$tmp/lines.txt" &
wait_for grep -q '^State:.T' /proc/$!/status
ends "a dataset that another process writes" 74 run 0 ./dtrain-data -q --force -o "$tmp/both.h5" README.md
expect_text "is named" 'both.h5.part: another process is writing this output'
kill -CONT $! && wait $!
is "the first writer completes its dataset" "$? $(field "$tmp/both.h5" tokens) $(cd "$tmp" && echo both*)" "0 44 both.h5"
DTRAIN_FAULT=data.publish:0:1:kill ./dtrain-data -q --force -o "$tmp/both.h5" "$tmp/lines.txt" 2>/dev/null
expect "a killed process leaves its file" test -e "$tmp/both.h5.part"
ends "the next run replaces it" 0 run 0 ./dtrain-data -q --force -o "$tmp/both.h5" "$tmp/lines.txt"
is "and leaves only the dataset" "$(cd "$tmp" && echo both*)" both.h5
idle() { # NAME INPUT: nothing comes, and one signal is enough; fd 3 is the standard input
    local pid
    ./dtrain-data -q -o "$tmp/idle.h5" "$2" <&3 >"$out" 2>&1 &
    pid=$!
    sleep 1
    kill -TERM $pid
    timeout 10 tail --pid=$pid -f /dev/null || kill -KILL $pid
    wait $pid 2>/dev/null
    is "$1: the first signal ends it" $? $((128 + $(kill -l TERM)))
    expect "$1: no output" test ! -e "$tmp/idle.h5" -a ! -e "$tmp/idle.h5.part"
}
mkfifo "$tmp/stdin.fifo" "$tmp/idle.fifo" "$tmp/half.fifo" "$tmp/late.fifo"
exec 3<>"$tmp/stdin.fifo" 4<>"$tmp/half.fifo"
printf '\xef\xbb' >&4
idle "a standard input that stays silent" -
idle "a pipe without a writer" "$tmp/idle.fifo"
idle "a pipe that has only a part of a byte order mark" "$tmp/half.fifo"
exec 3>&- 4>&-
(sleep 0.5; printf '\xef'; sleep 0.2; printf '\xbb\xbfa'; sleep 0.2; echo b) >"$tmp/late.fifo" &
run 0 ./dtrain-data -q -o "$tmp/idle.h5" "$tmp/late.fifo"
is "a slow pipe is read to its end" "$code $(field "$tmp/idle.h5" tokens)" "0 4"

# The tokenizer's own chat template is evaluated as it is; a name overrides it.
mkdir "$tmp/own"
cp tests/data/tokenizer/smollm/tokenizer.json "$tmp/own"
# shellcheck disable=SC2016
echo "{% for m in messages %}{{ '<|im_start|>' + m.role + '~' + m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant~' }}{% endif %}" >"$tmp/own/chat_template.jinja"
echo '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}' >"$tmp/one-chat.jsonl"
ends "a chat template of the tokenizer's own" 0 run 0 ./dtrain-data -o "$tmp/own.h5" --tokenizer "$tmp/own" "$tmp/one-chat.jsonl"
expect_text "its file is reported" "chat template: $tmp/own/chat_template.jinja$"
is "its text is written, and its answers are trained on" "$(./dtrain-data show --tokenizer "$tmp/own" "$tmp/own.h5" 0 | tail -1)" '<|im_start|>user~q<|im_end|><|im_start|>assistant~{+a<|im_end|>+}'
prints "the dataset stores it" '^template +\{"jinja":' run 0 ./dtrain-data info "$tmp/own.h5"
ends "a template can be named instead" 0 run 0 ./dtrain-data --force -o "$tmp/own.h5" --tokenizer "$tmp/own" --template chatml "$tmp/one-chat.jsonl"
expect_text "the template is reported" "chat template: chatml \(by name\)$"

# Tools: records as MedicalGPT has them, and OpenAI's, in every kind. Calls are targets, results are not.
cat >"$tmp/tools.jinja" <<'END'
{% for t in tools or [] %}T {{ t.function.name }}
{% endfor %}
{% for m in messages %}
<|im_start|>{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant {% endif %}
END
tool='{"name": "f", "parameters": {}}' call='{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"name": "g", "arguments": {}}]}'
asked='{"role": "user", "content": "q"}' result='{"role": "tool", "content": "r"}' said='{"role": "assistant", "content": "x"}'
with_tools() { # NAME KIND RECORD SHOWN
    echo "$3" >"$tmp/tools.jsonl"
    ends "tools: $1" 0 run 0 ./dtrain-data --force -o "$tmp/tools.h5" --kind "$2" --tokenizer tests/data/tokenizer/smollm --template "$tmp/tools.jinja" "$tmp/tools.jsonl"
    is "tools: the text of $1" "$(./dtrain-data show --tokenizer tests/data/tokenizer/smollm "$tmp/tools.h5" 0 | sed 1d | tr '\n' ' ' | sed 's/ *$//')" "$4"
}
with_tools "a glaive-style record" sft '{"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"}, {"from": "observation", "value": "r"}, {"from": "gpt", "value": "x"}], "tools": "[{\"name\": \"f\", \"parameters\": {}}]"}' \
    'T f <|im_start|>user q<|im_end|> <|im_start|>assistant {+(f {"a": 1})<|im_end|>+} <|im_start|>tool r<|im_end|> <|im_start|>assistant {+x<|im_end|>+}'
with_tools "OpenAI's messages" sft '{"messages": ['"$asked, $call, $result, $said"'], "tools": ['"$tool"']}' 'T f <|im_start|>user q<|im_end|> <|im_start|>assistant {+(f {"a": 1})(g {})<|im_end|>+} <|im_start|>tool r<|im_end|> <|im_start|>assistant {+x<|im_end|>+}'
with_tools "a completion" sft '{"prompt": ['"$asked"'], "completion": ['"$call, $result, $said"'], "tools": ['"$tool"']}' 'T f <|im_start|>user q<|im_end|> <|im_start|>assistant {+(f {"a": 1})(g {})<|im_end|>+} <|im_start|>tool r<|im_end|> <|im_start|>assistant {+x<|im_end|> +}'
with_tools "a preference" preference '{"prompt": ['"$asked, $call, $result"'], "chosen": ['"$said"'], "rejected": ['"$call"'], "tools": ['"$tool"']}' '---- chosen: 57 tokens, 54 of them prompt T f <|im_start|>user q<|im_end|> <|im_start|>assistant (f {"a": 1})(g {})<|im_end|> <|im_start|>tool r<|im_end|> <|im_start|>assistant {+x<|im_end|> +} ---- rejected: 73 tokens, 54 of them prompt T f <|im_start|>user q<|im_end|> <|im_start|>assistant (f {"a": 1})(g {})<|im_end|> <|im_start|>tool r<|im_end|> <|im_start|>assistant {+(f {"a": 1})(g {})<|im_end|> +}'
with_tools "an unpaired answer" unpaired '{"prompt": ['"$asked"'], "completion": ['"$call"'], "label": true, "tools": ['"$tool"']}' 'label true T f <|im_start|>user q<|im_end|> <|im_start|>assistant {+(f {"a": 1})(g {})<|im_end|> +}'
with_tools "a prompt" prompts '{"prompt": ['"$asked, $call, $result"'], "tools": ['"$tool"']}' 'T f <|im_start|>user q<|im_end|> <|im_start|>assistant (f {"a": 1})(g {})<|im_end|> <|im_start|>tool r<|im_end|> <|im_start|>assistant  ---- record {"tools":[{"name":"f","parameters":{}}]}'
ends "tools for a template without them" 0 run 0 ./dtrain-data --force -o "$tmp/tools.h5" "$tmp/tools.jsonl"
expect_text "tools that become text are reported" "the tools of 1 record written into the system message"
expect_text "calls, too" "1 message with tool calls written as plain text"


# Messages that a template does not write, and prompts without thoughts.
echo "{% for m in messages if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ ' off' if enable_thinking is defined and not enable_thinking }}{% endif %}" >"$tmp/own/chat_template.jinja"
echo '{"messages": [{"role": "system", "content": "be brief"}, '"$asked"', {"role": "assistant", "content": "call"}, {"role": "tool", "content": "1 x"}, '"$said"']}' >"$tmp/lost.jsonl"
prints "a system message and a result that the template leaves out are counted" "warning: the chat template leaves out 2 messages of the roles system, user or tool" run 0 ./dtrain-data --force -o "$tmp/own.h5" --tokenizer "$tmp/own" "$tmp/lost.jsonl"
run 0 ./dtrain-data --force -o "$tmp/own.h5" --tokenizer "$tmp/own" "$tmp/one-chat.jsonl"
expect "written ones are not" sh -c "! grep -q 'leaves out' '$out'"
echo '{"prompt": ['"$asked"']}' >"$tmp/think.jsonl"
for option in "" --no-think; do
    # shellcheck disable=SC2086
    run 0 ./dtrain-data --force -o "$tmp/own.h5" --kind prompts $option --tokenizer "$tmp/own" "$tmp/think.jsonl"
    is "the end of a prompt: ${option:-thoughts may begin}" "$(./dtrain-data show --tokenizer "$tmp/own" "$tmp/own.h5" 0 | grep -c 'assistant off')" "$([ -z "$option" ]; echo $?)"
done
ends "--no-think with chats is refused" 64 run 0 ./dtrain-data --force -o "$tmp/own.h5" --no-think --tokenizer "$tmp/own" "$tmp/one-chat.jsonl"
expect_text "with the kind" "--no-think needs datasets of kind prompts, but these inputs give kind sft"

echo '{% for m in messages %}' >"$tmp/own/chat_template.jinja"
ends "a template with an error is refused" 64 run 0 ./dtrain-data --force -o "$tmp/own.h5" --tokenizer "$tmp/own" "$tmp/one-chat.jsonl"
expect_text "the line is named" "chat_template.jinja: line 1: expected "
e2e_done
