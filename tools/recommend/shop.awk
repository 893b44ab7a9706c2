# awk -v items=2016 -v users=2000 -v seed=1 -v out=PREFIX -f shop.awk: generates a synthetic shop.
# Writes PREFIX.item.json (titles and descriptions), PREFIX.texts (the same, one item per line) and
# PREFIX.visits (lines of user TAB item TAB item ..., in the order of visits).
#
# Hidden structure: 6 genres of 6 themes, each with items of 2 styles. A user prefers one genre and
# one style, and moves through the themes of the genre in a ring. With probability 0.75 the next
# item has the next theme and the user's style, with 0.15 it is any item of the genre, else any
# item. Among eligible items the first are the most popular (weights 1/rank). Texts name genre,
# theme and style in invented words.

function random() { state = state * 16807 % 2147483647; return state / 2147483647 } # Park and Miller's minimal standard: exact in doubles, so the same with any awk
function below(n) { return int(random() * n) }
function word(n, syllables,    w, i) {
    for (i = 0; i < syllables; i++) { w = w substr("bdfgklmnprstvz", 1 + n % 14, 1) substr("aeiou", 1 + int(n / 14) % 5, 1); n = int(n / 7) + 11 * i + 5 }
    return w
}
function skewed(n,    x, i) { # 0 .. n-1 with weights 1/(i+1)
    if (!(n in harmonic)) for (i = 1; i <= n; i++) harmonic[n] += 1 / i
    x = random() * harmonic[n]
    for (i = 0; i < n - 1 && (x -= 1 / (i + 1)) >= 0; i++);
    return i
}
function item_of(genre, theme, style) { return ((genre * themes + theme) * styles + style) * per + skewed(per) }
function say_item(i,    genre, theme, style, title, text) {
    genre = int(i / (themes * styles * per)); theme = int(i / (styles * per)); style = int(i / per) % styles
    genre = word(100 + genre, 3); theme = word(300 + theme, 3); style = word(900 + style, 3); title = style " " theme " " word(i, 2) int(i / 490)
    text = "A " style " " theme " for " genre ", " genre " " theme " of " style "."
    printf "%s\n\"%d\": {\"title\": \"%s\", \"description\": \"%s\"}", i ? "," : "", i, title, text > (out ".item.json")
    print title " " text > (out ".texts")
}
function say_user(u,    genre, style, theme, n, k, x, i) {
    genre = below(genres); style = below(styles); theme = below(themes); n = 5 + below(8)
    printf "%d", u > (out ".visits")
    for (k = 0; k < n; k++) {
        x = random()
        if (x < 0.75) { theme = (theme + 1) % themes; i = item_of(genre, theme, style) }
        else i = x < 0.9 ? item_of(genre, below(themes), below(styles)) : below(items)
        printf "\t%d", i > (out ".visits")
    }
    printf "\n" > (out ".visits")
}
BEGIN {
    genres = themes = 6; styles = 2
    per = int(items / (genres * themes * styles))
    if (per < 1) { print "shop.awk: expected items of at least " genres * themes * styles > "/dev/stderr"; exit 64 }
    items = per * genres * themes * styles
    state = seed % 2147483646 + 1
    for (i = 0; i < 20; i++) random()
    printf "{" > (out ".item.json")
    for (i = 0; i < items; i++) say_item(i)
    printf "\n}\n" > (out ".item.json")
    for (u = 0; u < users; u++) say_user(u)
}
