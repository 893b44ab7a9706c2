#!/usr/bin/env python3
"""make_image_fixtures.py - tests/data/image: images in every format, and the results of Pillow and transformers for them, for tests/test_image.c.

    python3 tests/make_image_fixtures.py tests/data/image        (a development tool: needs Pillow 13 and transformers 5)

expected.json has of each file the size and a sum (FNV-1a) of the RGB bytes that load_image gives, or null where Pillow refuses it. Of image
processors it has sums of the pixels before they are rescaled, and of Pillow's resizing sums for images that are a formula, which the test repeats.
"""
import io
import json
import os
import random
import struct
import sys
import zlib

import numpy as np
import transformers
from fixtures import fnv
from PIL import Image, PngImagePlugin
from transformers.image_utils import load_image

TEXTS = 64  # text chunks of a PNG that are read; later ones, which may take megabytes each, are ignored
# Refused here; Pillow takes a PNG that ends in order with rows missing, and leaves them black, and looks at no checksum of the pixels.
STRICTER = ("few_rows.png", "wrong_checksum.png", "cut_checksum.png")


def sum_of(array):
    return f"{fnv(np.ascontiguousarray(array).tobytes()):016x}"


def formula(width, height, seed):
    """uint8 [height, width, 3]: dt_mix64 of the position; seed 0 gives black and white alone, which overshoots most."""
    x = np.arange(width * height * 3, dtype=np.uint64) + np.uint64(seed << 32)
    with np.errstate(over="ignore"):
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = (x ^ (x >> np.uint64(31))) >> np.uint64(56)
    if seed == 0:
        x = (x & np.uint64(1)) * np.uint64(255)
    return x.astype(np.uint8).reshape(height, width, 3)


def photo(width, height, seed=1):
    """Smooth with some noise."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [127 + 100 * np.sin(x / 7 + y / 11), 127 + 100 * np.cos(x / 5 - y / 13), 127 + 90 * np.sin(x * y / 300)]
    return Image.fromarray((np.stack(waves, -1) + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8))


def saved(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


# ---- files -------------------------------------------------------------------------------------------------------------------------------


def with_transform(jpeg, transform):
    """The same JPEG with another word of Adobe's on its colours (2: YCCK)."""
    at = jpeg.index(b"Adobe") + 11
    return jpeg[:at] + bytes([transform]) + jpeg[at + 1 :]


def jpegs():
    image, many = photo(37, 29), photo(70, 50)
    for mode in ("RGB", "L", "CMYK"):
        for progressive in (False, True):
            name = f"{mode.lower()}{'_progressive' if progressive else ''}.jpg"
            yield name, saved(image.convert(mode), "JPEG", quality=80, progressive=progressive)
    for k, sampling in enumerate(("4:4:4", "4:2:2", "4:2:0")):
        yield f"sampling{k}.jpg", saved(many, "JPEG", quality=60, subsampling=sampling, restart_marker_rows=k)
    yield "keep_rgb.jpg", saved(image, "JPEG", keep_rgb=True)
    yield "ycck.jpg", with_transform(saved(image.convert("CMYK"), "JPEG"), 2)
    whole, progressive = saved(many, "JPEG", quality=60), saved(many, "JPEG", quality=60, progressive=True)
    yield "no_end.jpg", whole[:-2]
    yield "no_end_padded.jpg", whole[:-2] + bytes(4)
    yield "cut.jpg", whole[: len(whole) // 2]
    yield "cut_late.jpg", whole[:-60]
    yield "cut_progressive.jpg", progressive[: len(progressive) * 3 // 4]
    yield "cut_header.jpg", whole[:100]
    yield "tail.jpg", whole + b"more"
    middle = len(whole) * 3 // 4
    yield "damaged.jpg", whole[:middle] + b"\xff\x02" + whole[middle + 2 :]  # an unknown marker
    yield "garbled.jpg", whole[:middle] + bytes(3) + whole[middle + 3 :]  # the decoder continues at the next position that it can decode


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width, height, depth, colour, rows, before=b"", after=b"", interlace=0):
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", data) + after + chunk(b"IEND", b"")


def interlaced(array):
    """Rows of Adam7's seven passes, of uint8 [height, width, channels]."""
    for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        for row in array[y::dy, x::dx]:
            if row.size:
                yield row.tobytes()


def pngs():
    rng = np.random.default_rng(2)
    width, height = 21, 9
    for depth in (1, 2, 4, 8, 16):
        row_bytes = (width * depth + 7) // 8
        for colour, channels in ((0, 1), (2, 3), (3, 1), (4, 2), (6, 4)):
            if (depth < 8 and channels > 1) or (depth == 16 and colour == 3):
                continue
            n_colours = min(1 << depth, 100) - (1 if depth > 1 else 0)  # some indices have none
            palette = chunk(b"PLTE", rng.integers(0, 256, 3 * n_colours, dtype=np.uint8).tobytes()) if colour == 3 else b""
            if colour == 3 and depth in (4, 8):
                palette += chunk(b"tRNS", bytes([0, 128, 255]))
            rows = [rng.integers(0, 256, row_bytes * channels, dtype=np.uint8).tobytes() for _ in range(height)]
            yield f"depth{depth}_type{colour}.png", png_of(width, height, depth, colour, rows, palette)
    low = rng.integers(0, 600, (height, width)).astype(">u2")
    yield "grey16.png", png_of(width, height, 16, 0, [row.tobytes() for row in low])
    yield "grey_transparent.png", png_of(width, height, 8, 0, [bytes(range(width))] * height, chunk(b"tRNS", b"\0\7"))
    array = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    yield "interlaced.png", png_of(width, height, 8, 2, interlaced(array), interlace=1)
    indices = rng.integers(0, 5, (height, width, 1), dtype=np.uint8)
    palette = chunk(b"PLTE", bytes(range(60, 75)))
    yield "interlaced_palette.png", png_of(width, height, 8, 3, interlaced(indices), palette, interlace=1)
    rows = [row.tobytes() for row in array]
    gamma = chunk(b"gAMA", struct.pack(">I", 30000)) + chunk(b"sRGB", b"\0")
    yield "gamma.png", png_of(width, height, 8, 2, rows, gamma)
    whole = saved(photo(40, 30), "PNG")
    yield "cut.png", whole[: len(whole) // 2]
    yield "cut_late.png", whole[:-30]
    late = chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0\0\0\0\0")
    bare = whole[:-12]
    yield "no_end.png", bare
    yield "no_end_checksum.png", bare[:-2]
    yield "no_end_padded.png", bare + bytes(16)
    yield "no_end_garbage.png", bare + b"\0\0\0\1\xffabc"
    yield "cut_end.png", whole[:-2]
    yield "wrong_end.png", whole[:-2] + b"ab"
    yield "no_end_turned.png", bare + late[:-1]
    yield "late_wrong_checksum.png", bare + late[:-4] + bytes(4) + whole[-12:]  # checksums after the pixels are ignored
    yield "early_wrong_checksum.png", whole[:33] + late[:-4] + bytes(4) + whole[33:]
    yield "cut_chunk.png", bare + late[:-5]
    yield "cut_checksum.png", bare[:-6]
    yield "wrong_checksum.png", bare[:-4] + bytes(4) + whole[-12:]
    yield "few_rows.png", png_of(width, height, 8, 2, rows[:5])
    yield "bomb.png", png_of(20000, 20000, 8, 2, [b""])
    frames = [photo(16, 12, seed) for seed in range(3)]
    animation = saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    yield "frames.png", animation
    yield "frames_cut.png", animation[:-100]
    yield "frames_turned_late.png", animation[:-12] + late + animation[-12:]  # chunks after the next frame are ignored


def webps():
    image = photo(37, 29)
    rng = np.random.default_rng(3)
    yield "lossy.webp", saved(image, "WEBP", quality=70)
    yield "lossless.webp", saved(image, "WEBP", lossless=True)
    for lossless in (False, True):
        clear = image.copy()
        clear.putalpha(Image.fromarray(rng.integers(0, 256, (29, 37), dtype=np.uint8) & 0xF0))
        yield f"alpha{int(lossless)}.webp", saved(clear, "WEBP", lossless=lossless, exact=lossless)
    frames = [photo(16, 12, seed) for seed in range(3)]
    yield "frames.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    whole = saved(image, "WEBP", quality=70)
    yield "cut.webp", whole[: len(whole) // 2]


def netpbms():
    rng = np.random.default_rng(4)
    for kind in "2356":
        for top in (1, 100, 255, 256, 65535):
            n = 7 * 5 * (3 if kind in "36" else 1)
            values = rng.integers(0, top + 1, n)
            if kind in "23":
                body = " ".join(map(str, values)).encode()
            else:
                body = values.astype(np.uint8 if top < 256 else ">u2").tobytes()
            yield f"P{kind}_{top}.ppm", f"P{kind} # {kind}\n7 # wide\n#\n 5\n{top}\n".encode() + body
    yield "cut.ppm", b"P6 7 5 255\n" + bytes(100)
    yield "cut_plain.ppm", b"P3 7 5 255\n" + b"1 " * 104
    yield "no_pixels.ppm", b"P6 0 5 255\n"
    yield "bomb.ppm", b"P6 20000 20000 255\n"
    yield "strip.ppm", b"P6 2000000 1 255\n"
    yield "too_bright.ppm", b"P3 1 1 255\n256 0 0"
    yield "number.ppm", b"P6 1 1x 255\n123"
    yield "magic.ppm", b"P61 1 255\n123"
    yield "empty.ppm", b""
    yield "text.ppm", b"no image\n"


def turned():
    """Orientations in Exif, in XMP, and in a text of ImageMagick's."""
    image = photo(13, 7)
    for orientation in range(10):
        exif = Image.Exif()
        exif[274] = orientation
        form = ("JPEG", "PNG", "WEBP")[orientation % 3]
        yield f"turned{orientation}.{form.lower()}", saved(image, form, exif=exif.tobytes())
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    yield "turned_xmp.jpeg", saved(image, "JPEG", xmp=xmp)
    yield "turned_xmp.webp", saved(image, "WEBP", xmp=xmp)
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp.decode(), zip=True)
    yield "turned_xmp.png", saved(image, "PNG", pnginfo=text)
    little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0\0\0\0\0"
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(little):8}\n{little.hex()}\n", zip=True)
    yield "turned_text.png", saved(image, "PNG", pnginfo=text)
    six = little[:18] + b"\x06" + little[19:]
    yield "turned_text_and_exif.png", saved(image, "PNG", pnginfo=text, exif=six)
    yield "turned_exif_and_xmp.jpeg", saved(image, "JPEG", exif=b"Exif\0\0" + little, xmp=xmp)
    for n, name in ((TEXTS - 1, "turned_last_text.png"), (TEXTS, "turned_no_text.png")):
        text = PngImagePlugin.PngInfo()
        for _ in range(n):
            text.add_text("a", "b")
        text.add_itxt("XML:com.adobe.xmp", xmp.decode())
        yield name, saved(image, "PNG", pnginfo=text)
    plain = saved(image, "PNG")
    yield "turned_late.png", plain[:-12] + chunk(b"eXIf", little) + plain[-12:]  # after the pixels
    yield "turned_long.jpeg", saved(image, "JPEG", exif=b"Exif\0\0" + little.replace(b"\x03\0", b"\x04\0"))
    yield "turned_two.jpeg", saved(image, "JPEG", exif=b"Exif\0\0" + little[:14] + b"\2" + little[15:])
    many = little[:14] + b"\3" + little[15:18] + b"\x1a\0\0\0" + bytes(4) + b"\5\0\6\0\7\0"
    yield "turned_many.jpeg", saved(image, "JPEG", exif=b"Exif\0\0" + many)
    yield "turned_cut.jpeg", saved(image, "JPEG", exif=b"Exif\0\0" + little[:-8])
    yield from tagged(image, xmp)


def tagged(image, xmp):
    """Exif and XMP in one file: 6 in XMP counts only where Exif has no such tag, of whatever type and value."""

    def file(*entries, head=b"II*\0", data=b""):
        exif = head + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + data
        return saved(image, "JPEG", exif=b"Exif\0\0" + exif, xmp=xmp)

    def entry(kind, value, count=1, tag=274):
        return struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0")

    def elsewhere(kind, data, count=1, at=26):
        return file(entry(kind, struct.pack("<I", at), count), data=data)

    for value in (0, 1, 3):
        yield f"tag_short{value}.jpeg", file(entry(3, bytes([value])))
    for value in (0, 1, 3):
        yield f"tag_byte{value}.jpeg", file(entry(1, bytes([value])))
    for name, kind in (("long", 4), ("sbyte", 6), ("sshort", 8), ("slong", 9), ("ifd", 13)):
        yield f"tag_{name}.jpeg", file(entry(kind, b"\3"))
    yield "tag_sshort1.jpeg", file(entry(8, b"\1"))
    yield "tag_float.jpeg", file(entry(11, struct.pack("<f", 3)))
    for name, kind in (("ascii", 2), ("undefined", 7), ("unknown", 14)):
        yield f"tag_{name}.jpeg", file(entry(kind, b"3\0", 2))
    yield "tag_minus.jpeg", file(entry(9, struct.pack("<i", -3)))
    yield "tag_half.jpeg", file(entry(11, struct.pack("<f", 3.5)))
    yield "tag_double.jpeg", elsewhere(12, struct.pack("<d", 3))
    yield "tag_long8.jpeg", elsewhere(16, struct.pack("<Q", 3))
    yield "tag_rational.jpeg", elsewhere(5, struct.pack("<II", 9, 3))
    yield "tag_rational_half.jpeg", elsewhere(5, struct.pack("<II", 7, 2))
    yield "tag_rational_nan.jpeg", elsewhere(5, struct.pack("<II", 3, 0))
    yield "tag_srational.jpeg", elsewhere(10, struct.pack("<ii", -9, -3))
    yield "tag_bytes.jpeg", elsewhere(1, b"\3" * 5, 5)
    yield "tag_none.jpeg", file(entry(3, b"\3", 0))
    yield "tag_behind.jpeg", elsewhere(4, bytes(8), 2, 30)  # values that end beyond the file
    yield "tag_large.jpeg", file(entry(4, b"\x08", 1 << 20), entry(3, b"\3"))  # more values than the file has bytes
    yield "tag_behind_first.jpeg", file(entry(2, b"\x30", 9, 270), entry(3, b"\3"))
    yield "tag_twice.jpeg", file(entry(3, b"\3"), entry(3, b"\4"))
    yield "tag_swapped_head.jpeg", file(entry(3, b"\3"), head=b"II\0*")


def loaded(path):
    """uint8 [height, width, 3] or None."""
    if path.endswith("turned_no_text.png"):
        return np.array(Image.open(path))
    try:
        return np.array(load_image(path))
    except Exception:
        return None


# ---- image processors --------------------------------------------------------------------------------------------------------------------

KINDS = {
    "clip": ("CLIPImageProcessorPil", {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    "clip_int": ("CLIPImageProcessorPil", {"size": 31, "crop_size": 20, "resample": 2}),
    "clip_wide_crop": ("CLIPImageProcessorPil", {"size": {"shortest_edge": 20}, "crop_size": {"height": 33, "width": 26}}),
    "clip_no_resize": ("CLIPImageProcessorPil", {"do_resize": False, "crop_size": {"height": 30, "width": 35}}),
    "clip_list": ("CLIPImageProcessorPil", {"size": [40, 28], "crop_size": [20, 25]}),
    "clip_square": ("CLIPImageProcessorPil", {"use_square_size": True, "crop_size": {"height": 24, "width": 24}}),
    "siglip": ("SiglipImageProcessorPil", {"size": {"height": 28, "width": 28}}),
    "siglip_oblong": ("SiglipImageProcessorPil", {"size": {"height": 18, "width": 40}, "resample": 1}),
    "llava": ("LlavaImageProcessorPil", {"do_pad": True, "size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    "llava_no_mean": ("LlavaImageProcessorPil", {"do_pad": True, "do_normalize": False, "image_mean": None, "size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    "llava_no_crop": ("LlavaImageProcessorPil", {"do_pad": True, "do_center_crop": False, "size": {"shortest_edge": 25}}),
}
AS_WRITTEN = {"clip_list", "clip_square", "llava_no_mean"}  # what transformers reads and does not write so
SIZES = [(37, 29), (29, 37), (24, 24), (200, 13), (13, 200), (25, 24), (5, 4), (90, 301)]


def processed(folder):
    cases = []
    for name, (kind, options) in KINDS.items():
        processor = getattr(transformers, kind)(**options)
        where = os.path.join(folder, "processors", name)
        os.makedirs(where, exist_ok=True)
        processor.save_pretrained(where)
        if name == "clip_int":  # as files of 2021 have it
            with open(os.path.join(where, "preprocessor_config.json"), "w") as f:
                old = {"feature_extractor_type": "CLIPFeatureExtractor", "do_center_crop": True, "processor_class": "CLIPProcessor"}
                json.dump({**old, **options}, f, indent=2)
            with open(os.path.join(where, "processor_config.json"), "w") as f:
                json.dump({"processor_class": "CLIPProcessor"}, f, indent=2)
            processor = getattr(transformers, kind).from_pretrained(where)
        if name in AS_WRITTEN:
            with open(os.path.join(where, "preprocessor_config.json"), "w") as f:
                json.dump({"image_processor_type": kind.removesuffix("Pil"), **options}, f, indent=2)
            processor = getattr(transformers, kind).from_pretrained(where)
        if name == "llava":  # as a processor of text and images saves it
            with open(os.path.join(where, "preprocessor_config.json")) as f:
                inner = json.load(f)
            os.remove(os.path.join(where, "preprocessor_config.json"))
            with open(os.path.join(where, "processor_config.json"), "w") as f:
                json.dump({"image_processor": inner, "patch_size": 14, "processor_class": "LlavaProcessor"}, f, indent=2)
        for width, height in SIZES:
            image = Image.fromarray(formula(width, height, 1))
            pixels = processor(image, do_rescale=False, do_normalize=False)["pixel_values"][0]
            cases.append({"processor": name, "width": width, "height": height, "sum": sum_of(np.asarray(pixels, dtype=np.uint8).transpose(1, 2, 0))})
    return cases


def resized():
    random.seed(5)
    cases = []
    for k in range(120):
        most = 400 if k % 10 == 0 else 60
        width, height = random.randint(1, most), random.randint(1, most)
        size = [(random.randint(1, 80), random.randint(1, 80)), (width, random.randint(1, 80)), (random.randint(1, 80), height)][k % 3]
        resample, seed = k % 6, random.randint(0, 3)
        image = Image.fromarray(formula(width, height, seed)).resize(size, resample)
        cases.append({"from": [width, height], "to": size, "resample": resample, "seed": seed, "sum": sum_of(np.array(image))})
    return cases


def main():
    folder = sys.argv[1]
    os.makedirs(os.path.join(folder, "files"), exist_ok=True)
    expected = {"files": {}, "processed": processed(folder), "resized": resized()}
    for make in (jpegs, pngs, webps, netpbms, turned):
        for name, data in make():
            path = os.path.join(folder, "files", name)
            with open(path, "wb") as f:
                f.write(data)
            pixels = None if name in STRICTER else loaded(path)
            expected["files"][name] = None if pixels is None else [pixels.shape[1], pixels.shape[0], sum_of(pixels)]
    with open(os.path.join(folder, "expected.json"), "w") as f:
        lines = [json.dumps(key) + ":\n" + json.dumps(value).replace("}, {", "},\n{").replace('"], "', '"],\n"').replace('null, "', 'null,\n"') for key, value in expected.items()]
        f.write("{" + ",\n".join(lines) + "}\n")


main()
