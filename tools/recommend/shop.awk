# shop.awk - a shop that does not exist: awk -v items=2016 -v users=2000 -v seed=1 -v out=PREFIX -f shop.awk writes PREFIX.item.json (titles and descriptions),
# PREFIX.texts (the same, an item a line) and PREFIX.visits (lines of user TAB item TAB item ..., in the order in which the user looked at them).
#
# Hidden structure: 6 genres of 6 themes, in each of which there are items of 2 styles. A user likes one genre and one style, and walks through the themes of the genre in
# a ring: three times in four the next item is of the next theme and of the user's style; 15 times in 100 it is any item of the genre, and else any item at all. Of the items
# in question the first are looked at most (with weights 1/rank). Texts name genre, theme and style in words of a language that does not exist either.

function random() { state = state * 16807 % 2147483647; return state / 2147483647 } # Park and Miller's minimal standard: the same with any awk, exact in doubles
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
