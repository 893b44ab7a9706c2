#!/bin/bash
# demo.sh - trains a small Llama-style model on the bytes of the King James Bible (Debian package
# bible-kjv), on two ranks (input/demo.ini). Then it samples text and plots the loss. Another text:
# make demo TEXT=book.txt.
. "$(dirname "$0")/example.sh"
run=runs/demo data=runs/demo-data # as in input/demo.ini

say "text"
mkdir -p $data
if [ -n "${TEXT:-}" ]; then
    cat "$TEXT" >$data/all.txt
else
    bible -f gen1:1-rev22:21 </dev/null | sed 's/^[^ ]* //' >$data/all.txt # one verse per line, without its number
fi
# One of 20 blocks of 50 lines is for validation, so that both sets have the same distribution.
# Short texts use smaller blocks.
lines=$(wc -l <$data/all.txt)
if [ "$lines" -lt 20 ]; then
    echo "demo: the text has $lines lines: expected at least 20; use some thousand lines for a useful model" >&2
    exit 65
fi
block=$((lines < 1000 ? lines / 20 : 50))
awk -v d=$data -v block=$block '{ print > (int((NR - 1) / block) % 20 == 19 ? d "/validation.txt" : d "/train.txt") }' $data/all.txt
wc -c $data/train.txt $data/validation.txt | awk 'NR < 3 { printf "%s: %.1f MB\n", $2, $1 / 1e6 }'

say "datasets"
for set in train validation; do ./dtrain-data --force -o $data/$set.h5 $data/$set.txt; done

say "training on $np ranks: $MPIRUN -np $np ./dtrain input/demo.ini"
if [ -e $run/finished ]; then rm -rf $run; fi # an unfinished run resumes
$MPIRUN -np "$np" ./dtrain input/demo.ini

say "a sample of its text"
./dtrain-generate $run --prompt "And the LORD said unto " --max-new-tokens 240 --temperature 0.8 --num-samples 3

say "the loss"
./dtrain-plot $run
touch $run/finished
