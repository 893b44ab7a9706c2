# awk -v out=DIR -v images=N -v tests=M -v seed=S -f shapes.awk: writes N + M images of 32 x 32
# pixels (PPM), each with one to four shapes of one kind and colour, and their descriptions.
# DIR/texts.txt is for a language model, DIR/captions.jsonl and DIR/questions.jsonl for training on
# images. DIR/test.jsonl asks about M images of combinations that occur in no other file.
# DIR/test.svg has these images as paths, one per line. # is the image placeholder. Requires a byte
# locale (LC_ALL=C).
function draw(x, y, size,    i, j, u, v, inside) { # the shape in a square of this size, with its corner at x, y
    for (i = 0; i < size; i++)
        for (j = 0; j < size; j++) {
            u = 2 * j - size + 1; v = 2 * i - size + 1 # from the centre, in half pixels
            if (u < 0) u = -u
            if (s == 1) inside = 1
            else if (s == 2) inside = u * u + v * v <= size * size
            else if (s == 3) inside = 2 * u <= v + size
            else inside = u < size / 3 || (v < 0 ? -v : v) < size / 3
            if (inside) drawn[(y + i) * 32 + x + j] = 1
        }
}
function picture(file,    grey, i, j, k, p, size, quarter) {
    split("", drawn)
    for (i = 0; i < 4; i++) quarter[i] = i
    for (i = 0; i < n; i++) { # each in another of the four quarters, at a random position
        j = i + int(rand() * (4 - i)); k = quarter[j]; quarter[j] = quarter[i]
        size = 9 + int(rand() * 4)
        draw(k % 2 * 16 + int(rand() * (17 - size)), int(k / 2) * 16 + int(rand() * (17 - size)), size)
    }
    grey = 1 + int(rand() * 100) # background; some versions of awk cannot print byte 0
    printf "P6 32 32 255\n" >(out "/" file)
    for (p = 0; p < 1024; p++) printf "%c%c%c", p in drawn ? red[c] : grey, p in drawn ? green[c] : grey, p in drawn ? blue[c] : grey >(out "/" file)
    close(out "/" file)
    ground = sprintf("#%02x%02x%02x", grey, grey, grey)
}
function path(    p, k, d) { # the image as a path: its rows as rectangles
    for (p = 0; p < 1024; p += k ? k : 1) {
        for (k = 0; p + k in drawn && (k == 0 || (p + k) % 32); k++);
        if (k) d = d sprintf("M%d %dh%dv1h-%dz", p % 32, int(p / 32), k, k)
    }
    return "<rect width='32' height='32' fill='" ground "'/><path fill='" sprintf("#%02x%02x%02x", red[c], green[c], blue[c]) "' d='" d "'/>"
}
function choose(test) {
    do {
        c = 1 + int(rand() * 6); s = 1 + int(rand() * 4); n = 1 + int(rand() * 4)
    } while (((c + s + n) % 4 == 0) != test) # a quarter of the 96 combinations, balanced over colours, shapes and numbers
    caption = numbers[n] " " colours[c] " " shapes[s] (n == 1 ? "" : s == 4 ? "es" : "s")
    answer[1] = colours[c]; answer[2] = shapes[s]; answer[3] = numbers[n]
}
function ask(file, name, k) { printf "{\"prompt\": \"#. %s \", \"completion\": \"%s\", \"image\": \"%s\", \"kind\": \"%s\"}\n", question[k], answer[k], name, kind[k] >(out "/" file) }
BEGIN {
    srand(seed)
    split("red green blue yellow purple white", colours, " "); split("square circle triangle cross", shapes, " "); split("one two three four", numbers, " ")
    split("230 40 50 240 170 240", red, " "); split("40 200 80 220 50 240", green, " "); split("40 60 240 50 200 240", blue, " ")
    split("colour shape number", kind, " "); split("What colour?|Which shape?|How many?", question, "|")
    for (m = 1; m <= images; m++) {
        choose(0)
        k = 1 + int(rand() * 4)
        print caption ". " (k == 4 ? "What is here? " caption : question[k] " " answer[k]) >(out "/texts.txt")
        choose(0)
        name = sprintf("train-%05d.ppm", m)
        picture(name)
        printf "{\"prompt\": \"#. What is here? \", \"completion\": \"%s\", \"image\": \"%s\"}\n", caption, name >(out "/captions.jsonl")
        for (k = 1; k <= 3; k++) ask("questions.jsonl", name, k)
    }
    for (m = 1; m <= tests; m++) {
        choose(1)
        name = sprintf("test-%05d.ppm", m)
        picture(name)
        for (k = 1; k <= 3; k++) ask("test.jsonl", name, k)
        print path() >(out "/test.svg")
    }
}
