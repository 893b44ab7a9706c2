#!/bin/bash
# e2e_amazon.sh - dumps of Amazon's reviews: the items and rows that MiniOneRec's rules select, whose SIDs come from an index.
. "$(dirname "$0")/e2e.sh"
command -v python3 >/dev/null || { skip "Amazon's reviews" "no python3 to select them by MiniOneRec's rules"; exit 0; }
rec=tests/data/rec
for year in 2018 2023; do
    mkdir "$tmp/$year"
    python3 tests/amazon_rules.py make "$tmp/$year" $year
    for how in "2016-10 2018-11 0" "2018-01 2018-11 30" "1996-10 2017-03 0"; do
        read -r from to least <<<"$how"
        ends "$year: reviews from $from to $to, at least $least items" 0 run 0 ./dtrain-data --format amazon --items "$tmp/$year/meta.json" --from "$from" --to "$to" \
            --min-items "$least" -o "$tmp/$year/out" --force "$tmp/$year/reviews.json"
        expect "the items and rows of MiniOneRec's rules" sh -c 'python3 tests/amazon_rules.py compare "$@" >"$0"' "$tmp/numbers" "$tmp/$year" $year "$tmp/$year/out" "$from" "$to" "$least"
        read -r reviews users items train valid test <"$tmp/numbers"
        expect_text "their numbers" "; $reviews left, of $users users and $items items"
        expect_text "of rows, too" "rows: $train train, $valid valid, $test test"
    done
done
small=(--epochs 2 --hidden 8 --codes 4 --block-size 64 --distinct)
ends "SIDs of the items" 0 run 0 ./dtrain-sid --model tests/data/sid/model --tokenizer bytes --items "$tmp/2018/out.item.json" -o "$tmp/2018/out" --max-length 60 --method kmeans "${small[@]}"

# ---- rows without SIDs
python3 - $rec/x.csv "$tmp/bare.csv" <<'PY'
import csv, sys
rows = list(csv.reader(open(sys.argv[1], newline="", encoding="utf-8-sig")))
keep = [i for i, name in enumerate(rows[0]) if not name.endswith("_sid")]
csv.writer(open(sys.argv[2], "w", newline="")).writerows([[row[i] for i in keep] for row in rows])
PY
make="./dtrain-data --format minionerec --tokenizer $rec/qwen2 --index $rec/x.index.json --items $rec/x.item.json"
for recipe in sft rl; do
    run 0 $make --recipe $recipe -o "$tmp/whole.h5" --force $rec/x.csv
    ends "$recipe: rows without SIDs" 0 run 0 $make --recipe $recipe -o "$tmp/bare.h5" --force "$tmp/bare.csv"
    expect "are those with them" h5diff "$tmp/whole.h5" "$tmp/bare.h5" /tokens /tokens
done
python3 - "$tmp/bare.csv" "$tmp/unknown.csv" <<'PY'
import csv, sys
rows = list(csv.reader(open(sys.argv[1], newline="")))
rows[1][rows[0].index("item_id")] = "170"
csv.writer(open(sys.argv[2], "w", newline="")).writerows(rows)
PY
ends "an item that the index lacks" 65 run 0 $make -o "$tmp/bad.h5" "$tmp/unknown.csv"
expect_text "is named" 'item_id: "170" is not an item of .*x.index.json'
ends "rows without SIDs and index" 65 run 0 ./dtrain-data --format minionerec --tokenizer $rec/qwen2 --tasks sids-sid -o "$tmp/bad.h5" "$tmp/bare.csv"
expect_text "need a column" 'including history_item_sid'

# ---- errors
amazon="./dtrain-data --format amazon --items $tmp/2018/meta.json -o $tmp/bad"
echo '{"asin": "B001"}' >"$tmp/short.json"
ends "a record without user" 65 run 0 $amazon "$tmp/short.json"
expect_text "is named" 'short.json:1: expected a review with reviewerID, asin and unixReviewTime'
for time in '""' 1e300 '"12x"' null; do
    echo '{"reviewerID": "U", "asin": "B001", "unixReviewTime": '"$time"'}' >"$tmp/time.json"
    ends_saying "the time $time" 65 'time.json:1: expected a review with' run 0 $amazon "$tmp/time.json"
done
ends "malformed records can be skipped" 0 run 0 $amazon --skip-bad "$tmp/short.json" "$tmp/2018/reviews.json"
expect_text "and are counted" 'skipped 1 malformed record$'
ends "existing files" 64 run 0 $amazon "$tmp/2018/reviews.json"
expect_text "are not replaced" 'bad.train.csv'
touch "$tmp/late.item.json"
ends_saying "an existing file of items" 64 'late.item.json: exists' run 0 $amazon -o "$tmp/late" "$tmp/2018/reviews.json"
expect "is reported before others are written" [ ! -e "$tmp/late.train.csv" ]
cp "$tmp/2018/meta.json" "$tmp/self.item.json"
ends_saying "the dump of the items" 64 'self.item.json: is an input' run 0 $amazon --items "$tmp/self.item.json" -o "$tmp/self" --force "$tmp/2018/reviews.json"
ends "too high a limit" 65 run 0 $amazon --force --k-core 5000 "$tmp/2018/reviews.json"
expect_text "is reported" 'no user and item has 5000 reviews in this period; lower --k-core'
ends "a month" 64 run 0 $amazon --force --from 2016-13 "$tmp/2018/reviews.json"
expect_text "has a form" '\-\-from: expected a month such as 2016-10, found 2016-13'
ends_saying "a month with a blank" 64 '\-\-from: expected a month' run 0 $amazon --force --from ' 2016-10' "$tmp/2018/reviews.json"
ends "no items" 64 run 0 ./dtrain-data --format amazon -o "$tmp/bad" --force "$tmp/2018/reviews.json"
expect_text "are asked for" 'expected the dump of the items'
ends "another format" 64 run 0 ./dtrain-data --k-core 3 -o "$tmp/bad.h5" "$tmp/2018/reviews.json"
expect_text "has no k-core" '\-\-k-core needs --format amazon'
gzip -k "$tmp/2018/reviews.json"
ends "a compressed dump" 65 run 0 $amazon --force "$tmp/2018/reviews.json.gz"
expect_text "is refused with a command" 'reviews.json.gz: .* compressed with gzip; pass its contents on standard input'
ends "which works" 0 run 0 sh -c "gzip -dc '$tmp/2018/reviews.json.gz' | $amazon --force -"
cp "$tmp/bad.test.csv" "$tmp/piped.csv"
run 0 $amazon --force "$tmp/2018/reviews.json"
expect "and gives the same" cmp "$tmp/bad.test.csv" "$tmp/piped.csv"
ends "items from standard input" 64 run 0 ./dtrain-data --format amazon --items - -o "$tmp/bad" --force "$tmp/2018/reviews.json"
expect_text "cannot be read twice" 'items: expected a file, which is read twice'
e2e_done
