#!/bin/bash
# e2e_sid.sh - dtrain-sid: the same SIDs on any number of ranks and from either kind of file, and what is said of input that is wrong.
. "$(dirname "$0")/e2e.sh"
data=tests/data/sid
sid() { run "$1" ./dtrain-sid --embeddings $data/items.npy --items $data/items.item.json --codes 16 --block-size 64 "${@:2}"; }

# ---- k-means: ranks, files
for method in kmeans balanced; do
    sid 1 --method $method -o "$tmp/$method" --distinct
    expect_exit "$method on one rank" 0
    for np in 2 3; do # 5 blocks: some ranks have one less
        sid $np --method $method -o "$tmp/$method.$np" --distinct
        expect "$method on $np ranks: the same index" cmp "$tmp/$method.index.json" "$tmp/$method.$np.index.json"
        expect "$method on $np ranks: the same info file" cmp "$tmp/$method.txt" "$tmp/$method.$np.txt"
    done
done
run 0 ./dtrain-sid --embeddings $data/items.h5 --codes 16 --block-size 64 -o "$tmp/h5" --distinct
expect "of HDF5, fp64 and compressed: the same index" cmp "$tmp/kmeans.index.json" "$tmp/h5.index.json"
expect "without items there is no info file" test ! -e "$tmp/h5.txt"
expect "an item a line" test "$(grep -cE '^"[0-9]+": \["<a_[0-9]+>", "<b_[0-9]+>", "<c_[0-9]+>"\],?$' "$tmp/kmeans.index.json")" = 300
expect "ids that are numbers come in their order" cmp <(cut -f3 "$tmp/kmeans.txt") <(seq 0 299)
expect "a tab in a title is a blank" grep -qE $'^<a_[0-9]+><b_[0-9]+><c_[0-9]+>\tA title with a tab\t3$' "$tmp/kmeans.txt"
expect "with free codes no two items share a SID" test -z "$(cut -f1 "$tmp/balanced.txt" | sort | uniq -d)"
sid 0 --method balanced -o "$tmp/sizes" --sinkhorn-rounds 0
for l in a b c; do
    expect "balanced: 18 or 19 items a code on level $l" \
        sh -c "grep -oE '<${l}_[0-9]+>' '$tmp/sizes.txt' | sort | uniq -c | awk '\$1 != 18 && \$1 != 19 { bad = 1 } END { exit bad || NR != 16 }'"
done
expect_text "collisions before and after" '^collisions: 0\.[0-9]+ of the items before, 0\.[0-9]+ after 0 rounds'

# ---- what is wrong
export DTRAIN_LOG=warn
bad="./dtrain-sid -o $tmp/bad --codes 16"
sid 0 -o "$tmp/kmeans"
expect_exit "a file that is there is not replaced" 64
wrong "no embeddings" 64 'expected --embeddings FILE' ./dtrain-sid -o "$tmp/bad"
wrong "an unknown method" 64 "expected .*kmeans.* found 'x'" $bad --embeddings $data/items.npy --method x
head -c 10000 $data/items.npy >"$tmp/short.npy"
wrong "an array that was cut short" 65 'short.npy: cut short: 300 x 12' $bad --embeddings "$tmp/short.npy"
echo 'a text that is long enough' >"$tmp/text.npy"
wrong "no array at all" 65 'text.npy: neither a NumPy array' $bad --embeddings "$tmp/text.npy"
wrong "an array that is not there" 65 'items.h5: has no array `x`' $bad --embeddings $data/items.h5 --array x
cp $data/items.npy "$tmp/nan.npy" && printf '\0\0\300\177' | dd of="$tmp/nan.npy" bs=1 seek=$((128 + 4 * (12 * 200 + 3))) conv=notrunc status=none
wrong "a number that is none" 65 'nan.npy: row 200, column 3 \(from 0\): expected a finite number, found nan' $bad --embeddings "$tmp/nan.npy"
wrong "fewer items than codes" 65 '300 items cannot have 512 different codes' ./dtrain-sid -o "$tmp/bad" --codes 512 --embeddings $data/items.npy
echo '{"0": {"title": "a"}, "2": {"title": "b"}}' >"$tmp/hole.json"
wrong "an id that is missing" 65 'hole.json: has no item 1; ids' $bad --embeddings $data/items.npy --items "$tmp/hole.json"
echo '{"x": {"title": "a"}, "y": {"title": "b"}}' >"$tmp/two.json"
wrong "items without embeddings" 65 'two.json has 2 items and .*items.npy 300 rows' $bad --embeddings $data/items.npy --items "$tmp/two.json"
printf '{"0": {"title": "a"},\n "1": {"title": }}' >"$tmp/broken.json"
wrong "items that are no JSON" 65 'broken.json:2:17: ' $bad --embeddings $data/items.npy --items "$tmp/broken.json"
echo '{"0": {"title": {"a": 1}}}' >"$tmp/object.json"
wrong "a title that is no text" 65 'object.json: item 0: `title`: expected a text' $bad --embeddings $data/items.npy --items "$tmp/object.json"
expect "nothing was written" sh -c "! ls '$tmp'/bad* 2>/dev/null"

# ---- a rank that fails alone
for point in sid.read sid.kmeans; do
    export DTRAIN_FAULT=$point:1:2:error
    RUN_TIMEOUT=60 wrong "a fault at $point on one rank" 70 "injected|fault" $bad --embeddings $data/items.npy --block-size 32
    unset DTRAIN_FAULT
done
e2e_done
