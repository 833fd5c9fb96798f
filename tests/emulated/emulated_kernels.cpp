/* emulated_kernels.cpp - every attention kernel over the emulated machine. */
#include "emulated_gpu.h"

#include "cuda/attn_reference.cu"
#include "cuda/attn_tile.cuh"

#include "emulated_kernels.h"
#include "emulated_run.h"

namespace
{

template <typename T, int DT, int BN, int MT, int STAGES, bool GROUP = false>
void run_tile(const mst_cuda_attn_args &args, char *shared)
{
    mst::tile<T, DT, BN, MT, STAGES, GROUP> t;
    t.run(args, shared);
}

template <typename T> void run_plain(const mst_cuda_attn_args &args, char *)
{
    run<T>(args);
}

const struct {
    const char *symbol;
    emulated_kernel *kernel;
} kernels[] = {
    {"mst_attn_f32_reference_sm80", run_plain<f32>},
    {"mst_attn_bf16_reference_sm80", run_plain<half<mst::bf16>>},
    {"mst_attn_f16_reference_sm80", run_plain<half<mst::f16>>},
#define MST_ATTN(HD, BN, MT, STAGES, BLOCKS)                         \
    {"mst_attn_bf16_hd" #HD "_m" #MT "n" #BN "s" #STAGES "_sm80",    \
     run_tile<mst::bf16, HD, BN, MT, STAGES>},                       \
        {"mst_attn_f16_hd" #HD "_m" #MT "n" #BN "s" #STAGES "_sm80", \
         run_tile<mst::f16, HD, BN, MT, STAGES>},
#include "cuda/cuda_attn.def"
#undef MST_ATTN
#define MST_ATTN_GROUP(HD, BN, STAGES, BLOCKS)                   \
    {"mst_attn_bf16_hd" #HD "_m1n" #BN "s" #STAGES "_sm90",      \
     run_tile<mst::bf16, HD, BN, 1, STAGES, true>},              \
        {"mst_attn_f16_hd" #HD "_m1n" #BN "s" #STAGES "_sm90",   \
         run_tile<mst::f16, HD, BN, 1, STAGES, true>},
/* The copy engine is not emulated: the same kernel with copies of its own has the same bits. */
#define MST_ATTN_BULK(HD, BN, STAGES, BLOCKS)                    \
    {"mst_attn_bf16_hd" #HD "_c1n" #BN "s" #STAGES "_sm90",      \
     run_tile<mst::bf16, HD, BN, 1, STAGES, true>},              \
        {"mst_attn_f16_hd" #HD "_c1n" #BN "s" #STAGES "_sm90",   \
         run_tile<mst::f16, HD, BN, 1, STAGES, true>},
#include "cuda/cuda_attn_group.def"
#undef MST_ATTN_BULK
#undef MST_ATTN_GROUP
/* Tall tiles by way of the copy engine are not emulated: the portable kernel reads the same list, and
   has the same bits. */
#define MST_ATTN_TALL(HD, GROUPS, STAGES)                                   \
    {"mst_attn_bf16_hd" #HD "_g" #GROUPS "n64s" #STAGES "_sm90",            \
     run_tile<mst::bf16, HD, 64, GROUPS, 2>},                               \
        {"mst_attn_f16_hd" #HD "_g" #GROUPS "n64s" #STAGES "_sm90",         \
         run_tile<mst::f16, HD, 64, GROUPS, 2>},
#include "cuda/cuda_attn_tall.def"
#undef MST_ATTN_TALL
};

} // namespace

const char *emulated_launch(const char *symbol, const mst_cuda_attn_args *args, unsigned grid,
                            size_t shared_bytes, unsigned seed)
{
    for (const auto &line : kernels)
        if (std::strcmp(line.symbol, symbol) == 0)
            return emulated_run(line.kernel, args, grid, shared_bytes, seed);
    return "no such kernel";
}
