# awk -v out=PREFIX -f rows.awk PREFIX.txt PREFIX.visits: converts an info file (SID TAB title TAB
# item) and visits (user TAB item TAB item ...) to the rows that dtrain-data --format minionerec
# reads: PREFIX.train.csv, PREFIX.valid.csv and PREFIX.test.csv. A row is a next item and at most 6
# items before it. The last item of each user is for the test, the one before for validation.
BEGIN {
    FS = "\t"
    n = split("train valid test", sets, " ")
    for (i = 1; i <= n; i++) print "user_id,history_item_title,item_title,history_item_id,item_id,history_item_sid,item_sid" > (out "." sets[i] ".csv")
}
NR == FNR { sid[$3] = $1; title[$3] = $2; next }
{
    for (k = 3; k <= NF; k++) {
        titles = sids = ids = comma = ""
        for (j = k > 8 ? k - 6 : 2; j < k; j++) {
            titles = titles comma "'" title[$j] "'"; ids = ids comma $j; sids = sids comma "'" sid[$j] "'"; comma = ", "
        }
        printf "%s,\"[%s]\",%s,\"[%s]\",%s,\"[%s]\",%s\n", $1, titles, title[$k], ids, $k, sids, sid[$k] > (out "." (k == NF ? "test" : k == NF - 1 ? "valid" : "train") ".csv")
    }
}
