/*
 * graph_buckets.c - from a record of lengths to a config, and from a step to its bucket.
 *
 * Needs no model: it plans buckets for token counts, makes the config that captures them, and asks
 * which bucket serves a step.
 */
#include <stdio.h>

#include "mstar.h"

enum { MOST = 4, LENGTHS = 12 };

#define TRY(call)                                                                        \
    do {                                                                                 \
        mstar_status status_ = (call);                                                   \
        if (status_ != MSTAR_OK) {                                                       \
            fprintf(stderr, "%s: %s\n", mstar_status_text(status_), mstar_last_error()); \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

/* A request of num_tokens tokens; 0 of them is how a step is padded. */
static mstar_status make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    static int32_t ids[1024];
    static mstar_named_tensor tensor;
    (void)user;
    tensor.name = "ids";
    tensor.tensor = mstar_tensor_make(ids, MSTAR_DTYPE_I32, 1, &num_tokens);
    input->tensors = &tensor;
    input->num_tensors = 1;
    return MSTAR_OK;
}

static int ask(const mstar_graph_config *config, int64_t bs, int64_t tokens)
{
    mstar_graph_bucket captures[64];
    int64_t count;
    TRY(mstar_graph_list_captures(&config, 1, 1, captures, 64, &count));
    mstar_graph_request request;
    mstar_graph_request_init(&request);
    request.walk = "embed";
    request.bs = bs;
    request.num_tokens = tokens;
    mstar_graph_choice choice = {.struct_size = sizeof choice};
    TRY(mstar_graph_choose(captures, NULL, count, &request, &choice));
    if (choice.miss == MSTAR_GRAPH_MISS_NONE)
        printf("%lld requests of %lld tokens: bucket of %lld\n", (long long)bs, (long long)tokens,
               (long long)captures[choice.index].num_tokens);
    else
        printf("%lld requests of %lld tokens: eager, %s\n", (long long)bs, (long long)tokens,
               mstar_graph_miss_text(choice.miss));
    return 0;
}

int main(void)
{
    static const int64_t lengths[LENGTHS] = {12, 40, 9, 33, 120, 17, 8, 61, 25, 14, 90, 31};
    mstar_traffic_step steps[LENGTHS];
    mstar_traffic_bucket buckets[MOST];
    int64_t num_steps, num_buckets, tokens[MOST], sizes[1] = {0};
    TRY(mstar_traffic_batch(lengths, LENGTHS, 2, -1, steps, &num_steps));
    TRY(mstar_traffic_plan(steps, num_steps, MOST, buckets, &num_buckets));
    for (int64_t i = 0; i < num_buckets; i++) {
        tokens[i] = buckets[i].num_tokens;
        sizes[0] = buckets[i].bs > sizes[0] ? buckets[i].bs : sizes[0];
    }
    printf("%lld buckets, %.1f %% padding\n", (long long)num_buckets,
           100 * mstar_traffic_waste(buckets, num_buckets));

    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "embed";
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = 1;
    desc.capture_token_lengths = tokens;
    desc.num_capture_token_lengths = num_buckets;
    desc.make_node_input = make_input;
    mstar_graph_config *config = NULL;
    TRY(mstar_packed_graph_config_create(&desc, &config));
    int failed = ask(config, 2, 50) + ask(config, 1, 120) + ask(config, 2, 400) + ask(config, 3, 9);
    mstar_graph_config_destroy(config);
    return failed;
}
