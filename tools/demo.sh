#!/bin/bash
# demo.sh - from text to a trained model: the King James Bible (Debian package bible-kjv) as bytes, a small Llama-style model on two
# ranks (input/demo.ini), some lines it writes, and pictures of its loss. Another text: make demo TEXT=book.txt.
. "$(dirname "$0")/example.sh"
run=runs/demo data=runs/demo-data # those of input/demo.ini

say "text"
mkdir -p $data
if [ -n "${TEXT:-}" ]; then
    cat "$TEXT" >$data/all.txt
else
    bible -f gen1:1-rev22:21 </dev/null | sed 's/^[^ ]* //' >$data/all.txt # a verse a line, without its number
fi
# One block of 50 lines in 20 is held back, so that both sets are of the same kind. Of a short text: smaller blocks.
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
if [ -e $run/finished ]; then rm -rf $run; fi # an unfinished run goes on where it stopped
$MPIRUN -np "$np" ./dtrain input/demo.ini

say "a sample of its text"
./dtrain-generate $run --prompt "And the LORD said unto " --max-new-tokens 240 --temperature 0.8 --num-samples 3

say "the loss"
./dtrain-plot $run
touch $run/finished
