/* launch: what a process takes from its launcher's variables, and PMI-1 against a server that answers right,
 * wrong, or not at all.
 * ctest: timeout=60
 */
#include "tests/harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs/bootstrap_socket.h"
#include "verbs/clock.h"
#include "verbs/launch.h"
#include "verbs/launch_internal.h"


/* ---- torchrun ---- */

static const char *const names[] = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

/* Values in the order of names; NULL: unset. */
static void set_torchrun(const char *const values[6])
{
    for (int i = 0; i < 6; i++) {
        if (values[i] == NULL) unsetenv(names[i]);
        else setenv(names[i], values[i], 1);
    }
}

static void test_torchrun(void)
{
    struct bootstrap_config config = {.rank = 42};
    bool found = true;
    set_torchrun((const char *const[6]){NULL, NULL, "1", "2", "here", "29500"});
    CHECK_OK(launch_from_environment(&config, &found));
    CHECK(!found && config.rank == 42);

    set_torchrun((const char *const[6]){"3", "8", "1", "2", "fe80::1", "29500"});
    CHECK_OK(launch_from_environment(&config, &found));
    CHECK(found && config.rank == 3 && config.nranks == 8 && config.local_rank == 1 &&
          config.local_nranks == 2);
    CHECK(strcmp(config.address, "fe80::1") == 0 && config.port == 29500 && config.listen_fd == -1 &&
          config.job == 0);

    set_torchrun((const char *const[6]){"0", "1", NULL, NULL, NULL, NULL});
    CHECK_OK(launch_from_environment(&config, &found));
    CHECK(found && config.nranks == 1 && config.local_nranks == 0);

    const struct {
        const char *values[6];
        const char *part;
    } bad[] = {
        {{"0", NULL, NULL, NULL, "h", "1"}, "WORLD_SIZE is not set"},
        {{NULL, "2", NULL, NULL, "h", "1"}, "RANK is not set"},
        {{"2", "2", NULL, NULL, "h", "1"}, "RANK is \"2\""},
        {{"-1", "2", NULL, NULL, "h", "1"}, "RANK is \"-1\""},
        {{"1x", "2", NULL, NULL, "h", "1"}, "RANK is \"1x\""},
        {{"", "2", NULL, NULL, "h", "1"}, "RANK is \"\""},
        {{"0", "0", NULL, NULL, "h", "1"}, "WORLD_SIZE is \"0\""},
        {{"0", "99999999999999", NULL, NULL, "h", "1"}, "WORLD_SIZE is \"99999999999999\""},
        {{"0", "2", "2", NULL, "h", "1"}, "LOCAL_RANK is \"2\""},
        {{"0", "4", "2", "2", "h", "1"}, "LOCAL_RANK is \"2\""},
        {{"0", "4", "0", "5", "h", "1"}, "LOCAL_WORLD_SIZE is \"5\""},
        {{"0", "2", NULL, NULL, NULL, "1"}, "MASTER_ADDR is not set"},
        {{"0", "2", NULL, NULL, "", "1"}, "MASTER_ADDR is empty"},
        {{"0", "2", NULL, NULL, "h", NULL}, "MASTER_PORT is not set"},
        {{"0", "2", NULL, NULL, "h", "65536"}, "MASTER_PORT is \"65536\""},
        {{"0", "2", NULL, NULL, "h", "0"}, "MASTER_PORT is \"0\""},
    };
    config.rank = 42;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set_torchrun(bad[i].values);
        CHECK_STATUS(launch_from_environment(&config, &found), STATUS_INVALID);
        CHECK_MSG(strstr(status_text(), bad[i].part) != NULL, "\"%s\" is not in \"%s\"", bad[i].part,
            status_text());
        CHECK(!found && config.rank == 42);
    }
    set_torchrun((const char *const[6]){NULL});
}

/* ---- the other launchers ---- */

/* Every variable that is read, or set by a launcher that runs this test. */
static void clear_environment(void)
{
    static const char *const all[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_NTASKS",
        "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
        "SLURM_STEP_NUM_NODES", "PMIX_RANK", "PMIX_NAMESPACE", "RINGZERO_INTERFACE", "RINGZERO_TIMEOUT_MS"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unsetenv(all[i]);
}

/* Sets "NAME=value" words, the environment being otherwise clear. */
static void set_words(const char *words)
{
    char text[1024], *save = NULL;
    clear_environment();
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

#define GIVEN " MASTER_ADDR=h MASTER_PORT=1234"
#define STEP  " SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_STEP_NODELIST=n[01-02]"

static void test_launchers(void)
{
    static const struct {
        const char *words;
        const char *told_by; /* NULL: no launcher */
        int rank, nranks, local_rank, local_nranks;
    } cases[] = {
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2" GIVEN,
            "OMPI_COMM_WORLD_SIZE", 3, 4, 1, 2},
        {"PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3" GIVEN, "PMI_SIZE", 1, 3, 1, 3},
        {"PMI_RANK=1 PMI_SIZE=3" GIVEN, "PMI_SIZE", 1, 3, 0, 0},
        {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=1" STEP GIVEN, "SLURM_NTASKS", 2, 4, 1, 0},
        {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=2 SLURM_STEP_NUM_NODES=1" STEP GIVEN, "SLURM_NTASKS", 2, 4, 2, 4},
        {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7", NULL, 0, 0, 0, 0}, /* a batch script's shell */
        {"PMIX_RANK=0", NULL, 0, 0, 0, 0},                                  /* half of PMIx's mark */
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_SIZE", 0, 1, 0, 0}, /* alone: nobody to meet */
        /* The first of the table decides: mpirun inside a Slurm step, torchrun inside anything. */
        {"SLURM_PROCID=0 SLURM_NTASKS=9 PMI_RANK=1 PMI_SIZE=3" STEP GIVEN, "PMI_SIZE", 1, 3, 0, 0},
        {"PMI_RANK=0 PMI_SIZE=9 RANK=1 WORLD_SIZE=3" GIVEN, "WORLD_SIZE", 1, 3, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bootstrap_config config = {.rank = 42};
        bool found = true;
        set_words(cases[i].words);
        CHECK_OK(launch_from_environment(&config, &found));
        bool right = cases[i].told_by == NULL ? !found && config.rank == 42 && launch_size_variable() == NULL
                                              : found && strcmp(launch_size_variable(), cases[i].told_by) == 0 &&
                                                    config.rank == cases[i].rank && config.nranks == cases[i].nranks &&
                                                    config.local_rank == cases[i].local_rank &&
                                                    config.local_nranks == cases[i].local_nranks;
        CHECK_MSG(right, "%s: rank %d of %d, local %d of %d", cases[i].words, config.rank, config.nranks,
            config.local_rank, config.local_nranks);
    }
    static const char *const bad[][2] = {
        {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set"},
        {"PMI_SIZE=2", "PMI_RANK is not set"},
        {"PMI_RANK=2 PMI_SIZE=2", "PMI_RANK is \"2\"; expected a number below PMI_SIZE"},
        {"PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=h", "MASTER_PORT is not set"},
        {"PMI_RANK=1 PMI_SIZE=2", "PMI_FD is not set"},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=7", "SLURM_STEP_NODELIST is not set"},
        {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_STEP_NODELIST=,", "node list \",\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct bootstrap_config config = {.rank = 42};
        bool found = true;
        set_words(bad[i][0]);
        CHECK_STATUS(launch_from_environment(&config, &found), STATUS_INVALID);
        CHECK_TEXT(bad[i][1]);
        CHECK(!found && config.rank == 42);
    }
}

/* ---- Slurm ---- */

static void test_slurm(void)
{
    static const char *const lists[][2] = {{"vm", "vm"}, {"a,b", "a"}, {"node[03-05,09],x", "node03"},
        {"rack[02-04,7]n[1-2]-ib,login", "rack02n1-ib"}, {"n[5,7-9]", "n5"}, {"", NULL}, {",a", NULL}, {"n[1-2", NULL},
        {"a-very-long-name", NULL}, {"12345678901[2-3]", "123456789012"}, {"123456789012[3-4]", NULL}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char host[13];
        bool found = launch_slurm_first_host(host, sizeof host, lists[i][0]);
        CHECK_MSG(found == (lists[i][1] != NULL) && (!found || strcmp(host, lists[i][1]) == 0), "%s: %s", lists[i][0],
            found ? host : "none");
    }
    /* All tasks work out the same; rank 0 listens there; another step is another port and job. */
    struct bootstrap_config first, second, other;
    bool found;
    set_words("SLURM_PROCID=0 SLURM_NTASKS=2" STEP);
    CHECK_OK(launch_from_environment(&first, &found));
    CHECK(first.listen_fd >= 0 && socket_port(first.listen_fd) == first.port);
    set_words("SLURM_PROCID=1 SLURM_NTASKS=2" STEP);
    CHECK_OK(launch_from_environment(&second, &found));
    CHECK(strcmp(second.address, "n01") == 0 && strcmp(first.address, "n01") == 0);
    CHECK(second.port == first.port && second.job == first.job && second.job != 0 && second.listen_fd == -1);
    CHECK_MSG(second.port >= 15000 && second.port < 35000, "port %d", second.port);
    setenv("SLURM_STEP_ID", "1", 1);
    CHECK_OK(launch_from_environment(&other, &found));
    CHECK(other.port != first.port && other.job != first.job);
    /* The port is taken: here, by rank 0 itself. */
    set_words("SLURM_PROCID=0 SLURM_NTASKS=2" STEP);
    CHECK_STATUS(launch_from_environment(&other, &found), STATUS_SYSTEM);
    CHECK_TEXT("follows from the ids of Slurm's job and step");
    CHECK_TEXT("--mpi=pmix");
    close(first.listen_fd);
}

/* ---- PMI-1 ---- */

/* The server's side of one talk: `last` is the answer to get, or NULL: silence from there on; the answers
 * before are MPICH's. */
static void serve(int fd, const char *last)
{
    static const char *const answers[][2] = {{"cmd=init ", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"},
        {"cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"},
        {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1_2"}, {"cmd=put kvsname=kvs_1_2 key=", "cmd=put_result rc=0"},
        {"cmd=barrier_in", "cmd=barrier_out"}, {"cmd=get kvsname=kvs_1_2 key=", NULL}, {"cmd=finalize", "cmd=finalize_ack"}};
    FILE *in = fdopen(fd, "r");
    char line[1024];
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        const char *answer = "";
        for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
            if (strncmp(line, answers[i][0], strlen(answers[i][0])) == 0)
                answer = answers[i][1] != NULL ? answers[i][1] : last;
        if (answer == NULL) continue;
        for (const char *c = answer; *c != '\0'; c++) /* byte by byte: a line may come in parts */
            if (write(fd, c, 1) != 1) _exit(1);
        if (write(fd, "\n", 1) != 1) _exit(1);
    }
    _exit(0);
}

static enum status talk(struct bootstrap_config *config, int rank, const char *last)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) abort();
    fflush(NULL);
    pid_t server = fork();
    if (server == 0) {
        close(fds[0]);
        serve(fds[1], last);
    }
    close(fds[1]);
    char words[128];
    snprintf(words, sizeof words, "PMI_RANK=%d PMI_SIZE=2 PMI_FD=%d RINGZERO_TIMEOUT_MS=1000", rank, fds[0]);
    set_words(words);
    bool found;
    enum status status = launch_from_environment(config, &found);
    /* When the talk itself failed it is still open; its end ends the server. */
    bool failed = status == STATUS_SYSTEM || status == STATUS_TIMEOUT;
    CHECK(close(fds[0]) == (failed ? 0 : -1));
    waitpid(server, NULL, 0);
    return status;
}

static void test_pmi1(void)
{
    struct bootstrap_config config;
    char host[HOST_TEXT_BYTES], card[CARD_BYTES];
    socket_host_identity(host);
    snprintf(card, sizeof card, "cmd=get_result rc=0 msg=success value=1,127.0.0.1,4711,00000000deadbeef,%s", host);
    CHECK_OK(talk(&config, 1, card));
    CHECK(strcmp(config.address, "127.0.0.1") == 0 && config.port == 4711 && config.job == 0xdeadbeef);
    CHECK(config.rank == 1 && config.nranks == 2 && config.listen_fd == -1);
    CHECK_OK(talk(&config, 1, "cmd=get_result rc=0 value=1,fd77::1,4711,00000000deadbeef,elsewhere/1"));
    CHECK(strcmp(config.address, "fd77::1") == 0);
    if (CHECK_OK(talk(&config, 0, card))) CHECK(socket_port(config.listen_fd) == config.port && config.job != 0);
    close(config.listen_fd);

    CHECK_STATUS(talk(&config, 1, "cmd=get_result rc=0 value=1,127.0.0.1,4711,00000000deadbeef,elsewhere/1"), STATUS_INVALID);
    CHECK_TEXT("set RINGZERO_INTERFACE");
    static const char *const foreign[] = {"x", "1,h,0,1,x", "1,h,70000,1,x", "1,h,1,0,x", "2,h,1,1,x", "1,h,1,1,x,more", "1,,1,1,x"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(card, sizeof card, "cmd=get_result rc=0 value=%s", foreign[i]);
        CHECK_STATUS(talk(&config, 1, card), STATUS_DATA);
        CHECK_TEXT(foreign[i]);
    }
    CHECK_STATUS(talk(&config, 1, "cmd=get_result rc=-1 msg=key_not_found value=unknown"), STATUS_SYSTEM);
    CHECK_TEXT("rc=-1");
    CHECK_STATUS(talk(&config, 1, "cmd=get_result rc=0"), STATUS_SYSTEM);
    CHECK_TEXT("no value");
    CHECK_STATUS(talk(&config, 1, "HTTP/1.1 400"), STATUS_SYSTEM);
    CHECK_TEXT("HTTP/1.1 400");
    int64_t begin = clock_ns();
    CHECK_STATUS(talk(&config, 0, NULL), STATUS_TIMEOUT);
    CHECK_TEXT("within 1000 ms");
    CHECK(clock_ns() - begin < clock_ms_to_ns(5000));
    set_words("PMI_RANK=1 PMI_SIZE=2 PMI_FD=1000");
    bool found;
    CHECK_STATUS(launch_from_environment(&config, &found), STATUS_SYSTEM);
    CHECK_TEXT("descriptor 1000");
}

int main(void)
{
    clear_environment();
    test_torchrun();
    test_launchers();
    test_slurm();
    test_pmi1();
    clear_environment();
    return test_result();
}
