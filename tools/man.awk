# man.awk - converts the --help of a program to a manual page: PROGRAM --help | awk -v name=PROGRAM
# -v about="short description" -f tools/man.awk
#
# A help text has usage lines, sentences, options ("  -o, --output FILE   text", continued on lines
# indented to the text), headings of option groups, paragraphs that end in a colon and precede a
# table, and exit codes.
function clean(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); gsub(/'/, "\\(aq", s); if (s ~ /^\./) s = "\\&" s; return s }
function strip(s) { sub(/^ +/, "", s); return s }
function close_table() { if (table) print ".fi"; table = 0 }
function section(s) { close_table(); print ".SH " s; fresh = 1 }
function put(s) { print clean(strip(s)); fresh = 0 }
# In "  -o, --output FILE   text" the option ends at the first two blanks.
function option(line,    at, left) {
    line = strip(line)
    at = match(line, /  +/)
    left = at ? substr(line, 1, at - 1) : line
    if (!in_options) section("OPTIONS")
    in_options = 1
    if (heading != "") print ".SS " clean(heading)
    heading = ""
    print ".TP\n.B " clean(left)
    if (at) put(substr(line, at))
}
BEGIN {
    print ".\\\" Written by \"make docs\" from the text of " name " --help."
    print ".TH " toupper(name) " 1 \"\" \"dtrain\" \"User Commands\"\n.SH NAME\n" clean(name) " \\- " clean(about)
}
/^usage: /      { section("SYNOPSIS"); print ".nf"; usage = 1; print clean(substr($0, 8)); next }
usage && /^ /   { print clean(strip($0)); next }
usage           { print ".fi"; usage = 0; section("DESCRIPTION") }
/^exit codes: / { section("EXIT STATUS"); put(substr($0, 13)); codes = 1; next }
codes && /^ /   { put($0); next }
/^$/            { blank = 1; next }
/^  -/ && !table { option($0); blank = 0; next }
table           { print clean($0); blank = 0; next }
in_options && /^ / && !blank { put($0); next }
/:$/            { if (in_options && !notes) { section("NOTES"); notes = 1 } else if (!fresh) print ".PP"
                  put($0); print ".PP\n.nf"; table = 1; blank = 0; next }
/^[A-Z].*[^.,:]$/ && blank && (in_options || length($0) < 40) { heading = $0; blank = 0; next }
/^  [A-Z]+   / && !in_options { sub(/^ +/, ""); at = index($0, " "); print ".TP\n.I " clean(substr($0, 1, at - 1)); put(substr($0, at)); next }
                { if (in_options && !notes) { section("NOTES"); notes = 1 } else if (blank && !fresh) print ".PP"
                  blank = 0; put($0) }
END {
    close_table()
    print ".SH SEE ALSO"
    n = split("dtrain dtrain-data dtrain-convert dtrain-generate dtrain-info dtrain-plot dtrain-sid", all, " ")
    line = ""
    for (i = 1; i <= n; i++) if (all[i] != name) line = line (line == "" ? "" : " ,\n") ".BR " clean(all[i]) " (1)"
    gsub(/ \(1\) ,/, " (1),", line)
    print line
}
