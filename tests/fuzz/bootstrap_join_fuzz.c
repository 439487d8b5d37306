/* bootstrap_join_fuzz: the start: what a stranger sends to rank 0's port, and what something that is not rank 0
 * answers.
 *
 * input   side, { length, bytes }…     side even: three connections to rank 0, a piece each; odd: one answer to a joining rank
 */
#include "verbs/bootstrap_join.c"

#include "tests/fuzz/bootstrap_fixture.h"

#define STRANGERS 3

static void hear_strangers(struct fixture *fixture, struct fuzz_input *input)
{
    struct bootstrap *b = &fixture->bootstrap;
    struct pending pending[STRANGERS];
    bool in[FIXTURE_RANKS] = {true};
    struct hello hellos[FIXTURE_RANKS] = {{0}};
    struct lobby lobby = {.bootstrap = b,
        .listen_fd = -1,
        .pending = pending,
        .pending_room = STRANGERS,
        .in_count = 1,
        .in = in,
        .hellos = hellos};
    introduce(&hellos[0], b, b->job);
    int peers[STRANGERS];
    for (int i = 0; i < STRANGERS; i++) {
        int mine;
        fuzz_connect(&mine, &peers[i]);
        memset(&pending[i], 0, sizeof pending[i]);
        link_open(&pending[i].link, mine, BIT(FRAME_HELLO), b->timeout_ms);
        pending[i].deadline_ns = clock_ns() + clock_ms_to_ns(PENDING_MS);
        lobby.pending_count++;
        fuzz_write_piece(peers[i], input);
        close(peers[i]);
    }
    for (int i = STRANGERS - 1; i >= 0; i--) hear_pending(&lobby, i);
    FUZZ_EXPECT(lobby.pending_count == 0 && lobby.in_count <= FIXTURE_RANKS);
    for (int r = 1; r < FIXTURE_RANKS; r++) {
        FUZZ_EXPECT(in[r] == (b->links[r].fd >= 0));
        FUZZ_EXPECT(memchr(hellos[r].host, '\0', sizeof hellos[r].host) != NULL);
        FUZZ_EXPECT(memchr(hellos[r].address, '\0', sizeof hellos[r].address) != NULL);
    }
    if (join_settle_addresses(hellos, b) == STATUS_OK) welcome_all(&lobby);
    for (int r = 1; r < FIXTURE_RANKS; r++)
        if (in[r]) hear_admitted(&lobby, r);
}

static void hear_rank_zero(struct fixture *fixture, struct fuzz_input *input)
{
    struct bootstrap *b = &fixture->bootstrap;
    enum status status = STATUS_OK;
    char why[WHY_BYTES] = "";
    uint64_t job = fuzz_byte(input);
    while (input->bytes > 0) fuzz_write_piece(fixture->peers[0], input);
    fixture_hang_up(fixture, 0);
    enum answer answer = hear_answer(b, job, clock_ns() + clock_ms_to_ns(1000), &status, why, "fuzz:1");
    FUZZ_EXPECT((answer == ANSWER_FAILED) == (status != STATUS_OK));
    if (answer == ANSWER_WELCOME) FUZZ_EXPECT(b->local_rank >= 0 && b->local_rank < b->local_nranks && b->job != 0);
    FUZZ_EXPECT(memchr(b->address, '\0', sizeof b->address) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    bool member = fuzz_byte(&input) & 1;
    struct fixture fixture;
    fixture_open(&fixture, member ? 1 : 0, BIT(FRAME_WELCOME) | BIT(FRAME_REFUSED));
    if (!member)
        for (int r = 1; r < FIXTURE_RANKS; r++) { /* nobody is in yet */
            fixture_hang_up(&fixture, r);
            link_close(&fixture.links[r]);
        }
    if (member) hear_rank_zero(&fixture, &input);
    else hear_strangers(&fixture, &input);
    fixture_close(&fixture);
    return 0;
}
