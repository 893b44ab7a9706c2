# tables.awk - generates Markdown tables, the content of docs/data/h100-*.csv, from the output of
# bench_compute, bench_layers and peer_operations.py (bench-operations.log) and bench_model
# (bench-profile.log).
function row(cells) { print "| " cells " |" }
function head(cells, n, i, line) {
    print ""
    row(cells)
    n = split(cells, c, / \| /)
    for (i = 0; i < n; i++) line = line "|---"
    print line "|"
}
# Parse "  NAME   12.3 us   45.6 GB/s  0.78": the name before the time, and the fields after it.
function parse(i) {
    for (i = 1; i <= NF && $i != "us"; i++) {}
    name = ""
    for (j = 1; j < i - 1; j++) name = name (j > 1 ? " " : "") $j
    us = $(i - 1); rate = $(i + 1); share = $(i + 3)
    return i <= NF
}
/^(copies|matmuls|attention|classifier|optimizer|tokens)$/ { part = $1; next }
/^PyTorch / { part = "peer"; next }
/^[A-Z].*: [0-9]+ tokens of [0-9]+$/ { part = "layers"; shape = $0; sub(/:.*/, "", shape); next }
/, states [0-9.]+ GiB$/ { part = "profile"; model = $0; sub(/, states.*/, "", model); sub(/.*; /, "", model); next }
part == "profile" && /best step/ {
    shape = $2 " x " substr($4, 1, length($4) - 1)
    sub(/.*mean /, ""); sub(/ ms:.*/, "")
    model = model ", " shape " (" $0 " ms)"
    next
}
part == "profile" && / calls / {
    name = $1
    group = "the rest"
    if (name == "matmul") group = "matmuls"
    else if (name ~ /^attention/) { group = name; sub(/_/, " ", group) }
    else if (name ~ /norm/) group = "norms, both ways"
    else if (name ~ /^(glu|act|rope)/) group = "rotation, activations"
    else if (name ~ /^(classifier|adamw)/) { group = name; sub(/_step/, "", group) }
    for (i = 1; $i != "ms"; i++) {}
    of_group[model, group] += $(i - 1)
    cell("profile", group, model, sprintf("%.1f", of_group[model, group]))
    next
}
/^[^ ]/ { next }
part == "profile" || !parse() { next }
part == "attention" {
    back = sub(/ backward$/, "", name)
    if (!back) attention[++n_attention] = name
    ours[name, back] = rate
}
part == "peer" && /backward/ {
    way = name; sub(/.* /, "", way); sub(/ [a-z]+$/, "", name)
    peer[name, way, 0] = rate
    for (i = NF; i > 0 && $i != "TFLOP/s"; i--) {}
    peer[name, way, 1] = $(i - 1)
}
# A two-way table, with rows and columns in order of first appearance.
function cell(table, r, c, value) {
    if (!((table, r) in seen_row)) { seen_row[table, r]; rows[table, ++n_rows[table]] = r }
    if (!((table, c) in seen_column)) { seen_column[table, c]; columns[table, ++n_columns[table]] = c }
    at[table, r, c] = value
}
function pivot(table, title, i, k, cells) {
    if (!n_rows[table]) return
    cells = title
    for (k = 1; k <= n_columns[table]; k++) cells = cells " | " columns[table, k]
    head(cells)
    for (i = 1; i <= n_rows[table]; i++) {
        cells = rows[table, i]
        for (k = 1; k <= n_columns[table]; k++) cells = cells " | " at[table, rows[table, i], columns[table, k]]
        row(cells)
    }
}
part == "matmuls" {
    if (name ~ /^large matmul/) { large = rate; next }
    form = what = name
    sub(/ [0-9]+x[0-9]+x[0-9]+$/, "", form)
    sub(/.* (qkv|proj|fc|fc2|gate_up|down|head) /, "", form)
    sub(/ (forward|bias|dx|dw).*/, "", what)
    if (form == "forward") { size = name; sub(/.* /, "", size); split(size, mnk, "x"); sizes[what] = mnk[3] " to " mnk[2] ", " mnk[1] " tokens" }
    cell("matmuls", what " (" sizes[what] ")", form, sprintf("%.0f", rate))
}
part == "tokens" { choice = name; sub(/^[0-9]+ x [0-9]+ /, "", choice); cell("tokens", choice, substr(name, 1, length(name) - length(choice) - 1), us) }
part == "layers" { cell("layers", name, shape, share) }
part == "copies" || part == "classifier" || part == "optimizer" { line[part, ++n[part]] = name " | " us " | " rate " | " share }
END {
    pivot("profile", "ms of a step, by events")
    if (n["copies"]) head("copies | us | GB/s | of the first")
    for (i = 1; i <= n["copies"]; i++) row(line["copies", i])
    pivot("matmuls", "matmuls, bf16, TFLOP/s (a large one: " large ")")
    if (n_attention) head("attention, causal, bf16: TFLOP/s | forward | flash | cuDNN | backward | flash | cuDNN")
    for (i = 1; i <= n_attention; i++) {
        a = attention[i]
        row(a " | " ours[a, 0] " | " peer[a, "flash", 0] " | " peer[a, "cudnn", 0] " | " ours[a, 1] " | " peer[a, "flash", 1] " | " peer[a, "cudnn", 1])
    }
    if (n["classifier"] + n["optimizer"]) head("classifier, optimizers and sums over 124.4M elements | us | GB/s | of a copy")
    for (i = 1; i <= n["classifier"]; i++) row(line["classifier", i])
    for (i = 1; i <= n["optimizer"]; i++) row(line["optimizer", i])
    pivot("layers", "bf16, fraction of a copy's GB/s")
    pivot("tokens", "choice of tokens, us (rows x vocabulary)")
}
