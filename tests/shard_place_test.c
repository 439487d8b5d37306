/* Where ranks stand in the grid of tensor, data and pipeline ranks, on hosts that are pretended: tensor
 * groups are inside a host however launchers number ranks, and what cannot be is as little as possible
 * and told. A run whose ranks were dealt to hosts in turn has the bits of one whose neighbours share a
 * host, its ledger is as predicted, and its checkpoint is taken up by the other.
 * ctest: timeout=60
 */
#define FIXTURE_NO_TEXT
#include "shard/grid.h"
#include "tests/shard_fixture.h"

/* ---- the rule ---- */

static void check_rule(const char *hosts, int tensor_count, const char *expected, int spanning)
{
    int host[16] = {0}, rank_at[16], nranks = (int)strlen(hosts);
    char found[64] = "";
    for (int r = 0; r < nranks; r++) host[r] = hosts[r];
    int spans = grid_place_ranks(rank_at, host, nranks, tensor_count);
    for (int i = 0; i < nranks; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%x", (unsigned)rank_at[i]);
    CHECK_MSG(strcmp(found, expected) == 0 && spans == spanning,
        "hosts %s, tensor %d: ranks %s with %d groups that span hosts, expected %s with %d", hosts,
        tensor_count, found, spans, expected, spanning);
}

static void test_rule(void)
{
    check_rule("AAAA", 2, "0123", 0);
    check_rule("AAAABBBB", 2, "01234567", 0);
    check_rule("ABABABAB", 2, "02461357", 0);
    check_rule("ABABABAB", 4, "02461357", 0);
    check_rule("ABCABCABC", 3, "036147258", 0);
    check_rule("BABA", 1, "0213", 0); /* groups of data ranks and pipelines follow hosts, too */
    check_rule("AAABBB", 2, "013425", 1);
    check_rule("AAABBBCCC", 3, "012345678", 0);
    check_rule("ABBBBBAA", 4, "12340675", 1);
    check_rule("ABAB", 4, "0213", 1);
    check_rule("ABCD", 2, "0123", 2);
}

/* ---- communicators ---- */

enum { RANKS = 8 };

static void rank_opens(struct bootstrap *bootstrap, void *argument)
{
    int rank = bootstrap_rank(bootstrap), *rank_at = argument;
    struct ring_config ring = {
        .transport = "auto", .slot_bytes = 4096, .host = rank % 2 ? "b" : "a"};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    if (!CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device))) return;
    struct grid grid = grid_at(rank, RANKS, 2, 2, 2);
    if (CHECK_OK(grid_open(&grid, comm))) {
        int own = grid_place(&grid, grid.pipeline, grid.data, grid.tensor);
        CHECK(grid_rank(&grid, grid.pipeline, grid.data, grid.tensor) == rank);
        CHECK(grid.tensor == ring_comm_rank(grid.tensor_comm));
        CHECK(ring_comm_host(grid.tensor_comm, 1) == 0);
        CHECK(grid.pipeline == ring_comm_rank(grid.pipeline_comm));
        CHECK(ring_comm_host(grid.pipeline_comm, 1) == 1);
        CHECK(grid.data == ring_comm_rank(grid.group_comm));
        rank_at[own] = rank + 1;
    }
    grid_close(&grid);
    ring_comm_close(comm);
    device_close(device);
}

static void test_communicators(void)
{
    static const int expected[RANKS] = {0, 2, 4, 6, 1, 3, 5, 7};
    int rank_at[RANKS] = {0};
    ranks_as_threads(RANKS, 20000, rank_opens, rank_at);
    for (int i = 0; i < RANKS; i++)
        CHECK_MSG(rank_at[i] == expected[i] + 1, "place %d: rank %d", i, rank_at[i] - 1);
}

/* ---- training ---- */

static void run_on_hosts(struct job_record *record, const struct train_config *config, bool in_turn)
{
    fixture_hosts = 2;
    fixture_host_turns = in_turn;
    run_good_job(record, config, RANKS, "auto");
    fixture_check_ledgers(record, in_turn ? "hosts in turn" : "neighbours on a host");
}

static void test_training(void)
{
    static struct job_record neighbours, in_turn, resumed;
    char data[256], directory[256];
    fixture_file(data, "tokens.bin");
    fixture_file(directory, "saved");
    fixture_tokens(data, 101, 2000);
    struct train_config config = fixture_config(data);
    config.model = (struct model_config){
        .max_t = 16, .vocab = 101, .layers = 2, .heads = 4, .channels = 32, .vocab_block = 40};
    config.tensor = config.pipeline = 2;
    config.stage = 3;
    config.accumulate = 2;
    config.steps = 4;
    config.activations = ACTIVATION_PART;
    run_on_hosts(&neighbours, &config, false);
    config.checkpoint_dir = directory;
    config.stop_at = 2;
    run_on_hosts(&in_turn, &config, true);
    config.checkpoint_dir = NULL;
    config.resume_dir = directory;
    config.stop_at = 0;
    run_on_hosts(&resumed, &config, false);
    CHECK(
        neighbours.rank[0].steps == 4 && in_turn.rank[0].steps == 2 && resumed.rank[0].steps == 2);
    for (int s = 0; s < 4; s++) {
        double loss = s < 2 ? in_turn.rank[0].loss[s] : resumed.rank[0].loss[s - 2];
        CHECK_MSG(loss == neighbours.rank[0].loss[s], "step %d: loss %.17g, expected %.17g", s + 1,
            loss, neighbours.rank[0].loss[s]);
    }
}

int main(void)
{
    test_rule();
    test_communicators();
    test_training();
    fixture_remove();
    return test_result();
}
