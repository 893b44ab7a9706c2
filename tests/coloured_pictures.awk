# LC_ALL=C awk -v out=DIR -v images=N -v kind=pairs|prompts|guesses -v seed=S -f coloured_pictures.awk: writes N images of 16 x 16 pixels (PPM) with a square of
# one of four colours, and DIR/KIND.jsonl: pairs of the right and a wrong answer, prompts with
# the answer, or prompts completed by any of the colours. # is the placeholder.
BEGIN {
    srand(seed); split("red green blue white", colour, " ")
    split("230 40 50 240", red, " "); split("40 200 80 240", green, " "); split("40 60 240 240", blue, " ")
    for (m = 1; m <= images; m++) {
        c = 1 + int(rand() * 4); do w = 1 + int(rand() * 4); while (w == c)
        size = 6 + int(rand() * 5); x = int(rand() * (17 - size)); y = int(rand() * (17 - size)); grey = 1 + int(rand() * 100)
        name = kind m ".ppm"
        printf "P6 16 16 255\n" >(out "/" name)
        for (p = 0; p < 256; p++) {
            i = int(p / 16) - y; j = p % 16 - x; inside = i >= 0 && i < size && j >= 0 && j < size
            printf "%c%c%c", inside ? red[c] : grey, inside ? green[c] : grey, inside ? blue[c] : grey >(out "/" name)
        }
        close(out "/" name)
        printf "{\"prompt\": \"#. Colour? \", \"image\": \"%s\", ", name >(out "/" kind ".jsonl")
        if (kind == "pairs") printf "\"chosen\": \"%s\", \"rejected\": \"%s\"}\n", colour[c], colour[w] >(out "/" kind ".jsonl")
        else printf "\"%s\": \"%s\"}\n", kind == "prompts" ? "answer" : "completion", colour[kind == "prompts" ? c : 1 + int(rand() * 4)] >(out "/" kind ".jsonl")
    }
}
