/* webp.c - decodes with libwebp's animation decoder, which also accepts still images. Alpha is dropped,
 * not composited. */
#include "decode_image.h"

#ifndef DT_HAVE_LIBWEBP
dt_err dt_decode_webp(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    return dt_image_no_library(name, "WebP", "libwebp");
}
#else

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

/* libwebp reports failure without a reason. It validates the file's structure first, and then allocates memory. */
static dt_err not_opened(const char *name, const WebPData *data)
{
    WebPDemuxState state;
    WebPDemuxer *demuxer = WebPDemuxPartial(data, &state);
    WebPDemuxDelete(demuxer);
    DT_CHECK(state != WEBP_DEMUX_DONE, DT_ERR_MEMORY, "%s: no memory to decode the image", name);
    return dt_fail(DT_ERR_DATA, "%s: not a valid WebP, or the file was cut short", name);
}

/* Decode the frame again with the basic API, into the image, to find out why it failed. */
static dt_err not_decoded(const char *name, const WebPAnimDecoder *decoder, const dt_image *image)
{
    WebPIterator frame;
    WebPDecoderConfig config;
    const size_t room = 3 * (size_t)image->width * (size_t)image->height;
    VP8StatusCode status = VP8_STATUS_OUT_OF_MEMORY;
    if (WebPInitDecoderConfig(&config) && WebPDemuxGetFrame(WebPAnimDecoderGetDemuxer(decoder), 1, &frame)) {
        config.output.is_external_memory = 1;
        config.output.u.RGBA = (WebPRGBABuffer){.rgba = image->rgb, .stride = 3 * frame.width, .size = room};
        status = WebPDecode(frame.fragment.bytes, frame.fragment.size, &config);
        WebPDemuxReleaseIterator(&frame);
    }
    DT_CHECK(status != VP8_STATUS_OUT_OF_MEMORY && status != VP8_STATUS_OK, DT_ERR_MEMORY,
             "%s: no memory to decode the image", name);
    return dt_fail(DT_ERR_DATA, "%s: not a valid WebP", name);
}

static dt_err first_frame(const char *name, WebPAnimDecoder *decoder, dt_image *image)
{
    uint8_t *rgba;
    int at_ms;
    if (!WebPAnimDecoderGetNext(decoder, &rgba, &at_ms)) return not_decoded(name, decoder, image);
    const size_t n = (size_t)image->width * (size_t)image->height;
    for (size_t i = 0; i < n; i++) memcpy(image->rgb + 3 * i, rgba + 4 * i, 3);
    return DT_OK;
}

dt_err dt_decode_webp(const char *name, const uint8_t *bytes, size_t nbytes, dt_image *image, dt_image_tags *tags)
{
    int width, height;
    DT_CHECK(WebPGetInfo(bytes, nbytes, &width, &height), DT_ERR_DATA, "%s: not a valid WebP", name);
    DT_TRY(dt_image_alloc(name, width, height, image)); /* checks the size before libwebp allocates memory for it */
    const WebPData data = {bytes, nbytes};
    WebPAnimDecoder *decoder = WebPAnimDecoderNew(&data, NULL);
    if (!decoder) return not_opened(name, &data);
    WebPAnimInfo info;
    dt_err err = DT_OK;
    if (!WebPAnimDecoderGetInfo(decoder, &info) || (int)info.canvas_width != width || (int)info.canvas_height != height)
        err = dt_fail(DT_ERR_DATA, "%s: not a valid WebP: it contains two different sizes", name);
    if (err == DT_OK) err = first_frame(name, decoder, image);
    if (err == DT_OK) err = keep_tags(WebPAnimDecoderGetDemuxer(decoder), tags);
    WebPAnimDecoderDelete(decoder);
    return err;
}

#endif
