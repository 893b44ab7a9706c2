# awk -v what=table|picture -f answers.awk test.jsonl BEFORE.jsonl AFTER.jsonl [test.svg]: prints a
# table with the fraction of correct answers of two models, by kind of question; or an SVG of the
# first images with the second model's answers. Three consecutive questions are about one image.
function field(name,    text) {
    text = $0
    return sub(".*\"" name "\": *\"", "", text) ? substr(text, 1, index(text, "\"") - 1) : ""
}
function share(model, k) { return sprintf("%10.3f", right[model, k] / asked[k]) }
FNR == 1 { file++ }
file == 1 { want[FNR] = field("completion"); kind[FNR] = field("kind"); if (!asked[kind[FNR]]++) kinds[++n_kinds] = kind[FNR]; n = FNR }
file == 2 || file == 3 {
    said[file, FNR] = field("text")
    if (said[file, FNR] == want[FNR]) { right[file, kind[FNR]]++; row[file]++ }
    if (FNR % 3 == 0) { if (row[file] == 3) whole[file]++; row[file] = 0 }
    lines[file] = FNR
}
file == 4 { drawn[FNR] = $0 }
END {
    if (!n || lines[2] != n || lines[3] != n) { print "answers.awk: the numbers of answers and questions differ" >"/dev/stderr"; exit 65 }
    if (what == "table") {
        chance["colour"] = 1 / 6; chance["shape"] = chance["number"] = 1 / 4
        printf "%-20s %10s %10s %10s\n", "", "chance", "aligned", "fine-tuned"
        for (k = 1; k <= n_kinds; k++) printf "%-20s %10.3f %s %s\n", kinds[k], chance[kinds[k]], share(2, kinds[k]), share(3, kinds[k])
        printf "%-20s %10.3f %10.3f %10.3f\n", "all three", 1 / 96, whole[2] / (n / 3), whole[3] / (n / 3)
        exit
    }
    print "<svg xmlns='http://www.w3.org/2000/svg' width='888' height='408' font-family='sans-serif' font-size='12' text-anchor='middle'><rect width='888' height='408' fill='white'/>"
    for (i = 0; i < 24 && i < n / 3; i++) {
        printf "<g transform='translate(%d,%d)'><g transform='scale(3)' shape-rendering='crispEdges'>%s</g>\n", 12 + i % 8 * 109, 12 + int(i / 8) * 132, drawn[i + 1]
        printf "<text x='48' y='113'>"
        for (k = 3; k > 0; k--) { # number, colour, shape: reverse order of the questions
            q = 3 * i + (k == 3 ? 3 : 3 - k)
            printf "<tspan%s>%s </tspan>", said[3, q] == want[q] ? "" : " fill='#d62728' font-weight='bold'", said[3, q]
        }
        print "</text></g>"
    }
    print "</svg>"
}
