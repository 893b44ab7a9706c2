#!/bin/bash
# man.sh NAME - prints the manual page of a program, generated from its --help. dtrain's page is
# written by hand.
set -eu
case $1 in
dtrain-data) about="create and inspect dtrain datasets of text, JSON records and recommendation data" ;;
dtrain-convert) about="convert dtrain checkpoints to Hugging Face model directories and back" ;;
dtrain-generate) about="generate text or chat with a trained model" ;;
dtrain-info) about="show dtrain checkpoints, datasets and runs" ;;
dtrain-plot) about="plot the metrics of dtrain runs" ;;
dtrain-sid) about="compute semantic IDs for the items of a catalogue" ;;
*) echo "man.sh: $1: expected the name of a program" >&2 && exit 64 ;;
esac
"./$1" --help | awk -v name="$1" -v about="$about" -f tools/man.awk
