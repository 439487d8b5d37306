/* Ranks that die, and the others going on: communicators shrunk to the survivors.
 * ctest: timeout=120
 *
 * Every survivor reduces in a loop, shrinks when that fails, and checks after each shrink that numbers, order and sums are those of the
 * ranks that are left. Who dies, and when, is each case's: once, one after another, two at once, while others shrink, the hub.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"
#include "verbs/clock.h"

#define DEADLINE_MS 20000
#define COUNT       60000 /* on the ring; 100 of them as an exchange */

/* What each rank of the first job does: a bit a rank. */
struct plan_of_deaths {
    const char *transport;
    unsigned first, second; /* die in the first and in the second communicator, */
    unsigned shrinking;     /* or while the others shrink: some before they have said so, some after */
    unsigned survivors;
    int delay_us; /* of the deaths while shrinking */
    bool two_hosts; /* even and odd ranks say that they are on two */
};

struct member {
    int id; /* rank in the first job */
    const struct plan_of_deaths *plan;
    struct device *device;
    struct ring_comm *comm;
    struct bootstrap *bootstrap; /* NULL: the harness's */
    int rounds;                  /* communicators so far */
};

static bool is_in(unsigned set, int id) { return (set >> id & 1) != 0; }

static void *die_soon(void *argument)
{
    int delay_us = *(const int *)argument;
    if (delay_us > 0) usleep((useconds_t)delay_us);
    raise(SIGKILL);
    return NULL;
}

/* Sums say who is in: rank r of the first job brings 1 << r. */
static enum status reduce_both_ways(uint32_t *sum, struct member *member)
{
    static _Thread_local uint32_t x[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = 1u << member->id;
    TRY(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 100, DTYPE_UINT32, REDOP_SUM, member->comm, NULL));
    TRY(ring_all_reduce(span_host(x + 100, sizeof x - 400), span_host(x + 100, sizeof x - 400), COUNT - 100, DTYPE_UINT32,
        REDOP_SUM, member->comm, NULL));
    CHECK(x[0] == x[COUNT - 1]);
    *sum = x[0];
    return STATUS_OK;
}

static enum status shrink(struct member *member)
{
    struct bootstrap *survivors = NULL;
    struct ring_comm *comm = NULL;
    enum status status = ring_comm_shrink(&comm, &survivors, member->comm);
    bootstrap_close(member->bootstrap);
    member->comm = comm;
    member->bootstrap = survivors;
    member->rounds++;
    return status;
}

/* Until all that is to die has died, and the others have reduced together. */
static void reduce_until_only_survivors_are_left(struct member *member)
{
    const struct plan_of_deaths *plan = member->plan;
    static const int in_operation_us = 3000;
    uint32_t sum = 0;
    pthread_t killer;
    int64_t begin = clock_ns();
    while (sum != plan->survivors && clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS)) {
        bool dies = is_in(member->rounds == 0 ? plan->first : plan->second, member->id) && (member->rounds == 0 || sum != 0);
        if (dies) pthread_create(&killer, NULL, die_soon, (void *)(uintptr_t)&in_operation_us);
        enum status status = reduce_both_ways(&sum, member);
        while (dies) status = reduce_both_ways(&sum, member) == status ? status : STATUS_OK;
        if (status == STATUS_OK) continue;
        CHECK_MSG(status == STATUS_PEER || status == STATUS_ABORTED, "%s: %s", status_name(status), status_text());
        sum = 0;
        if (is_in(plan->shrinking, member->id)) pthread_create(&killer, NULL, die_soon, (void *)(uintptr_t)&plan->delay_us);
        if (!CHECK_OK(shrink(member))) return;
    }
    CHECK_MSG(sum == plan->survivors, "rank %d: sum %x, expected %x", member->id, sum, plan->survivors);
}

/* Numbers and order: survivors stand in the order of their first ranks, and everything works. */
static void check_the_new_world(struct member *member)
{
    int rank = 0, nranks = 0;
    for (int r = 0; r < 8; r++) {
        nranks += is_in(member->plan->survivors, r);
        rank += is_in(member->plan->survivors, r) && r < member->id;
    }
    struct ring_comm *comm = member->comm, *part = NULL;
    CHECK(ring_comm_rank(comm) == rank && ring_comm_nranks(comm) == nranks);
    CHECK(bootstrap_rank(member->bootstrap) == rank && bootstrap_nranks(member->bootstrap) == nranks);
    CHECK(bootstrap_local_rank(member->bootstrap) == rank && bootstrap_local_nranks(member->bootstrap) == nranks);
    int32_t ids[8], id = member->id;
    CHECK_OK(ring_all_gather(span_host(ids, sizeof ids), span_host(&id, 4), 1, DTYPE_INT32, comm, NULL));
    for (int r = 0, next = 0; r < 8; r++)
        if (is_in(member->plan->survivors, r)) CHECK(ids[next++] == r);
    CHECK_OK(ring_comm_split(&part, rank % 2, 0, comm));
    int32_t one = 1;
    CHECK_OK(ring_all_reduce(span_host(&one, 4), span_host(&one, 4), 1, DTYPE_INT32, REDOP_SUM, part, NULL));
    CHECK(one == (nranks + 1 - rank % 2) / 2);
    ring_comm_close(part);
    CHECK_OK(bootstrap_barrier(member->bootstrap));
}

static void open_member(struct member *member, const struct plan_of_deaths *plan, struct bootstrap *bootstrap)
{
    *member = (struct member){.id = bootstrap_rank(bootstrap), .plan = plan};
    CHECK_OK(device_open(&member->device, "host"));
    char host[8]; /* need not outlive the call */
    snprintf(host, sizeof host, "host %d", member->id % 2);
    struct ring_config config = {.transport = plan->transport, .host = plan->two_hosts ? host : NULL};
    CHECK_OK(ring_comm_open(&member->comm, &config, bootstrap, member->device));
}

static void close_member(struct member *member)
{
    ring_comm_close(member->comm);
    CHECK(memory_account_read(member->device).now[MEMORY_COMMUNICATION] == 0);
    bootstrap_close(member->bootstrap);
    device_close(member->device);
}

static void survivor_body(struct bootstrap *bootstrap, void *argument)
{
    struct member member;
    open_member(&member, argument, bootstrap);
    reduce_until_only_survivors_are_left(&member);
    if (member.comm != NULL) check_the_new_world(&member);
    close_member(&member);
}

/* ---- the hub dies: nobody can go on, and everybody knows at once ---- */

static void hub_body(struct bootstrap *bootstrap, void *argument)
{
    struct member member;
    uint32_t sum;
    pthread_t killer;
    static const int soon_us = 50000;
    open_member(&member, argument, bootstrap);
    if (member.id == 0) pthread_create(&killer, NULL, die_soon, (void *)(uintptr_t)&soon_us);
    enum status status = STATUS_OK;
    while (status == STATUS_OK) status = reduce_both_ways(&sum, &member);
    int64_t failed = clock_ns();
    CHECK_STATUS(shrink(&member), STATUS_PEER);
    CHECK(clock_ns() - failed < clock_ms_to_ns(1000));
    CHECK_MSG(strstr(status_text(), "cannot go on without rank 0") != NULL, "%s", status_text());
    CHECK(member.comm == NULL && member.bootstrap == NULL);
    close_member(&member);
}

/* Rank 2 dies, and then rank 0 while the others shrink: soon enough an error that names it, whatever they had reached. */
static void hub_later_body(struct bootstrap *bootstrap, void *argument)
{
    struct member member;
    uint32_t sum;
    pthread_t killer;
    static const int soon_us = 50000;
    open_member(&member, argument, bootstrap);
    if (member.id == 2) pthread_create(&killer, NULL, die_soon, (void *)(uintptr_t)&soon_us);
    enum status status = STATUS_OK;
    int64_t begin = clock_ns();
    while (member.comm != NULL && clock_ns() - begin < clock_ms_to_ns(5000)) {
        while (status == STATUS_OK) status = reduce_both_ways(&sum, &member);
        if (member.id == 0) pthread_create(&killer, NULL, die_soon, (void *)(uintptr_t)&member.plan->delay_us);
        status = shrink(&member);
    }
    CHECK_MSG(status == STATUS_PEER && strstr(status_text(), "rank 0") != NULL, "%s: %s", status_name(status), status_text());
    CHECK(member.comm == NULL && member.bootstrap == NULL);
    close_member(&member);
}

/* ---- an abort: nobody died, all go on; and calls that are refused ---- */

static void abort_body(struct bootstrap *bootstrap, void *argument)
{
    struct member member;
    uint32_t sum = 0;
    open_member(&member, argument, bootstrap);
    struct bootstrap *survivors;
    struct ring_comm *comm, *part;
    CHECK_OK(ring_comm_split(&part, member.id % 2, 0, member.comm));
    CHECK_STATUS(ring_comm_shrink(&comm, &survivors, member.comm), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), "has not failed") != NULL, "%s", status_text());
    CHECK_OK(reduce_both_ways(&sum, &member)); /* and it still works */
    CHECK_OK(ring_barrier(member.comm, NULL));
    ring_comm_set_premul(member.comm, 3);
    for (int turn = 0; turn < 3; turn++) {
        CHECK_OK(bootstrap_barrier(turn == 0 ? bootstrap : member.bootstrap)); /* nobody is in an operation any more */
        if (member.id == 2 - turn) ring_comm_abort(member.comm, "a change of plan");
        enum status status = STATUS_OK;
        while (status == STATUS_OK) status = reduce_both_ways(&sum, &member);
        if (turn == 0) {
            CHECK_STATUS(ring_comm_shrink(&comm, &survivors, part), STATUS_INVALID);
            CHECK_MSG(strstr(status_text(), "part of 2 of the job's 4") != NULL, "%s", status_text());
            ring_comm_close(part);
        }
        if (!CHECK_OK(shrink(&member))) break;
        CHECK_OK(reduce_both_ways(&sum, &member));
        CHECK(sum == 15);
        int32_t x = 1;
        CHECK_OK(ring_all_reduce(span_host(&x, 4), span_host(&x, 4), 1, DTYPE_INT32, REDOP_PREMUL_SUM, member.comm, NULL));
        CHECK(x == 12); /* settings came along, */
        for (int r = 0; r < 4; r++) CHECK(ring_comm_host(member.comm, r) == (member.plan->two_hosts ? r % 2 : 0)); /* and hosts */
    }
    close_member(&member);
}

/* ---- a rank that is alive but does not come ---- */

static void late_body(struct bootstrap *bootstrap, void *argument)
{
    struct member member;
    uint32_t sum = 0;
    open_member(&member, argument, bootstrap);
    CHECK_OK(bootstrap_barrier(bootstrap));
    if (member.id == 1) ring_comm_abort(member.comm, "something else");
    if (member.id == 2) usleep(1500000); /* the timeout of this job is 500 ms */
    enum status status = STATUS_OK;
    while (status == STATUS_OK) status = reduce_both_ways(&sum, &member);
    if (member.id == 2) {
        status = shrink(&member);
        CHECK_MSG(status == STATUS_TIMEOUT || status == STATUS_PEER, "%s: %s", status_name(status), status_text());
    } else {
        CHECK_OK(shrink(&member));
        CHECK_OK(reduce_both_ways(&sum, &member));
        CHECK_MSG(sum == 0xb, "sum %x", sum);
    }
    close_member(&member);
}

static void check_deaths(int nranks, const struct plan_of_deaths *plan)
{
    int dead = 0;
    for (int r = 0; r < nranks; r++) dead += !is_in(plan->survivors, r);
    int failed = ranks_as_processes(nranks, DEADLINE_MS, survivor_body, (void *)(uintptr_t)plan, -1);
    CHECK_MSG(failed == dead, "%s: %d of %d ranks failed, %d were to die (%x, then %x, %x while shrinking after %d us)", plan->transport,
        failed, nranks, dead, plan->first, plan->second, plan->shrinking, plan->delay_us);
}

int main(void)
{
    int before = count_files("/dev/shm", "ringzero");
    for (int t = 0; t < 2; t++) {
        const char *transport = t == 0 ? "shm" : "tcp";
        check_deaths(4, &(struct plan_of_deaths){transport, .first = 4, .survivors = 0xb});
        check_deaths(4, &(struct plan_of_deaths){transport, .first = 8, .second = 2, .survivors = 5});
        check_deaths(5, &(struct plan_of_deaths){transport, .first = 0xa, .survivors = 0x15});
        check_deaths(3, &(struct plan_of_deaths){transport, .first = 2, .second = 4, .survivors = 1}); /* one rank is left */
        for (int delay_us = 0; delay_us <= 4000; delay_us += 500)
            check_deaths(4, &(struct plan_of_deaths){transport, .first = 4, .shrinking = 2, .survivors = 9, .delay_us = delay_us});
        CHECK(ranks_as_processes(3, DEADLINE_MS, hub_body, &(struct plan_of_deaths){.transport = transport}, 0) == 0);
        for (int delay_us = 0; delay_us <= 2000; delay_us += 500) /* 0 and 2 fail: they die */
            CHECK(ranks_as_processes(4, DEADLINE_MS, hub_later_body,
                      &(struct plan_of_deaths){.transport = transport, .delay_us = delay_us}, -1) == 2);
        ranks_as_threads(4, DEADLINE_MS, abort_body, &(struct plan_of_deaths){.transport = transport, .two_hosts = t == 1});
        ranks_as_threads(4, 500, late_body, &(struct plan_of_deaths){.transport = transport});
    }
    CHECK(count_files("/dev/shm", "ringzero") == before);
    return test_result();
}
