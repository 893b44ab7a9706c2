#!/bin/bash
# man.sh NAME - the manual page of a program (all but dtrain's, which is written by hand) from its --help, on standard output.
set -eu
case $1 in
dtrain-data) about="make datasets of text, JSON records and recommendation data for dtrain, and look into them" ;;
dtrain-convert) about="turn checkpoints of dtrain into Hugging Face model directories and back" ;;
dtrain-generate) about="continue prompts, or talk, with a model that dtrain trained" ;;
dtrain-info) about="show checkpoints, datasets and runs of dtrain" ;;
dtrain-plot) about="draw the metrics of runs of dtrain" ;;
dtrain-sid) about="make semantic IDs for the items of a catalogue" ;;
*) echo "man.sh: $1: expected the name of a program" >&2 && exit 64 ;;
esac
"./$1" --help | awk -v name="$1" -v about="$about" -f tools/man.awk
