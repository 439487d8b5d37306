/* The bell: a sleeper is woken by a neighbour that maps its page, does not sleep through a ring that came before, and wakes by
 * itself when nobody rings. Times are only told apart by wide margins.
 * ctest: timeout=60
 */
#include <pthread.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/bell.h"
#include "verbs/clock.h"

#define LONG_NS 20000000000 /* 20 s: only a fault sleeps so long */

static void *ring_soon(void *argument)
{
    struct bell_page *page = argument;
    usleep(50000);
    bell_ring(page);
    return NULL;
}

static void check_wakes(struct bell *bell, struct bell_page *page)
{
    pthread_t thread;
    int64_t begin = clock_ns();
    uint32_t rings = bell_listen(bell);
    CHECK(pthread_create(&thread, NULL, ring_soon, page) == 0);
    bell_sleep(bell, rings, LONG_NS);
    CHECK(clock_ns() - begin < LONG_NS / 2);
    pthread_join(thread, NULL);
}

/* The neighbour posts in a loop while the owner goes to sleep and wakes: a lost ring would cost LONG_NS each. */
struct race {
    struct bell_page *page;
    uint64_t posted; /* used through __atomic builtins */
};

static void *post_often(void *argument)
{
    struct race *race = argument;
    for (int i = 0; i < 2000; i++) {
        __atomic_add_fetch(&race->posted, 1, __ATOMIC_RELEASE);
        bell_ring(race->page);
        if (i % 10 == 0) usleep(10);
    }
    return NULL;
}

static void check_race(struct bell *bell, struct bell_page *page)
{
    struct race race = {.page = page};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, post_often, &race) == 0);
    int64_t begin = clock_ns();
    for (uint64_t seen = 0; seen < 2000;) {
        uint32_t rings = bell_listen(bell);
        uint64_t now = __atomic_load_n(&race.posted, __ATOMIC_ACQUIRE);
        if (now == seen) bell_sleep(bell, rings, LONG_NS);
        else bell_awake(bell);
        seen = now;
    }
    CHECK(clock_ns() - begin < LONG_NS / 2);
    pthread_join(thread, NULL);
}

int main(void)
{
    struct bell *bell = NULL;
    CHECK_OK(bell_open(&bell));
    struct bell_offer offer = bell_offer(bell);
    struct bell_page *page = bell_attach(&offer);
    CHECK(page != NULL);
    check_wakes(bell, page);
    check_wakes(bell, bell_own_page(bell));
    check_race(bell, page);

    uint32_t rings = bell_listen(bell);
    bell_ring(page); /* came between the look and the sleep */
    int64_t begin = clock_ns();
    bell_sleep(bell, rings, LONG_NS);
    CHECK(clock_ns() - begin < LONG_NS / 2);

    begin = clock_ns();
    bell_sleep(bell, bell_listen(bell), 20000000); /* nobody rings */
    CHECK(clock_ns() - begin >= 15000000);

    struct bell_offer wrong = offer;
    wrong.nonce++;
    CHECK(bell_attach(&wrong) == NULL);
    wrong = offer;
    wrong.fd = 9999;
    CHECK(bell_attach(&wrong) == NULL);
    bell_ring(NULL);
    bell_close(bell);
    bell_ring(page); /* closing does not take the page from neighbours */
    bell_detach(page);
    bell_detach(NULL);
    return test_result();
}
