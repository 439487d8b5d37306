/* agree: see agree.h. */
#include "shard/agree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct verdict {
    int status;
    char text[STATUS_TEXT_BYTES];
};

enum status agree(enum status status, struct bootstrap *bootstrap)
{
    int nranks = bootstrap_nranks(bootstrap);
    struct verdict *all = calloc((size_t)nranks, sizeof *all), *own;
    if (all == NULL) return FAIL(STATUS_SYSTEM, "no memory to hear %d ranks", nranks);
    own = &all[bootstrap_rank(bootstrap)];
    own->status = status;
    if (status != STATUS_OK) snprintf(own->text, sizeof own->text, "%s", status_text());
    enum status result = bootstrap_all_gather(all, sizeof *all, bootstrap);
    if (status != STATUS_OK) { /* whatever became of the others: this is why */
        status_set_text(own->text);
        result = status;
    }
    for (int r = 0; r < nranks && result == STATUS_OK; r++)
        if (all[r].status != STATUS_OK)
            result = FAIL((enum status)all[r].status, "rank %d: %.900s", r, all[r].text);
    free(all);
    return result;
}

void agree_text(char text[AGREE_TEXT_BYTES], double value, const struct agree_value *like)
{
    if (like->word != NULL) snprintf(text, AGREE_TEXT_BYTES, "%s", like->word(value));
    else snprintf(text, AGREE_TEXT_BYTES, value == floor(value) ? "%.0f" : "%.7g", value);
}

enum status agree_values(const struct agree_value *values, int count, struct bootstrap *bootstrap)
{
    int nranks = bootstrap_nranks(bootstrap), rank = bootstrap_rank(bootstrap);
    size_t stride = (size_t)count;
    double *all = calloc((size_t)nranks * stride, sizeof *all);
    if (all == NULL)
        return FAIL(STATUS_SYSTEM, "no memory to compare %d settings of %d ranks", count, nranks);
    for (int i = 0; i < count; i++) all[(size_t)rank * stride + (size_t)i] = values[i].value;
    enum status status = bootstrap_all_gather(all, stride * sizeof *all, bootstrap);
    for (int r = 1; r < nranks && status == STATUS_OK; r++)
        for (int i = 0; i < count && status == STATUS_OK; i++) {
            double zero = all[i], other = all[(size_t)r * stride + (size_t)i];
            if (zero == other) continue;
            char a[AGREE_TEXT_BYTES], b[AGREE_TEXT_BYTES];
            agree_text(a, zero, &values[i]);
            agree_text(b, other, &values[i]);
            status = FAIL(STATUS_INVALID,
                "%s is %s on rank 0 and %s on rank %d: give all ranks the same value",
                values[i].name, a, b, r);
        }
    free(all);
    return status;
}
