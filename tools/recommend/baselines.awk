# awk -f baselines.awk PREFIX.txt PREFIX.train.csv PREFIX.test.csv: HR@K and NDCG@K of recommenders
# without training. Prints a line per recommender and K up to 20: name, K, HR@K and NDCG@K,
# tab-separated. random: mean over all orders of the SIDs. popular: SIDs by their frequency as next
# item in training. next: by their frequency after the user's last SID; ties by popularity.
function count(what, rank,    k) { # rank: from 0
    for (k = rank + 1; k <= 20; k++) { hits[what, k]++; gain[what, k] += log(2) / log(rank + 2) }
}
function last_of(row,    part, n) { n = split(row, part, "'"); return part[n - 1] } # the SIDs of the history are the last quoted texts
function sort_by_popularity(    i, k, s) { # insertion sort; ties keep the order of the info file
    for (i = 2; i <= n; i++) {
        s = sid[i]
        for (k = i - 1; k >= 1 && seen[sid[k]] < seen[s]; k--) sid[k + 1] = sid[k]
        sid[k + 1] = s
    }
    for (i = 1; i <= n; i++) place[sid[i]] = i
}
BEGIN { FS = "\t"; OFS = "\t" }
FNR == 1 { file++; FS = ","; if (file == 3) sort_by_popularity() }
file == 1 { split($0, part, "\t"); if (!(part[1] in seen)) { seen[part[1]] = 0; sid[++n] = part[1] } next }
FNR == 1 { next }
file == 2 {
    last = last_of($0); seen[$NF]++
    if (!after[last, $NF]++) followers[last] = followers[last] $NF "\t"
    next
}
{
    tests++
    if (place[$NF]) count("popular", place[$NF] - 1)
    last = last_of($0); here = (last, $NF) in after ? after[last, $NF] : 0
    rank = here ? 0 : place[$NF] - 1
    for (i = split(followers[last], follower, "\t") - 1; i >= 1; i--) { # count those that rank higher
        sooner = place[follower[i]] < place[$NF]
        rank += here ? after[last, follower[i]] > here || (after[last, follower[i]] == here && sooner) : !sooner
    }
    count("next", rank)
}
END {
    for (k = 1; k <= 20; k++) {
        all += log(2) / log(k + 1)
        print "random", k, k / n, all / n
        print "popular", k, hits["popular", k] / tests, gain["popular", k] / tests
        print "next", k, hits["next", k] / tests, gain["next", k] / tests
    }
}
