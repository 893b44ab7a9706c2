#!/bin/bash
# check_citations.sh - checks the citations of docs/ in comments, also across line ends:
# algorithms.md 8.5, algorithms.md 3.1 and 3.2, algorithms.md appendix B, architecture.md principle 2,
# files.md "Dataset files". Pages and sections must exist. Prints those that do not; exit status 1
# then.
set -u
cd "$(dirname "$0")/.." || exit 1
find include src cuda tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' | sort | xargs perl -0777 -ne '
    BEGIN {
        $bad = 0;
        $section = qr/\d+(?:\.\d+)*\b|[A-Z](?:\.\d+)?\b|"[^"]+"/;
        $gap = qr/\s+(?:\*\s+)?/;
        $list = qr/(?:(?:section|sections|appendix|principle)$gap)?$section(?:(?:,|$gap(?:and|to))$gap$section)*/;
    }
    my $text = $_;
    while ($text =~ /\b([a-z]+)\.md(?:,?$gap($list))?/g) {
        my ($page, $cited, $line) = ($1, $2 // "", 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
        $text_of{$page} //= do { my $file; open($file, "<", "docs/$page.md") ? <$file> : "" };
        if ($text_of{$page} eq "") {
            print "$ARGV:$line: cites $page.md, which docs/ does not have\n";
            $bad = 1;
            next;
        }
        for my $s ($cited =~ /$section/g) {
            $s =~ s/"//g;
            $s =~ s/$gap/ /g;
            next if $text_of{$page} =~ /^(?:#+ )?\Q$s\E(?:\.? |\.?$)/m;
            print "$ARGV:$line: cites $page.md \"$s\", which that page does not have\n";
            $bad = 1;
        }
    }
    END { $? = $bad }' || exit 1

# Messages quoted in docs/troubleshooting.md (headings in backquotes, "..." for values) must occur
# in the sources.
{ find src include cuda tools -name '*.[ch]' -o -name '*.sh' | xargs cat; } | perl -0777 -e '
    my $sources = <STDIN>;
    $sources =~ s/"\s*PRI\w+\s*"//g;
    $sources =~ s/"\s*\n\s*"//g;
    open(my $page, "<", "docs/troubleshooting.md") or exit;
    for (split(/\n/, <$page>)) {
        my ($message) = /^### `([^`]*)`/ or next;
        for my $part (grep { length } map { s/^\s+|\s+$//gr } split(/\.\.\./, $message)) {
            next if index($sources, $part) >= 0;
            print "docs/troubleshooting.md: no program says \"$part\"\n";
            $bad = 1;
        }
    }
    exit($bad)' || exit 1
