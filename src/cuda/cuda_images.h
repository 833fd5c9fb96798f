/*
 * cuda_images.h - the embedded images by name: one a head dim, the plain f32 kernels, those of
 * rows, and the product.
 *
 * A build without nvcc has none: MST_CUDA_IMAGE is then a few bytes that no driver would take,
 * which only a mock driver ever sees, since such a build does not offer the device.
 */
#ifndef MST_CUDA_IMAGES_H
#define MST_CUDA_IMAGES_H

#define MST_CUDA_IMAGES(X) \
    X(rows)                \
    X(linear)              \
    X(attn_reference)      \
    X(attn_group)          \
    X(attn_hopper)         \
    X(attn_hd16)           \
    X(attn_hd32)           \
    X(attn_hd48)           \
    X(attn_hd64)           \
    X(attn_hd80)           \
    X(attn_hd96)           \
    X(attn_hd112)          \
    X(attn_hd128)          \
    X(attn_hd144)          \
    X(attn_hd160)          \
    X(attn_hd176)          \
    X(attn_hd192)          \
    X(attn_hd208)          \
    X(attn_hd224)          \
    X(attn_hd240)          \
    X(attn_hd256)

#if defined(MST_HAVE_CUDA)
#define MST_CUDA_DECLARE(name) extern const unsigned char mst_cuda_image_##name[];
MST_CUDA_IMAGES(MST_CUDA_DECLARE)
#undef MST_CUDA_DECLARE
#define MST_CUDA_IMAGE(name) mst_cuda_image_##name
#else
#define MST_CUDA_IMAGE(name) "no image"
#endif

#endif
