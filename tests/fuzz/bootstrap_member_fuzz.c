/* bootstrap_member_fuzz: frames of rank 0, as a member reads them, while it waits for an all-gather and looks for mail,
 * and after a failure while it waits for its place among those that are left.
 *
 * input   { length, bytes }…
 */
#include "verbs/bootstrap_service.c"
#include "verbs/bootstrap_shrink.c"

#include "tests/fuzz/bootstrap_fixture.h"

#define BIT(type) (1u << (type))
#define RANK      2

static void take_mail(struct bootstrap *b)
{
    unsigned char blob[16];
    bool found;
    for (int from = 0; from < FIXTURE_RANKS; from++)
        for (uint64_t key = 0; key < 2; key++) {
            enum status status = bootstrap_take(blob, sizeof blob, &found, from, key, b);
            FUZZ_EXPECT(status == STATUS_OK || !found);
        }
}

static void hear_places(struct bootstrap *b)
{
    struct link *link = &b->links[0];
    link->accepts |= BIT(FRAME_SHRUNK) | BIT(FRAME_REFUSED);
    for (;;) {
        enum link_event event = link_receive(link);
        if (event == LINK_CLOSED || event == LINK_BAD) link_close(link);
        if (event != LINK_FRAME) return;
        if (link->frame.type != FRAME_SHRUNK && link->frame.type != FRAME_REFUSED) continue;
        struct shrunk place = {0};
        enum status status = hear_place(&place, b);
        FUZZ_EXPECT(status != STATUS_OK || (place.rank > 0 && place.rank < place.nranks && place.nranks <= FIXTURE_RANKS));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    struct fixture fixture;
    fixture_open(&fixture, RANK,
        BIT(FRAME_GATHERED) | BIT(FRAME_VERDICT) | BIT(FRAME_POST) | BIT(FRAME_DEAD) | BIT(FRAME_ABORT) |
            BIT(FRAME_BYE));
    struct bootstrap *b = &fixture.bootstrap;

    /* This rank waits for collective 1, in a buffer of exactly the right size. */
    size_t blob_bytes = fuzz_byte(&input);
    unsigned char *blobs = malloc(blob_bytes * FIXTURE_RANKS + 1);
    if (blobs == NULL) abort();
    b->call = (struct gather_call){.sequence = 1, .blobs = blobs, .bytes = blob_bytes};
    b->links[0].gathered_bytes = blob_bytes * FIXTURE_RANKS;
    while (input.bytes > 0) {
        fuzz_write_piece(fixture.peers[0], &input);
        if (b->links[0].fd >= 0 && b->failed) hear_places(b);
        else if (b->links[0].fd >= 0) read_link(b, &b->links[0]);
        take_mail(b);
    }
    fixture_hang_up(&fixture, 0);
    for (int i = 0; i < 1000 && b->links[0].fd >= 0; i++) read_link(b, &b->links[0]);
    FUZZ_EXPECT(b->failed || b->all_left);
    fixture_check_failure(&fixture);
    fixture_close(&fixture);
    free(blobs);
    return 0;
}
