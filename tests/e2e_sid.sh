#!/bin/bash
# e2e_sid.sh - dtrain-sid: the SIDs do not depend on the number of ranks or the kind of input file; messages about invalid input.
# QUICK:
. "$(dirname "$0")/e2e.sh"
data=tests/data/sid
sid() { run "$1" ./dtrain-sid --embeddings $data/items.npy --items $data/items.item.json --codes 16 --block-size 64 "${@:2}"; }

# ---- ranks, files
small="--hidden 16,8 --dim 4 --epochs 30 --warmup-epochs 3 --batch-size 160 --evaluate-every 10" # two steps an epoch, of 3 blocks
plus="${small/--dim 4 /}"
for method in kmeans balanced "rqvae $small" "kmeans+ $plus"; do
    set -- $method
    ends "$1 on one rank" 0 sid 1 --method $method -o "$tmp/$1" --distinct
    for np in 2 3; do # 5 blocks: some ranks have one less
        sid $np --method $method -o "$tmp/$1.$np" --distinct
        expect "$1 on $np ranks: the same index" cmp "$tmp/$1.index.json" "$tmp/$1.$np.index.json"
        expect "$1 on $np ranks: the same info file" cmp "$tmp/$1.txt" "$tmp/$1.$np.txt"
    done
done
for seed in 1 2; do
    DTRAIN_DEVICE=queue DTRAIN_QUEUE_SEED=$seed sid 2 --method rqvae $small -o "$tmp/queue$seed" --distinct
    expect "streams that run late, order $seed: the same index" cmp "$tmp/rqvae.index.json" "$tmp/queue$seed.index.json"
done
sid 1 --method rqvae $small -o "$tmp/again" --force
awk '/^epoch/ { sub(/,/, "", $4); print $4 }' "$out" >"$tmp/losses"
expect "the loss of an RQ-VAE falls" awk 'NR > 1 && $1 >= last { bad = 1 } { last = $1 } END { exit bad || NR != 3 }' "$tmp/losses"
sid 1 --method kmeans+ $plus --lr 1e-3 -o "$tmp/again" --force
awk '/^epoch/ { sub(/,/, "", $4); print $4 }' "$out" >"$tmp/losses"
expect "the loss of RQ-Kmeans+ falls" awk 'NR > 1 && $1 >= last { bad = 1 } { last = $1 } END { exit bad || NR != 3 }' "$tmp/losses"
sid 1 --method rqvae $small --seed 43 -o "$tmp/seed"
expect "another seed gives others" sh -c "! cmp -s '$tmp/rqvae.index.json' '$tmp/seed.index.json'"
# Without learning the codes of kmeans+ are the nearest in the codebooks of balanced, which are the means of its items.
sid 1 --method balanced --sinkhorn-rounds 0 -o "$tmp/again" --force
sid 1 --method kmeans+ $plus --lr 0 --epochs 1 --batch-size 13 --sinkhorn-rounds 0 -o "$tmp/start" --force
expect "RQ-Kmeans+ starts from balanced k-means of all items" python3 - $data/items.npy "$tmp/again.index.json" "$tmp/start.index.json" <<'PY'
import json, re, struct, sys
npy = open(sys.argv[1], "rb").read()
width, head = 12, 10 + int.from_bytes(npy[8:10], "little")
x = [struct.unpack_from(f"<{width}f", npy, at) for at in range(head, len(npy), 4 * width)]
ours, theirs = ([[int(re.sub(r"\D", "", code)) for code in index[str(i)]] for i in range(len(x))] for index in (json.load(open(f)) for f in sys.argv[2:]))
far = lambda r, e: sum((a - b) ** 2 for a, b in zip(r, e))
left, seen = x, x
for level in range(len(ours[0])):
    items = [[r for r, sid in zip(left, ours) if sid[level] == k] for k in range(16)]
    book = [[sum(column) / len(own) for column in zip(*own)] for own in items]
    for r, sid in zip(seen, theirs):
        assert far(r, book[sid[level]]) <= min(far(r, e) for e in book) + 1e-5 * far(r, [0] * width)
    left, seen = ([[a - b for a, b in zip(r, book[sid[level]])] for r, sid in zip(rows, sids)] for rows, sids in ((left, ours), (seen, theirs)))
PY
run 0 ./dtrain-sid --method kmeans --embeddings $data/items.h5 --codes 16 --block-size 64 -o "$tmp/h5" --distinct
expect "of HDF5, fp64 and compressed: the same index" cmp "$tmp/kmeans.index.json" "$tmp/h5.index.json"
expect "without items there is no info file" test ! -e "$tmp/h5.txt"
echo mine >"$tmp/notes.txt"
ends "an existing info file does not prevent a run" 0 run 0 ./dtrain-sid --method kmeans --embeddings $data/items.h5 --codes 16 -o "$tmp/notes" --sinkhorn-rounds 0
expect "or touched" test "$(cat "$tmp/notes.txt")" = mine
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
# six equal rows and another: all lie on codes, and some of the six must leave theirs
{ printf '\x93NUMPY\x01\x00v\x00%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 1), }" && printf '\0%.0s' {1..26} && printf '\200\077'; } >"$tmp/six.npy"
RUN_TIMEOUT=60 ends "balanced: items that lie on codes" 0 run 0 ./dtrain-sid --method balanced --embeddings "$tmp/six.npy" --codes 2 --levels 1 --seed 1 -o "$tmp/six"
expect "four and three of them" test "$(grep -oE '<a_[01]>' "$tmp/six.index.json" | sort | uniq -c | awk '{ print $1 }' | sort | xargs)" = "3 4"

# ---- embeddings by a model
embed="./dtrain-sid --model $data/model --tokenizer bytes --items $data/items.item.json --method kmeans --codes 16 --block-size 64"
ends "texts on one rank" 0 run 1 $embed -o "$tmp/text"
# fp32 against fp64: two layers, values of 1
expect "means of hidden states are those of transformers" \
    bash -c "paste <(od -An -v -tf4 -j128 -w4 '$tmp/text.emb.npy') <(od -An -v -tf4 -j128 -w4 $data/texts.npy) | awk '{ d = \$1 - \$2; if (d > 1e-5 || d < -1e-5) bad = 1 } END { exit bad || NR != 3600 }'"
run 3 $embed -o "$tmp/text3" --pass-tokens 50
expect "texts on 3 ranks, in other passes: the same embeddings" cmp "$tmp/text.emb.npy" "$tmp/text3.emb.npy"
expect "the index is the same" cmp "$tmp/text.index.json" "$tmp/text3.index.json"
run 1 $embed -o "$tmp/half" --dtype bf16 --fields "title, description ,colour"
expect_text "a field that no item has is reported" 'warning: --fields: no item of .*items.item.json has a field `colour`'
expect "embeddings in bf16 differ from those in fp32" sh -c "! cmp -s '$tmp/text.emb.npy' '$tmp/half.emb.npy'"
expect "embeddings in half precision are near" bash -c "paste <(od -An -v -tf4 -j128 -w4 '$tmp/half.emb.npy') <(od -An -v -tf4 -j128 -w4 $data/texts.npy) | awk '{ d = \$1 - \$2; s += d * d; n += \$2 * \$2 } END { exit !(s < 0.001 * n) }'"

# ---- what is wrong
export DTRAIN_LOG=warn
bad="./dtrain-sid --method kmeans -o $tmp/bad --codes 16"
ends "an existing file is not replaced" 64 sid 0 --method kmeans -o "$tmp/kmeans"
wrong "no embeddings" 64 'expected either --embeddings FILE or --model' ./dtrain-sid -o "$tmp/bad"
wrong "another width with kmeans+" 64 "--dim: with --method kmeans\+ the quantised vector is as wide" $bad --embeddings $data/items.npy --method kmeans+ --dim 4
wrong "an unknown method" 64 "expected .*kmeans.* found 'x'" $bad --embeddings $data/items.npy --method x
head -c 10000 $data/items.npy >"$tmp/short.npy"
wrong "an array that was cut short" 65 'short.npy: the file was cut short: 300 x 12' $bad --embeddings "$tmp/short.npy"
echo 'a text that is long enough' >"$tmp/text.npy"
wrong "no array at all" 65 'text.npy: expected a NumPy array' $bad --embeddings "$tmp/text.npy"
cp $data/items.npy "$tmp/three.npy" && printf '(300, 12, 1), }' | dd of="$tmp/three.npy" bs=1 seek=60 conv=notrunc status=none
wrong "an array of three dimensions" 65 'three.npy: expected an array of two dimensions, found one of shape \(300, 12, 1\)' $bad --embeddings "$tmp/three.npy"
wrong "an array that is not there" 65 'items.h5: array `x` is missing' $bad --embeddings $data/items.h5 --array x
cp $data/items.npy "$tmp/nan.npy" && printf '\0\0\300\177' | dd of="$tmp/nan.npy" bs=1 seek=$((128 + 4 * (12 * 200 + 3))) conv=notrunc status=none
wrong "a number that is none" 65 'nan.npy: row 200, column 3 \(from 0\): expected a finite number, found nan' $bad --embeddings "$tmp/nan.npy"
wrong "fewer items than codes" 65 '300 items are too few for 512 different codes' ./dtrain-sid -o "$tmp/bad" --codes 512 --embeddings $data/items.npy
echo '{"0": {"title": "a"}, "2": {"title": "b"}}' >"$tmp/hole.json"
wrong "an id that is missing" 65 'hole.json: item 1 is missing; numeric ids' $bad --embeddings $data/items.npy --items "$tmp/hole.json"
echo '{"": {"title": "a"}, "y": {"title": "b"}}' >"$tmp/nameless.json"
wrong "an id that an info file cannot hold" 65 'nameless.json: expected item ids that are not empty' $bad --embeddings $data/items.npy --items "$tmp/nameless.json"
echo '{"x": {"title": "a"}, "y": {"title": "b"}}' >"$tmp/two.json"
wrong "items without embeddings" 65 'two.json has 2 items, but .*items.npy has 300 rows' $bad --embeddings $data/items.npy --items "$tmp/two.json"
printf '{"0": {"title": "a"},\n "1": {"title": }}' >"$tmp/broken.json"
wrong "items that are no JSON" 65 'broken.json:2:17: ' $bad --embeddings $data/items.npy --items "$tmp/broken.json"
echo '{"0": {"title": {"a": 1}}}' >"$tmp/object.json"
wrong "a title that is no text" 65 'object.json: item 0: `title`: expected a text' $bad --embeddings $data/items.npy --items "$tmp/object.json"
expect "nothing was written" sh -c "! ls '$tmp'/bad* 2>/dev/null"

# ---- a rank that fails alone
alone() { # POINT COMMAND...
    export DTRAIN_FAULT=$1:1:2:error
    RUN_TIMEOUT=60 wrong "a fault at $1 on one rank" 70 "injected|fault" "${@:2}"
    unset DTRAIN_FAULT
}
alone sid.read $bad --embeddings $data/items.npy --block-size 32
alone sid.kmeans $bad --embeddings $data/items.npy --block-size 32
alone sid.step $bad --embeddings $data/items.npy --block-size 32 --method rqvae $small
alone sid.embed $embed --pass-tokens 50 -o "$tmp/bad"
expect "no part of a file is left" sh -c "! ls '$tmp'/*.part 2>/dev/null"
e2e_done
