/* How connections are told which congestion control to take (connection.h): the plain one on one machine, at both ends and
 * before they are connected; the system's between two addresses. And one that has no descriptor left. ctest: timeout=20
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/connection.h"

static struct sockaddr_in name_of(const char *address, in_port_t port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = port};
    CHECK(inet_pton(AF_INET, address, &name.sin_addr) == 1);
    return name;
}

static bool has_algorithm(int fd, const char *expected)
{
    char name[16] = "";
    socklen_t length = sizeof name;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0);
    return strncmp(name, expected, sizeof name) == 0;
}

static int listener(struct sockaddr_in *name)
{
    socklen_t length = sizeof *name;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *name = name_of("127.0.0.1", 0);
    connection_tune_listener(fd);
    CHECK(bind(fd, (struct sockaddr *)name, sizeof *name) == 0 && listen(fd, 1) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)name, &length) == 0);
    return fd;
}

/* From an address to 127.0.0.1; both ends must have the algorithm in the end. */
static void connect_from(const char *address, const char *expected)
{
    struct sockaddr_in to, from = name_of(address, 0);
    int listening = listener(&to), caller = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(caller, (struct sockaddr *)&from, sizeof from) == 0);
    connection_tune_caller(caller, (struct sockaddr *)&to, sizeof to);
    CHECK(has_algorithm(caller, "reno"));
    CHECK(connect(caller, (struct sockaddr *)&to, sizeof to) == 0);
    int accepted = accept(listening, NULL, NULL);
    CHECK(has_algorithm(accepted, "reno"));
    connection_tune(accepted);
    connection_tune(caller);
    CHECK(has_algorithm(accepted, expected) && has_algorithm(caller, expected));
    close(accepted);
    close(caller);
    close(listening);
}

/* Whoever waits for a caller and has no descriptor left for it says so at once, not at its deadline. */
static void accept_without_descriptors(void)
{
    struct connection listens, calls;
    struct connection_offer offer;
    struct rlimit saved, narrow;
    bool ready = false, connected = false;
    connection_begin(&listens, 1);
    connection_begin(&calls, 0);
    CHECK_OK(connection_listen(&offer, &listens, "127.0.0.1"));
    for (int i = 0; i < 1000 && !connected; i++) CHECK_OK(connection_call(&connected, &calls, &offer));
    CHECK(getrlimit(RLIMIT_NOFILE, &saved) == 0);
    narrow = saved;
    narrow.rlim_cur = (rlim_t)calls.fd + 1; /* the lowest free number is beyond it */
    CHECK(setrlimit(RLIMIT_NOFILE, &narrow) == 0);
    CHECK_STATUS(connection_accept(&ready, &listens), STATUS_SYSTEM);
    CHECK_TEXT("rank 1");
    CHECK_TEXT("raise ulimit -n");
    CHECK(setrlimit(RLIMIT_NOFILE, &saved) == 0);
    for (int i = 0; i < 1000 && !ready; i++) CHECK_OK(connection_accept(&ready, &listens));
    CHECK(ready);
    connection_close(&listens);
    connection_close(&calls);
}

int main(void)
{
    char systems[16] = "";
    socklen_t length = sizeof systems;
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(getsockopt(fresh, IPPROTO_TCP, TCP_CONGESTION, systems, &length) == 0);
    struct sockaddr_in far = name_of("192.0.2.1", htons(9)); /* of documentation: no machine has it */
    connection_tune_caller(fresh, (struct sockaddr *)&far, sizeof far);
    CHECK(has_algorithm(fresh, systems));
    close(fresh);
    connect_from("127.0.0.1", "reno");
    connect_from("127.0.0.2", systems); /* two addresses: as if on two machines */
    accept_without_descriptors();
    return test_result();
}
