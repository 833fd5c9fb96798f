/*
 * lease_claims.c - how often each lease is claimed: runners that share a resource may capture the
 * same bucket, and what it took for that is there until the last of them has given it back.
 */
#include <string.h>

#include "step/step.h"

static int64_t find(const mst_lease_claims *claims, const mstar_lease *lease)
{
    for (int64_t i = 0; i < claims->count; i++) {
        const mstar_lease *other = &claims->items[i].lease;
        if (other->slot == lease->slot && mstar_bucket_key_equal(&other->key, &lease->key))
            return i;
    }
    return -1;
}

mstar_status mst_bucket_key_keep(mst_texts *texts, const mstar_bucket_key *bucket,
                                 mstar_bucket_key *key)
{
    *key = *bucket;
    if (bucket->walk != NULL)
        MST_TRY(mst_texts_keep(texts, bucket->walk, &key->walk));
    if (bucket->additional_key_info != NULL)
        MST_TRY(mst_texts_keep(texts, bucket->additional_key_info, &key->additional_key_info));
    return MSTAR_OK;
}

static mstar_status add(mst_lease_claims *claims, mst_texts *texts, const mstar_lease *lease)
{
    int64_t at = find(claims, lease);
    if (at >= 0) {
        claims->items[at].times++;
        return MSTAR_OK;
    }
    mst_lease_claim made = {.lease = *lease, .times = 1};
    MST_TRY(mst_bucket_key_keep(texts, &lease->key, &made.lease.key));
    void *items = claims->items;
    MST_TRY(mst_grow(&items, &claims->capacity, claims->count + 1, sizeof *claims->items,
                     "claimed leases"));
    claims->items = items;
    claims->items[claims->count++] = made;
    return MSTAR_OK;
}

mstar_status mst_claims_add(mst_lease_claims *claims, mst_texts *texts, const mstar_lease *leases,
                            int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        mstar_status status = add(claims, texts, &leases[i]);
        if (status == MSTAR_OK)
            continue;
        while (i-- > 0)
            (void)mst_claims_drop(claims, &leases[i]);
        return status;
    }
    return MSTAR_OK;
}

bool mst_claims_drop(mst_lease_claims *claims, const mstar_lease *lease)
{
    int64_t at = find(claims, lease);
    if (at < 0)
        return false;
    if (--claims->items[at].times > 0)
        return false;
    claims->items[at] = claims->items[--claims->count];
    return true;
}
