/* bootstrap: the start, rank by rank: who is refused, who is missing, and what strangers at the port can do.
 * ctest: timeout=60
 */
#include "tests/harness/harness.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "verbs/bootstrap_socket.h"
#include "verbs/bootstrap_wire.h"
#include "verbs/clock.h"

#define TIMEOUT_MS 20000

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
        {.job = 77, .nranks = 2, .rank = 1, .version = FRAME_VERSION, .address = "127.0.0.1"},
        {.magic = FRAME_MAGIC, .type = FRAME_POST, .from = 0, .to = 99, .bytes = 0}};
    socket_host_identity(message.hello.host);
    int fd = connect_and_say(openings[0].config.port, &message, offsetof(__typeof__(message), nonsense));
    join_all(openings, 1);
    if (CHECK(openings[0].status == STATUS_OK)) {
        CHECK(send(fd, &message.nonsense, sizeof message.nonsense, MSG_NOSIGNAL) > 0);
        for (int64_t begin = clock_ns();
             !bootstrap_failed(openings[0].bootstrap) && since_ms(begin) < 10000;)
            pause_ms(1);
        CHECK_STATUS(bootstrap_check(NULL, openings[0].bootstrap), STATUS_PEER);
        CHECK_TEXT("rank 1 broke the protocol");
    }
    bootstrap_close(openings[0].bootstrap);
    close(fd);
}

/* Ranks of several hosts, one of which would be found at a loopback address: refused on both, with what to do. */
static void test_loopback_between_hosts(void)
{
    static const char *const cases[][2] = {{"127.0.1.1", "the address of rank 0 is 127.0.0.1"},
        {"10.9.9.9", "the address of rank 0 is 127.0.0.1"}, {"", "the address of rank 0 is 127.0.0.1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opening openings[2];
        prepare(openings, 2, 2, TIMEOUT_MS);
        open_all(openings, 1);
        struct {
            struct frame frame;
            struct hello hello;
        } message = {{.magic = FRAME_MAGIC, .type = FRAME_HELLO, .from = 1, .bytes = sizeof(struct hello)},
            {.job = 77, .nranks = 2, .rank = 1, .version = FRAME_VERSION, .host = "elsewhere"}};
        snprintf(message.hello.address, sizeof message.hello.address, "%s", cases[i][0]);
        int fd = connect_and_say(openings[0].config.port, &message, sizeof message);
        join_all(openings, 1);
        check_refused(&openings[0], STATUS_INVALID, PARTS("several hosts", cases[i][1], "set RINGZERO_INTERFACE"));
        char answer[sizeof(struct frame) + FRAME_TEXT_BYTES + 1] = "";
        ssize_t got = recv(fd, answer, sizeof answer - 1, MSG_WAITALL);
        CHECK_MSG(got > (ssize_t)sizeof(struct frame) && strstr(answer + sizeof(struct frame), "several hosts") != NULL,
            "%zd bytes: %s", got, answer + sizeof(struct frame));
        close(fd);
    }
}

/* What means something on another host, and what does not. */
static void test_local_addresses(void)
{
    static const char *const local[] = {"127.0.0.1", "127.0.1.1", "::1", "fe80::1%2", ""};
    static const char *const global[] = {"10.0.0.1", "fd77::1", "fe80::1", "128.0.0.1"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        CHECK_MSG(socket_is_local_address(local[i]), "%s", local[i]);
    for (size_t i = 0; i < sizeof global / sizeof *global; i++)
        CHECK_MSG(!socket_is_local_address(global[i]), "%s", global[i]);
}

/* IPv6 loopback, to the end: the control connections, and the address that edges listen at. */
static void test_ipv6(void)
{
    struct opening openings[3];
    prepare(openings, 3, 3, TIMEOUT_MS);
    close(openings[0].config.listen_fd);
    if (socket_listen(&openings[0].config.listen_fd, "::1", 0) != STATUS_OK) {
        printf("IPv6 is left out: %s\n", status_text());
        return;
    }
    for (int i = 0; i < 3; i++) {
        openings[i].config.port = socket_port(openings[0].config.listen_fd);
        snprintf(openings[i].config.address, sizeof openings[i].config.address, "::1");
    }
    open_all(openings, 3);
    join_all(openings, 3);
    for (int i = 0; i < 3; i++)
        if (CHECK_MSG(openings[i].status == STATUS_OK, "%s", openings[i].text))
            CHECK_MSG(strcmp(bootstrap_address(openings[i].bootstrap), "::1") == 0, "%s",
                bootstrap_address(openings[i].bootstrap));
    close_all(openings, 3);
}

int main(void)
{
    test_refusals();
    test_missing_rank();
    test_no_rank_0();
    test_late_rank_0();
    test_bad_configs();
    test_strangers();
    test_strange_hellos();
    test_nonsense_of_a_member();
    test_loopback_between_hosts();
    test_local_addresses();
    test_ipv6();
    return test_result();
}
