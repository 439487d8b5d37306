/* bootstrap_fixture: a rank's bootstrap without its thread, with the other ends of its connections in our hands. */
#ifndef TESTS_BOOTSTRAP_FIXTURE_H
#define TESTS_BOOTSTRAP_FIXTURE_H

#include "tests/fuzz/fuzz.h"
#include "verbs/bootstrap_internal.h"

#define FIXTURE_RANKS 4

struct fixture {
    struct bootstrap bootstrap;
    struct link links[FIXTURE_RANKS];
    bool in[FIXTURE_RANKS];
    int peers[FIXTURE_RANKS]; /* the other end of each link; -1: none */
};

/* accepts: what its links take. Rank 0 has a link to each other rank, another has one, to rank 0. */
static inline void fixture_open(struct fixture *fixture, int rank, uint32_t accepts)
{
    memset(fixture, 0, sizeof *fixture);
    struct bootstrap *b = &fixture->bootstrap;
    *b = (struct bootstrap){.rank = rank,
        .nranks = FIXTURE_RANKS,
        .local_nranks = FIXTURE_RANKS,
        .timeout_ms = 1000,
        .job = 1,
        .wake_fd = -1,
        .links = fixture->links,
        .mail_end = &b->mail,
        .hub = {.sequence = 1, .in = fixture->in},
        .call = {.done = true},
        .link_count = rank == 0 ? FIXTURE_RANKS : 1};
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    for (int i = 0; i < FIXTURE_RANKS; i++) {
        fixture->peers[i] = fixture->links[i].fd = -1;
        fixture->links[i].rank = i;
        if (i >= b->link_count || i == rank) continue;
        int mine;
        fuzz_connect(&mine, &fixture->peers[i]);
        link_open(&fixture->links[i], mine, accepts, b->timeout_ms);
        fixture->links[i].rank = i;
    }
}

/* The other end of a link goes away. */
static inline void fixture_hang_up(struct fixture *fixture, int i)
{
    if (fixture->peers[i] >= 0) close(fixture->peers[i]);
    fixture->peers[i] = -1;
}

static inline void fixture_close(struct fixture *fixture)
{
    struct bootstrap *b = &fixture->bootstrap;
    for (int i = 0; i < FIXTURE_RANKS; i++) {
        fixture_hang_up(fixture, i);
        link_close(&fixture->links[i]);
    }
    while (b->mail != NULL) {
        struct mail *mail = b->mail;
        b->mail = mail->next;
        free(mail);
    }
    free(b->hub.blobs);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
}

/* What people are told is one line that ends. */
static inline void fixture_check_failure(const struct fixture *fixture)
{
    const struct bootstrap *b = &fixture->bootstrap;
    if (!b->failed) return;
    FUZZ_EXPECT(memchr(b->failure_text, '\0', sizeof b->failure_text) != NULL);
    FUZZ_EXPECT(strchr(b->failure_text, '\n') == NULL);
    FUZZ_EXPECT(b->failed_rank >= 0 && b->failed_rank < b->nranks);
    FUZZ_EXPECT(b->failure == STATUS_PEER || b->failure == STATUS_ABORTED);
}

#endif
