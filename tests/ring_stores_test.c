/* The choice between plain and streaming stores: tries both, takes the better, for each size by itself, and follows when the machine
 * changes its state.
 * ctest: timeout=10
 */
#include "ring/stores.h"
#include "tests/harness/harness.h"

#define LARGE ((size_t)16 << 20)

/* Runs operations on a machine where a byte costs this much; returns how many of them streamed. */
static int run(struct stores *stores, size_t bytes, int operations, double plain_ns, double streaming_ns)
{
    int streamed = 0;
    for (int i = 0; i < operations; i++) {
        bool streaming = stores_choose(stores, bytes);
        streamed += streaming;
        double noise = 1.0 + 0.1 * (i % 3);
        stores_learn(stores, bytes, streaming, (int64_t)((double)bytes * (streaming ? streaming_ns : plain_ns) * noise));
    }
    return streamed;
}

int main(void)
{
    struct stores stores = {0};
    CHECK(run(&stores, LARGE, 4, 0.2, 0.1) == 2); /* both are tried first */
    CHECK(run(&stores, LARGE, 200, 0.2, 0.1) == 200);
    CHECK(run(&stores, LARGE, 400, 0.1, 0.7) < 60); /* the state has changed: believed within a few dozen */
    CHECK(run(&stores, LARGE, 1000, 0.1, 0.7) <= 4); /* the other is tried now and then */
    CHECK(run(&stores, LARGE, 600, 0.8, 0.1) > 400);

    CHECK(run(&stores, (size_t)1 << 20, 104, 0.1, 0.2) == 2); /* another size knows nothing of that */
    CHECK(run(&stores, 1000, 100, 0.9, 0.1) == 0);            /* small ones stay in cache */
    CHECK(run(&stores, 0, 10, 1, 1) == 0);
    CHECK(run(&stores, SIZE_MAX / 4, 4, 1e-9, 1e-9) == 2);
    return test_result();
}
