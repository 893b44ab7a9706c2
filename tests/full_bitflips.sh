#!/bin/bash
# full_bitflips.sh - flips every bit of a small checkpoint and of a small dataset in turn and reads the file: no crash, no hang, each
# refused. Then 40 damaged files for each program.
EVERY=1 PROGRAMS=40 FLIP_TIMEOUT=7200 exec bash "$(dirname "$0")/e2e_flipped_bits.sh"
