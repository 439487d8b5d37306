/* bootstrap: joining, collectives, the mailbox, and every way to be refused, to be disturbed, and to die.
 * ctest: timeout=60
 */
#include "tests/harness/harness.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "verbs/bootstrap_wire.h"
#include "verbs/clock.h"

#define TIMEOUT_MS 20000

static void pause_ms(int ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static int64_t since_ms(int64_t begin_ns)
{
    return (clock_ns() - begin_ns) / 1000000;
}

static bool text_has(const char *part)
{
    return strstr(status_text(), part) != NULL;
}
#define CHECK_TEXT(part) CHECK_MSG(text_has(part), "the text is \"%s\"", status_text())

/* ---- collectives and mailbox ---- */

static void gather_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    int rank = bootstrap_rank(b), nranks = bootstrap_nranks(b);
    const size_t sizes[] = {1, 8, 1000, 70000};
    for (int round = 0; round < 8; round++) {
        size_t bytes = sizes[round % 4];
        unsigned char *blobs = malloc(bytes * (size_t)nranks);
        memset(blobs, 0xee, bytes * (size_t)nranks);
        for (size_t i = 0; i < bytes; i++)
            blobs[(size_t)rank * bytes + i] = (unsigned char)((size_t)rank * 31 + i + (size_t)round);
        CHECK_OK(bootstrap_all_gather(blobs, bytes, b));
        int wrong = 0;
        for (int r = 0; r < nranks; r++)
            for (size_t i = 0; i < bytes; i++)
                wrong +=
                    blobs[(size_t)r * bytes + i] != (unsigned char)((size_t)r * 31 + i + (size_t)round);
        CHECK_MSG(wrong == 0, "%d bytes of %zu × %d", wrong, bytes, nranks);
        free(blobs);
    }
    unsigned char one = 0;
    CHECK_STATUS(bootstrap_all_gather(&one, BOOTSTRAP_GATHER_BYTES + 1, b), STATUS_INVALID);
    CHECK(bootstrap_local_nranks(b) == nranks && bootstrap_local_rank(b) == rank);
    CHECK_MSG(strcmp(bootstrap_address(b), "127.0.0.1") == 0, "address %s", bootstrap_address(b));
    CHECK(bootstrap_job(b) != 0 && !bootstrap_failed(b));
    CHECK_OK(bootstrap_check(NULL, b));
}

static void barrier_body(struct bootstrap *b, void *argument)
{
    int *entered = argument;
    int rank = bootstrap_rank(b), nranks = bootstrap_nranks(b);
    for (int round = 1; round <= 20; round++) {
        if ((round + rank) % 5 == 0) pause_ms(2);
        __atomic_add_fetch(entered, 1, __ATOMIC_RELAXED);
        CHECK_OK(bootstrap_barrier(b));
        CHECK(__atomic_load_n(entered, __ATOMIC_RELAXED) >= round * nranks);
    }
}

static void differ_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    unsigned char blobs[4 * 16] = {0};
    CHECK_STATUS(bootstrap_all_gather(blobs, bootstrap_rank(b) == 2 ? 16 : 8, b), STATUS_INVALID);
    CHECK_TEXT("rank 2");
    CHECK_TEXT("8");
    CHECK_TEXT("16");
    CHECK_OK(bootstrap_barrier(b)); /* the next one works */
}

static bool take_soon(void *blob, size_t bytes, int from, uint64_t key, struct bootstrap *b)
{
    bool found = false;
    for (int64_t begin = clock_ns(); !found && since_ms(begin) < TIMEOUT_MS;) {
        if (!CHECK_OK(bootstrap_take(blob, bytes, &found, from, key, b))) return false;
        if (!found) pause_ms(1);
    }
    return found;
}

static void post_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    enum { COUNT = 200, KEYS = 3 };
    int rank = bootstrap_rank(b), nranks = bootstrap_nranks(b);
    for (int i = 0; i < COUNT; i++)
        for (int to = 0; to < nranks; to++) {
            int blob[3] = {rank, to, i};
            CHECK_OK(bootstrap_post(to, (uint64_t)(i % KEYS) + UINT64_MAX - 2, blob, sizeof blob, b));
        }
    for (int from = nranks - 1; from >= 0; from--)
        for (int key = KEYS - 1; key >= 0; key--)
            for (int i = key; i < COUNT; i += KEYS) {
                int blob[3] = {-1, -1, -1};
                CHECK(take_soon(blob, sizeof blob, from, (uint64_t)key + UINT64_MAX - 2, b));
                CHECK_MSG(blob[0] == from && blob[1] == rank && blob[2] == i, "found %d %d %d", blob[0],
                    blob[1], blob[2]);
            }
    bool found = true;
    char blob[BOOTSTRAP_BLOB_BYTES + 1] = {0};
    CHECK_OK(bootstrap_take(blob, 1, &found, rank, 0, b));
    CHECK(!found);
    CHECK_STATUS(bootstrap_post(0, 0, blob, sizeof blob, b), STATUS_INVALID);
    CHECK_STATUS(bootstrap_post(nranks, 0, blob, 1, b), STATUS_INVALID);
    CHECK_OK(bootstrap_post(rank, 5, blob, 4, b));
    CHECK_STATUS(bootstrap_take(blob, 8, &found, rank, 5, b), STATUS_DATA);
    CHECK_TEXT("expected 8");
    CHECK_OK(bootstrap_take(blob, 4, &found, rank, 5, b));
    CHECK(found);
    CHECK_OK(bootstrap_barrier(b));
}

static void test_single(void)
{
    struct bootstrap_config config = bootstrap_config_single();
    struct bootstrap *b = NULL;
    CHECK_OK(bootstrap_open(&b, &config));
    if (b == NULL) return;
    gather_body(b, NULL);
    post_body(b, NULL);
    bootstrap_abort("enough", b);
    int rank = -1;
    CHECK_STATUS(bootstrap_check(&rank, b), STATUS_ABORTED);
    CHECK_TEXT("rank 0: enough");
    CHECK(rank == 0 && bootstrap_failed(b));
    CHECK_STATUS(bootstrap_barrier(b), STATUS_ABORTED);
    bootstrap_close(b);
    bootstrap_close(NULL);
}

/* ---- the start, rank by rank ---- */

/* One rank's call of bootstrap_open() on a thread of its own. */
struct opening {
    struct bootstrap_config config;
    int delay_ms;
    pthread_t thread;
    struct bootstrap *bootstrap;
    enum status status;
    char text[STATUS_TEXT_BYTES];
    int64_t took_ms;
};

static void *opening_main(void *argument)
{
    struct opening *opening = argument;
    pause_ms(opening->delay_ms);
    int64_t begin = clock_ns();
    opening->status = bootstrap_open(&opening->bootstrap, &opening->config);
    opening->took_ms = since_ms(begin);
    snprintf(opening->text, sizeof opening->text, "%s", status_text());
    return NULL;
}

static void *close_main(void *argument)
{
    bootstrap_close(argument);
    return NULL;
}

static void prepare(struct opening *openings, int count, int nranks, int timeout_ms)
{
    memset(openings, 0, (size_t)count * sizeof *openings);
    struct bootstrap_config config = bootstrap_config_single();
    config.nranks = nranks;
    config.local_nranks = 0;
    config.timeout_ms = timeout_ms;
    config.job = 77;
    snprintf(config.address, sizeof config.address, "127.0.0.1");
    int listen_fd;
    CHECK_OK(bootstrap_listen_local(&listen_fd, &config.port));
    for (int i = 0; i < count; i++) {
        openings[i].config = config;
        openings[i].config.rank = i;
    }
    openings[0].config.listen_fd = listen_fd;
}

static void open_all(struct opening *openings, int count)
{
    for (int i = 0; i < count; i++)
        if (pthread_create(&openings[i].thread, NULL, opening_main, &openings[i]) != 0) abort();
}

static void join_all(struct opening *openings, int count)
{
    for (int i = 0; i < count; i++) pthread_join(openings[i].thread, NULL);
}

static void close_all(struct opening *openings, int count)
{
    for (int i = 0; i < count; i++)
        if (pthread_create(&openings[i].thread, NULL, close_main, openings[i].bootstrap) != 0) abort();
    join_all(openings, count);
}

static void check_refused(const struct opening *opening, enum status expected, const char *const parts[])
{
    CHECK_MSG(opening->status == expected, "%s: %s", status_name(opening->status), opening->text);
    for (int i = 0; parts[i] != NULL; i++)
        CHECK_MSG(
            strstr(opening->text, parts[i]) != NULL, "\"%s\" is not in \"%s\"", parts[i], opening->text);
    CHECK(opening->bootstrap == NULL);
}
#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_refusals(void)
{
    struct opening openings[4];
    prepare(openings, 4, 2, TIMEOUT_MS);
    openings[1].delay_ms = 300; /* the good one comes last */
    openings[2].config.rank = 1;
    openings[2].config.nranks = 3; /* wrong world size */
    openings[3].config.rank = 1;
    openings[3].config.job = 78; /* another job */
    open_all(openings, 4);
    join_all(openings, 4);
    CHECK_MSG(openings[0].status == STATUS_OK && openings[1].status == STATUS_OK, "%s", openings[0].text);
    check_refused(&openings[2], STATUS_INVALID, PARTS("rank 1 at 127.0.0.1:", "world size is 3", "is 2"));
    check_refused(&openings[3], STATUS_INVALID, PARTS("job id is 000000000000004e", "000000000000004d"));
    CHECK(openings[2].took_ms < TIMEOUT_MS / 2 && openings[3].took_ms < TIMEOUT_MS / 2);
    close_all(openings, 2);

    prepare(openings, 4, 3, TIMEOUT_MS);
    openings[2].config.rank = 1; /* comes second: 1 is taken */
    openings[2].delay_ms = 200;
    openings[3].config.rank = 2;
    openings[3].delay_ms = 500;
    open_all(openings, 4);
    join_all(openings, 4);
    CHECK(openings[0].status == STATUS_OK && openings[1].status == STATUS_OK &&
          openings[3].status == STATUS_OK);
    check_refused(&openings[2], STATUS_INVALID, PARTS("rank 1", "already taken by 127.0.0.1:"));
    openings[2] = openings[3];
    CHECK(bootstrap_local_rank(openings[2].bootstrap) == 2 &&
          bootstrap_local_nranks(openings[2].bootstrap) == 3);
    CHECK(bootstrap_local_rank(openings[0].bootstrap) == 0 &&
          bootstrap_local_nranks(openings[0].bootstrap) == 3);
    CHECK(bootstrap_job(openings[2].bootstrap) == 77);
    close_all(openings, 3);
}

static void test_missing_rank(void)
{
    struct opening openings[3];
    prepare(openings, 3, 5, 700);
    openings[2].config.rank = 3;
    open_all(openings, 3);
    join_all(openings, 3);
    for (int i = 0; i < 3; i++)
        check_refused(&openings[i], STATUS_TIMEOUT, PARTS("700 ms", "ranks 2 and 4"));
    CHECK_MSG(openings[0].took_ms >= 690 && openings[0].took_ms < 8000, "%lld ms",
        (long long)openings[0].took_ms);
}

static void test_no_rank_0(void)
{
    struct opening openings[2];
    prepare(openings, 2, 2, 500);
    close(openings[0].config.listen_fd);
    openings[1].config.rank = 1;
    open_all(&openings[1], 1);
    join_all(&openings[1], 1);
    check_refused(&openings[1], STATUS_TIMEOUT, PARTS("500 ms", "127.0.0.1", "Connection refused"));

    openings[1].config.address[0] = '\0';
    CHECK_STATUS(bootstrap_open(&openings[1].bootstrap, &openings[1].config), STATUS_INVALID);
    snprintf(openings[1].config.address, sizeof openings[1].config.address, "no such host.invalid");
    CHECK_STATUS(bootstrap_open(&openings[1].bootstrap, &openings[1].config), STATUS_SYSTEM);
    CHECK_TEXT("no such host.invalid");
}

static void test_late_rank_0(void)
{
    struct opening openings[3];
    prepare(openings, 3, 3, TIMEOUT_MS);
    close(openings[0].config.listen_fd);
    openings[0].config.listen_fd = -1; /* opens the port itself, after the others have tried */
    openings[0].config.job = openings[1].config.job = openings[2].config.job = 0;
    openings[0].delay_ms = 400;
    for (int i = 0; i < 3; i++)
        snprintf(openings[i].config.address, sizeof openings[i].config.address, "localhost");
    open_all(openings, 3);
    join_all(openings, 3);
    for (int i = 0; i < 3; i++) CHECK_MSG(openings[i].status == STATUS_OK, "%s", openings[i].text);
    uint64_t job = bootstrap_job(openings[0].bootstrap);
    CHECK(job != 0 && bootstrap_job(openings[1].bootstrap) == job &&
          bootstrap_job(openings[2].bootstrap) == job);
    close_all(openings, 3);
}

static void test_bad_configs(void)
{
    struct bootstrap_config config = bootstrap_config_single();
    struct bootstrap *b = NULL;
    config.rank = 2;
    config.nranks = 2;
    CHECK_STATUS(bootstrap_open(&b, &config), STATUS_INVALID);
    CHECK_TEXT("expected 0 to 1");
    config.rank = -1;
    CHECK_STATUS(bootstrap_open(&b, &config), STATUS_INVALID);
    config = bootstrap_config_single();
    config.nranks = 0;
    CHECK_STATUS(bootstrap_open(&b, &config), STATUS_INVALID);
    const char *const bad[] = {"", "x", "-1", "0", "12ms", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config = bootstrap_config_single();
        setenv("RINGZERO_TIMEOUT_MS", bad[i], 1);
        CHECK_STATUS(bootstrap_open(&b, &config), STATUS_INVALID);
        CHECK_TEXT("RINGZERO_TIMEOUT_MS");
    }
    setenv("RINGZERO_TIMEOUT_MS", "1234", 1);
    CHECK_OK(bootstrap_open(&b, &config));
    CHECK(bootstrap_timeout_ms(b) == 1234);
    bootstrap_close(b);
    unsetenv("RINGZERO_TIMEOUT_MS");
    setenv("RINGZERO_INTERFACE", "nowhere9", 1);
    CHECK_STATUS(bootstrap_open(&b, &config), STATUS_INVALID);
    CHECK_TEXT("nowhere9");
    CHECK_TEXT("lo");
    setenv("RINGZERO_INTERFACE", "lo", 1);
    CHECK_OK(bootstrap_open(&b, &config));
    CHECK(bootstrap_timeout_ms(b) == BOOTSTRAP_DEFAULT_TIMEOUT_MS);
    CHECK_MSG(strcmp(bootstrap_address(b), "127.0.0.1") == 0, "%s", bootstrap_address(b));
    bootstrap_close(b);
    unsetenv("RINGZERO_INTERFACE");
}

/* ---- strangers ---- */

static int connect_raw(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) abort();
    return fd;
}

static int connect_and_say(int port, const void *bytes, size_t count)
{
    int fd = connect_raw(port);
    if (count > 0 && send(fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count) abort();
    return fd;
}

/* Standard error goes to a file from here on; the descriptor of the old one is returned. */
static int capture_begin(FILE **file)
{
    *file = tmpfile();
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(*file), STDERR_FILENO);
    return saved;
}

static void capture_end(char *text, size_t text_bytes, FILE *file, int saved)
{
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, text_bytes - 1, file)] = '\0';
    fclose(file);
}

static int count_lines(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) count++;
    return count;
}

static void test_strangers(void)
{
    struct opening openings[3];
    prepare(openings, 3, 3, TIMEOUT_MS);
    openings[1].delay_ms = openings[2].delay_ms = 300;
    FILE *file;
    int saved = capture_begin(&file), port = openings[0].config.port;
    open_all(openings, 3);
    struct frame half = {.magic = FRAME_MAGIC, .type = FRAME_HELLO, .bytes = sizeof(struct hello)};
    struct frame huge = {.magic = FRAME_MAGIC, .type = FRAME_HELLO, .bytes = UINT32_MAX};
    struct frame early = {.magic = FRAME_MAGIC, .type = FRAME_GATHER, .bytes = 8};
    struct frame empty = {.magic = FRAME_MAGIC, .type = FRAME_HELLO, .bytes = 0};
    close(connect_raw(port));
    const int held[] = {connect_raw(port), connect_and_say(port, "GET /metrics HTTP/1.1\r\n\r\n", 25),
        connect_and_say(port, &half, sizeof half), connect_and_say(port, &huge, sizeof huge),
        connect_and_say(port, &early, sizeof early), connect_and_say(port, &empty, sizeof empty)};
    join_all(openings, 3);
    char text[8192];
    capture_end(text, sizeof text, file, saved);
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(openings[i].status == STATUS_OK, "%s", openings[i].text);
        CHECK_MSG(openings[i].took_ms < 5000, "the start took %lld ms", (long long)openings[i].took_ms);
    }
    int count = (int)(sizeof held / sizeof *held);
    CHECK_MSG(count_lines(text, "a stranger at 127.0.0.1:") == count + 1, "%s", text);
    CHECK_MSG(count_lines(text, "GET /metrics") == 1, "%s", text);
    CHECK_MSG(count_lines(text, "4294967295") == 1, "%s", text);
    for (int i = 0; i < count; i++) close(held[i]);
    close_all(openings, 3);
}

/* HELLOs that bootstrap_open() would not send. */
static void test_strange_hellos(void)
{
    struct opening openings[2];
    prepare(openings, 2, 2, TIMEOUT_MS);
    openings[1].delay_ms = 500;
    open_all(openings, 2);
    struct {
        int rank, version;
        const char *part;
    } const cases[] = {{7, FRAME_VERSION, "0…1"}, {-3, FRAME_VERSION, "0…1"},
        {0, FRAME_VERSION, "rank 0 itself"}, {1, 99, "99"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct {
            struct frame frame;
            struct hello hello;
        } message = {{.magic = FRAME_MAGIC, .type = FRAME_HELLO, .bytes = sizeof(struct hello)},
            {.job = 77, .nranks = 2, .rank = cases[i].rank, .version = (uint32_t)cases[i].version}};
        memset(message.hello.host, 'x', sizeof message.hello.host); /* no NUL at its end */
        int fd = connect_and_say(openings[0].config.port, &message, sizeof message);
        char answer[sizeof(struct frame) + FRAME_TEXT_BYTES + 1] = "";
        ssize_t got = recv(fd, answer, sizeof answer - 1, MSG_WAITALL);
        struct frame frame;
        memcpy(&frame, answer, sizeof frame);
        CHECK_MSG(
            got > (ssize_t)sizeof frame && frame.type == FRAME_REFUSED && frame.code == STATUS_INVALID,
            "%zd bytes", got);
        CHECK_MSG(strstr(answer + sizeof frame, cases[i].part) != NULL, "%s", answer + sizeof frame);
        close(fd);
    }
    join_all(openings, 2);
    CHECK(openings[0].status == STATUS_OK && openings[1].status == STATUS_OK);
    close_all(openings, 2);
}

/* ---- failures ---- */

static enum status wait_for_failure(int *rank, struct bootstrap *b)
{
    for (int64_t begin = clock_ns(); !bootstrap_failed(b) && since_ms(begin) < 10000;) pause_ms(1);
    return bootstrap_check(rank, b);
}

static void abort_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    int rank = -1;
    CHECK_OK(bootstrap_barrier(b));
    if (bootstrap_rank(b) == 1) bootstrap_abort("the file\nis broken", b);
    CHECK_STATUS(wait_for_failure(&rank, b), STATUS_ABORTED);
    CHECK(rank == 1);
    CHECK_TEXT("rank 1: the file is broken");
    CHECK_STATUS(bootstrap_barrier(b), STATUS_ABORTED);
    char blob[4] = {0};
    bool found;
    CHECK_STATUS(bootstrap_post(0, 1, blob, 4, b), STATUS_ABORTED);
    CHECK_STATUS(bootstrap_take(blob, 4, &found, 0, 1, b), STATUS_ABORTED);
}

static void death_body(struct bootstrap *b, void *argument)
{
    int dead = *(int *)argument, rank = -1;
    char expected[80];
    snprintf(expected, sizeof expected, "rank %d died (its control connection closed)", dead);
    CHECK_OK(bootstrap_barrier(b));
    if (bootstrap_rank(b) == dead) {
        pause_ms(100); /* the others are within the barrier */
        kill(getpid(), SIGKILL);
    }
    int64_t begin = clock_ns();
    CHECK_STATUS(bootstrap_barrier(b), STATUS_PEER);
    CHECK_TEXT(expected);
    CHECK_STATUS(wait_for_failure(&rank, b), STATUS_PEER);
    CHECK_MSG(rank == dead, "rank %d", rank);
    CHECK_MSG(since_ms(begin) < 5000, "%lld ms", (long long)since_ms(begin));
}

/* Ends without a BYE, as a rank does that meets an error and exits. */
static void exit_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    CHECK_OK(bootstrap_barrier(b));
    if (bootstrap_rank(b) == 1) {
        bootstrap_abort("gives up at once", b);
        _exit(0);
    }
    CHECK_STATUS(wait_for_failure(NULL, b), STATUS_ABORTED);
    CHECK_TEXT("rank 1: gives up at once");
}

static void late_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 2) {
        pause_ms(1200);
        return;
    }
    int64_t begin = clock_ns();
    CHECK_STATUS(bootstrap_barrier(b), STATUS_TIMEOUT);
    CHECK_TEXT("rank 2 did not come within 600 ms");
    CHECK_MSG(since_ms(begin) >= 300 && since_ms(begin) < 5000, "%lld ms", (long long)since_ms(begin));
    CHECK_STATUS(bootstrap_barrier(b), STATUS_TIMEOUT); /* and stays so */
}

static void left_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 1) return; /* to its close */
    CHECK_STATUS(bootstrap_barrier(b), STATUS_PEER);
    CHECK_TEXT("rank 1 has left the job");
}

/* A rank that waited for the others in vain, and left with a BYE, has not died. */
static void early_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 1) return; /* its close waits 400 ms */
    pause_ms(1000);
    CHECK_OK(bootstrap_check(NULL, b));
}

/* A rank that is stopped for a while is not dead. */
static void stop_body(struct bootstrap *b, void *argument)
{
    (void)argument;
    if (bootstrap_rank(b) == 1) {
        pid_t self = getpid();
        pid_t waker = fork();
        if (waker == 0) {
            pause_ms(1500);
            kill(self, SIGCONT);
            _exit(0);
        }
        kill(self, SIGSTOP);
        waitpid(waker, NULL, 0);
    }
    CHECK_OK(bootstrap_barrier(b));
    CHECK(!bootstrap_failed(b));
}

static void test_failures_as_processes(void)
{
    for (int dead = 0; dead < 4; dead += 2)
        CHECK(ranks_as_processes(4, TIMEOUT_MS, death_body, &dead, dead) == 0);
    CHECK(ranks_as_processes(3, TIMEOUT_MS, exit_body, NULL, -1) == 0);
    CHECK(ranks_as_processes(3, TIMEOUT_MS, stop_body, NULL, -1) == 0);
}

/* A member whose bytes turn to nonsense fails the job, not rank 0's process. */
static void test_nonsense_of_a_member(void)
{
    struct opening openings[2];
    prepare(openings, 2, 2, TIMEOUT_MS);
    open_all(openings, 1);
    struct {
        struct frame frame;
        struct hello hello;
        struct frame nonsense;
    } message = {{.magic = FRAME_MAGIC, .type = FRAME_HELLO, .from = 1, .bytes = sizeof(struct hello)},
        {.job = 77, .nranks = 2, .rank = 1, .version = FRAME_VERSION},
        {.magic = FRAME_MAGIC, .type = FRAME_POST, .from = 0, .to = 99, .bytes = 0}};
    int fd = connect_and_say(openings[0].config.port, &message, offsetof(__typeof__(message), nonsense));
    join_all(openings, 1);
    if (CHECK(openings[0].status == STATUS_OK)) {
        CHECK(send(fd, &message.nonsense, sizeof message.nonsense, MSG_NOSIGNAL) > 0);
        CHECK_STATUS(wait_for_failure(NULL, openings[0].bootstrap), STATUS_PEER);
        CHECK_TEXT("rank 1 broke the protocol");
    }
    bootstrap_close(openings[0].bootstrap);
    close(fd);
}

/* ---- limits ---- */

static int count_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    return count;
}

static void nothing_body(struct bootstrap *b, void *argument)
{
    (void)b, (void)argument;
}

static void test_no_leak(void)
{
    int before = count_descriptors();
    for (int i = 0; i < 300; i++) ranks_as_threads(2, TIMEOUT_MS, nothing_body, NULL);
    CHECK_MSG(
        count_descriptors() == before, "%d descriptors before, %d after", before, count_descriptors());
}

static void test_few_descriptors(void)
{
    struct rlimit before, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = 64;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK(ranks_as_processes(16, TIMEOUT_MS, gather_body, NULL, -1) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

int main(void)
{
    /* Processes first: a fork wants no threads beside it. */
    CHECK(ranks_as_processes(4, TIMEOUT_MS, gather_body, NULL, -1) == 0);
    CHECK(ranks_as_processes(3, TIMEOUT_MS, post_body, NULL, -1) == 0);
    test_failures_as_processes();
    test_few_descriptors();

    test_single();
    for (int nranks = 2; nranks <= 8; nranks += nranks == 2 ? 1 : 5) {
        int entered = 0;
        ranks_as_threads(nranks, TIMEOUT_MS, gather_body, NULL);
        ranks_as_threads(nranks, TIMEOUT_MS, barrier_body, &entered);
        ranks_as_threads(nranks, TIMEOUT_MS, post_body, NULL);
    }
    ranks_as_threads(4, TIMEOUT_MS, differ_body, NULL);
    ranks_as_threads(3, TIMEOUT_MS, abort_body, NULL);
    ranks_as_threads(3, 600, late_body, NULL);
    ranks_as_threads(3, TIMEOUT_MS, left_body, NULL);
    ranks_as_threads(3, 400, early_body, NULL);
    test_refusals();
    test_missing_rank();
    test_no_rank_0();
    test_late_rank_0();
    test_bad_configs();
    test_strangers();
    test_strange_hellos();
    test_nonsense_of_a_member();
    test_no_leak();
    return test_result();
}
