#!/bin/bash
# e2e_plot.sh - dtrain-plot: plots of one run and of several, and messages about invalid files and options.
. "$(dirname "$0")/e2e.sh"

make_run() { # DIR STEPS
    mkdir -p "$1"
    awk -v n="$2" 'BEGIN {
        for (s = 1; s <= n; s++) {
            printf "{\"step\": %d, \"loss\": %s, \"lr\": %.6g, \"grad_norm\": %.6g, \"tokens\": %d, \"samples\": %d, \"step_time\": 0.1, \"tokens_per_second\": 4096}\n",
                s, s == 3 ? "null" : sprintf("%.9g", 1.5 + 4 / s), 3e-4 * s / n, 1 + 1 / s, 4096 * s, 8 * s
            if (s % 10 == 0) printf "{\"step\": %d, \"validation_loss\": %.9g}\n", s, 1.6 + 4 / s
        }
        printf "{\"step\": %d, \"lo", n + 1 }' >"$1/metrics.jsonl"
}
is_png() { [ "$(head -c 8 "$1" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ] && [ "$(wc -c <"$1")" -gt 10000 ]; }
is_svg() { grep -q '<svg' "$1" && grep -q '</svg>' "$1"; }
no_leftovers() { ! find "$tmp" -name '*.part' | grep -q .; }

make_run "$tmp/a run_1" 200
make_run "$tmp/b" 40
make_run "$tmp/one" 1

ends no_directory_is_a_usage_error 64 run 0 ./dtrain-plot
ends_saying unknown_axis_is_a_usage_error 64 "expected step, tokens or time, found 'inches'" run 0 ./dtrain-plot --x inches "$tmp/b"
ends unknown_picture_format_is_a_usage_error 64 run 0 ./dtrain-plot -o "$tmp/x.gif" "$tmp/b"
ends window_of_nothing_is_a_usage_error 64 run 0 ./dtrain-plot --smooth 0 "$tmp/b"
ends unknown_option_is_a_usage_error 64 run 0 ./dtrain-plot --frobnicate "$tmp/b"
ends_saying missing_run_is_a_data_error 65 "$tmp/nowhere" run 0 ./dtrain-plot "$tmp/nowhere"
mkdir "$tmp/bad" && printf '{"step": 1, "loss": 2}\nnonsense\n{"step": 2, "loss": 2}\n' >"$tmp/bad/metrics.jsonl"
ends_saying bad_line_is_a_data_error 65 "$tmp/bad/metrics.jsonl:2: " run 0 ./dtrain-plot "$tmp/bad"
ends_saying missing_gnuplot_is_exit_70 70 'gnuplot-nox' run 0 env PATH=/nonexistent ./dtrain-plot "$tmp/b"
expect no_half_picture_without_gnuplot no_leftovers

if ! command -v gnuplot >/dev/null; then
    skip pictures "gnuplot is not installed"
    e2e_done
    exit
fi
ends one_run_is_drawn 0 run 0 ./dtrain-plot "$tmp/a run_1"
expect default_png_is_whole is_png "$tmp/a run_1/loss.png"
expect default_svg_is_whole is_svg "$tmp/a run_1/loss.svg"
expect svg_names_both_losses grep -q validation "$tmp/a run_1/loss.svg"
expect gnuplot_had_nothing_to_say test "$(wc -l <"$out")" = 2
ends a_single_record_is_drawn 0 run 0 ./dtrain-plot "$tmp/one"
expect gnuplot_had_nothing_to_say_of_one_record test "$(wc -l <"$out")" = 2
ends two_runs_are_drawn_together 0 run 0 ./dtrain-plot -o "$tmp/both.svg" --x tokens --smooth 5 "$tmp/a run_1/" "$tmp/b/metrics.jsonl"
expect legend_names_both_runs grep -q 'a run_1' "$tmp/both.svg"
ends chosen_metrics_are_drawn 0 run 0 ./dtrain-plot -o "$tmp/named.png" --metrics lr,loss --x time "$tmp/b"
expect chosen_metrics_png_is_whole is_png "$tmp/named.png"
# Panels of tasks that align are there where a run has their numbers.
mkdir "$tmp/aligned"
awk 'BEGIN { for (s = 1; s <= 30; s++) printf "{\"step\": %d, \"loss\": %g, \"grpo/reward\": %g, \"grpo/rewards/accuracy/mean\": %g, \"grpo/kl\": %g, \"dpo/rewards/margins\": %g, \"dpo/lambda\": %g, \"grpo/completions/mean_length\": %g, \"grpo/completions/clipped_ratio\": 0.5}\n", s, 1 / s, s / 30, s / 40, s / 50, s, 1 + s, 20 + s }' >"$tmp/aligned/metrics.jsonl"
ends a_run_that_aligns_is_drawn 0 run 0 ./dtrain-plot -o "$tmp/aligned.svg" "$tmp/aligned"
for label in reward 'rewards/accuracy/mean' 'rewards of answers' 'KL to the reference' lambda 'tokens of a completion' 'share of truncated completions'; do
    expect "with $label" grep -qF ">$label" "$tmp/aligned.svg"
done
expect "metrics without values have no axis" sh -c '! grep -qF "its coefficient" "$1"' sh "$tmp/aligned.svg"
expect "a run without them has no such panel" sh -c '! grep -qE ">(reward|lambda)" "$1"' sh "$tmp/both.svg"
ends_saying unknown_metric_is_a_usage_error 64 "no run has 'reward'; dtrain-plot --list .*/b lists all names" run 0 ./dtrain-plot --metrics reward "$tmp/b"
prints a_slip_of_the_pen_is_guessed "no run has 'grad_nrm'; similar names: grad_norm; dtrain-plot --list" run 0 ./dtrain-plot --metrics grad_nrm "$tmp/b"
prints part_of_a_name_finds_it "similar names: grpo/reward, dpo/rewards/margins, grpo/rewards/accuracy/mean; " run 0 ./dtrain-plot --metrics reward "$tmp/aligned"
run 0 ./dtrain-plot --list "$tmp/b" "$tmp/aligned"
expect "names are listed, each once" sh -c '[ "$(grep -cx step "$1")" = 1 ] && grep -qx grpo/reward "$1" && grep -qx validation_loss "$1"' sh "$out"
# Of several runs a panel of a task has a colour for each run and dashes for each number, which the legend names once (an axis may have the same name).
sed 's|grpo/reward"|ppo/rewards/length:8/mean"|; s|grpo/rewards/accuracy|grpo/rewards/format|' "$tmp/aligned/metrics.jsonl" | sed 's/"loss": [^,]*/"loss": 1/' >"$tmp/second.jsonl"
ends two_runs_that_align_are_drawn 0 run 0 ./dtrain-plot --smooth 1 -o "$tmp/two.svg" "$tmp/aligned" "$tmp/second.jsonl"
for label in reward 'rewards/accuracy/mean' 'rewards/format/mean' 'rewards/length:8/mean' 'rewards/margins' lambda; do
    expect "$label is in the legend once" [ "$(grep -cF "<text>$label</text>" "$tmp/two.svg")" = "$([ "$label" = lambda ] || [ "$label" = reward ] && echo 2 || echo 1)" ]
done
expect "with dashes for each number" sh -c '[ "$(grep -o "stroke-dasharray=.[^ ]*" "$1" | sort -u | wc -l)" -ge 4 ]' sh "$tmp/two.svg"
# Each of many numbers is named once, however many there are.
awk 'BEGIN { for (s = 1; s <= 3; s++) { printf "{\"step\": %d", s; for (f = 0; f < 40; f++) printf ", \"grpo/rewards/f-%d/mean\": %d", f, f; print "}" } }' >"$tmp/many.jsonl"
run 0 ./dtrain-plot -o "$tmp/many.svg" "$tmp/many.jsonl" "$tmp/many.jsonl"
expect "forty names are in the legend, each once" sh -c '[ "$(grep -o "<text>rewards/f-[0-9]*/mean</text>" "$1" | sort | uniq -c | grep -c "^ *1 ")" = 40 ]' sh "$tmp/many.svg"
ends unwritable_picture_is_a_write_error 74 run 0 ./dtrain-plot -o "$tmp/bad/metrics.jsonl/x.png" "$tmp/b"
expect no_half_picture_is_left no_leftovers
run 0 ./dtrain-plot -o "$tmp/new/folder/picture.svg" "$tmp/b"
expect "the folder of a picture is made" test -s "$tmp/new/folder/picture.svg"
e2e_done
