#!/bin/bash
# e2e_parquet.sh - Parquet files as inputs of dtrain-data. Datasets match those from the same records as JSON lines, in text, lists, structs
# and images. Invalid rows and files are named; a missing DuckDB library is reported.
. "$(dirname "$0")/e2e.sh"
data=tests/data/parquet model=tests/data/vision_data/model
make() { # OUT ARGS...
    local to=$tmp/$1
    shift
    run 0 ./dtrain-data -q --force --tokenizer $model -o "$to" "$@"
}
refused() { # NAME REGEX ARGS...
    local name=$1 why=$2
    shift 2
    rm -f "$tmp/refused.h5"
    ends_saying "$name" 65 "$why" make refused.h5 "$@"
    expect "$name: no output" test ! -e "$tmp/refused.h5"
}

# ---- without the library
library=${DTRAIN_DUCKDB-}
export DTRAIN_DUCKDB=$tmp/nothing.so
refused "no library" "chats.parquet: reading Parquet needs DuckDB's library: .*nothing.so: .*set DTRAIN_DUCKDB .*JSON lines" $data/chats.parquet
printf 'PAR1\025\004\025' >"$tmp/table.txt"
refused "known by its first bytes" "table.txt: reading Parquet needs" "$tmp/table.txt"
ends_saying "a pipe" 65 "found a Parquet file; pass it by name" run 0 bash -c "cat $data/chats.parquet | ./dtrain-data -q --format json -o $tmp/refused.h5 -"
echo '{"text": "<image>", "image": {"bytes_of_row": "\u00010+10"}}' >"$tmp/line.jsonl"
refused "a line that speaks of a row's bytes" 'line.jsonl:1: .*: cannot be opened' --images $model "$tmp/line.jsonl"
ends "as text it is text" 0 make text.h5 --format text "$tmp/table.txt"
prints "--version reports that DuckDB is missing" '^Parquet: not available \(.*nothing.so' run 0 ./dtrain-data --version
if [ -n "$library" ]; then export DTRAIN_DUCKDB=$library; else unset DTRAIN_DUCKDB; fi
if ! ./dtrain-data --version | grep -q '^Parquet: DuckDB v'; then
    skip parquet "no libduckdb.so (DTRAIN_DUCKDB names it)"
    e2e_done
    exit
fi

# ---- the records of JSON lines
like_lines() { # NAME ARGS...: the same dataset
    local name=$1
    shift
    ends "$name as JSON lines" 0 make lines.h5 "$@" $data/"$name".jsonl
    ends "$name as Parquet" 0 make table.h5 "$@" $data/"$name".parquet
    expect "$name: the same dataset" cmp "$tmp/lines.h5" "$tmp/table.h5"
}
for name in chats preferences prompts texts; do like_lines $name; done
for name in anyllm llava images parts image_prompts dated; do like_lines $name --images $model; done
like_lines anyllm --images $model --captions

# ---- many files, names, numbers of threads
mkdir "$tmp/folder" "$tmp/kind=text"
for n in 1 2; do cp $data/chats.parquet "$tmp/folder/$n.parquet"; done
cp $data/chats.jsonl "$tmp/folder/3.jsonl"
make folder.h5 --threads 3 "$tmp/folder"
make lines.h5 --threads 1 $data/chats.jsonl $data/chats.jsonl $data/chats.jsonl
expect "a folder, in order" cmp "$tmp/lines.h5" "$tmp/folder.h5"
cp $data/texts.parquet "$tmp/kind=text/te*.parquet"
cp $data/prompts.parquet "$tmp/kind=text/tea.parquet"
make named.h5 "$tmp/kind=text/te*.parquet"
make lines.h5 $data/texts.jsonl
expect "a name is no pattern" cmp "$tmp/lines.h5" "$tmp/named.h5"
run 0 ./dtrain-data --force --tokenizer $model -o "$tmp/table.h5" $data/texts.parquet
expect_text "its bytes are counted" "^$(awk -v n="$(stat -c %s $data/texts.parquet)" 'BEGIN { printf "%.2f", n / 1024 }') KiB read"

# ---- columns of other types
ends "columns of all types" 0 run 0 ./dtrain-data -q --force --kind prompts -o "$tmp/types.h5" $data/types.parquet
values='"text":"one","date":"2026-01-02","time":"2026-01-02 03:04:05","price":1234\.5,"map":"\{a=1\}","times":\["2026-01-02 03:04:05"\],"key":"k","u64":1\.8446744073709552e19,"f32":0\.10000000100000001,"a \\"b\\"":-3\}'
expect "their values" grep -aqE "$values" "$tmp/types.h5"

# ---- rows that are wrong
refused "a row without messages" 'bad.parquet:2: messages: expected a list' --images $model $data/bad.parquet
refused "images without --images" 'anyllm.parquet:1: image_bytes: .*--images' $data/anyllm.parquet
refused "bytes instead of a text" 'text_is_bytes.parquet:1: text: expected a text' $data/text_is_bytes.parquet
refused "other columns" 'no_records.parquet:1: .*found the keys: query, n' $data/no_records.parquet
refused "no rows" 'no document' $data/no_rows.parquet
ends "bad rows are left out" 0 make skipped.h5 --skip-bad --images $model $data/bad.parquet
for why in '1 x messages: expected a list.*:2\)' '1 x bytes of an image: the image is cut short.*:3\)' '1 x the text has 1 <image>, but the record has no image.*:4\)' '1 x bytes of an image: .*:5\)'; do
    expect_text "bad rows are counted: $why" "$why"
done

# ---- files that are wrong
for n in 0 3 100 $(($(stat -c %s $data/llava.parquet) - 1)); do
    head -c "$n" $data/llava.parquet >"$tmp/cut.parquet"
    refused "cut at $n bytes" 'cut.parquet: cannot be read as Parquet: ' --images $model "$tmp/cut.parquet"
done
cp $data/chats.jsonl "$tmp/text.parquet"
refused "text of that name" 'text.parquet: cannot be read as Parquet: .*magic' "$tmp/text.parquet"
# the last row group alone is damaged: what was read before it does not count
{ head -c 1500 $data/chats.parquet; printf 'damaged here'; tail -c +1513 $data/chats.parquet; } >"$tmp/damaged.parquet"
refused "damaged" 'damaged.parquet: cannot be read as Parquet after row [1-9]' "$tmp/damaged.parquet"

e2e_done
