/* webp.c - by libwebp's decoder of animations, which takes still images too; alpha is dropped, not composited. */
#include "decode.h"
#include <string.h>
#include <webp/decode.h>
#include <webp/demux.h>

static dt_err keep_tags(const WebPDemuxer *demuxer, dt_image_tags *tags)
{
    WebPChunkIterator chunk;
    dt_err err = DT_OK;
    if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk))
        err = dt_image_keep_exif(tags, chunk.chunk.bytes, chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
    if (err == DT_OK && WebPDemuxGetChunk(demuxer, "XMP ", 1, &chunk))
        err = dt_image_keep_xmp(tags, chunk.chunk.bytes, chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
    return err;
}

static dt_err first_frame(const char *name, WebPAnimDecoder *decoder, dt_image *image)
{
    uint8_t *rgba;
    int at_ms;
    DT_CHECK(WebPAnimDecoderGetNext(decoder, &rgba, &at_ms), DT_ERR_DATA, "%s: not a valid WebP", name);
    const size_t n = (size_t)image->width * (size_t)image->height;
    for (size_t i = 0; i < n; i++) memcpy(image->rgb + 3 * i, rgba + 4 * i, 3);
    return DT_OK;
}

dt_err dt_decode_webp(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    int width, height;
    DT_CHECK(WebPGetInfo(bytes, nbytes, &width, &height), DT_ERR_DATA, "%s: not a valid WebP", name);
    DT_TRY(dt_image_alloc(name, width, height, image)); /* checks the size before libwebp takes memory for it */
    const WebPData data = {bytes, nbytes};
    WebPAnimDecoder *decoder = WebPAnimDecoderNew(&data, NULL);
    DT_CHECK(decoder, DT_ERR_DATA, "%s: not a valid WebP, or cut short", name);
    WebPAnimInfo info;
    dt_err err = DT_OK;
    if (!WebPAnimDecoderGetInfo(decoder, &info) || (int)info.canvas_width != width || (int)info.canvas_height != height)
        err = dt_fail(DT_ERR_DATA, "%s: not a valid WebP: its size is said in two ways", name);
    if (err == DT_OK) err = first_frame(name, decoder, image);
    if (err == DT_OK) err = keep_tags(WebPAnimDecoderGetDemuxer(decoder), tags);
    WebPAnimDecoderDelete(decoder);
    return err;
}
