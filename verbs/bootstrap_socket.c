/* bootstrap_socket: see bootstrap_socket.h.
 *
 * Keeps: no descriptor survives an exec, and no connect waits past its deadline.
 */
#include "verbs/bootstrap_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "verbs/clock.h"

#define CONNECT_TRY_MS 3000

/* Any socket address, without casts between its views. */
union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage storage;
};

static void format_address(
    char text[ADDRESS_TEXT_BYTES], bool *loopback, const union address *address, bool with_port)
{
    char host[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    bool v6 = false;
    *loopback = false;
    if (address->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
        port = ntohs(address->v4.sin_port);
        *loopback = ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
    } else if (address->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr)) {
        inet_ntop(AF_INET, &address->v6.sin6_addr.s6_addr[12], host, sizeof host);
        port = ntohs(address->v6.sin6_port);
        *loopback = address->v6.sin6_addr.s6_addr[12] == 127;
    } else if (address->any.sa_family == AF_INET6) {
        v6 = true;
        inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
        port = ntohs(address->v6.sin6_port);
        *loopback = IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
    }
    /* A link-local address means nothing without its link. */
    char scope[16] = "";
    if (v6 && address->v6.sin6_scope_id != 0)
        snprintf(scope, sizeof scope, "%%%u", address->v6.sin6_scope_id);
    if (!with_port) snprintf(text, ADDRESS_TEXT_BYTES, "%s%s", host, scope);
    else snprintf(text, ADDRESS_TEXT_BYTES, v6 ? "[%s%s]:%d" : "%s%s:%d", host, scope, port);
}

void socket_address(char text[ADDRESS_TEXT_BYTES], bool *loopback, int fd, bool peer, bool with_port)
{
    union address address;
    memset(&address, 0, sizeof address);
    socklen_t bytes = sizeof address;
    /* On an error the family stays unspecified, and the text is "?". */
    (void)(peer ? getpeername(fd, &address.any, &bytes) : getsockname(fd, &address.any, &bytes));
    format_address(text, loopback, &address, with_port);
}

/* ---- listening ---- */

static int listen_at(const union address *address, socklen_t bytes)
{
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int on = 1, off = 0;
    /* A job restarted on its old port must not wait for the old connections to expire. */
    bool good = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (address->any.sa_family == AF_INET6)
        good = good && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    if (good && bind(fd, &address->any, bytes) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int listen_v4(uint32_t host, int port)
{
    union address address = {.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
    address.v4.sin_addr.s_addr = htonl(host);
    return listen_at(&address, sizeof address.v4);
}

static int listen_v6(struct in6_addr host, int port)
{
    union address address = {
        .v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = host}};
    return listen_at(&address, sizeof address.v6);
}

enum status socket_listen(int *listen_fd, const char *address, int port)
{
    /* Only literal loopback is taken at its word: Debian lets a host's own name be 127.0.1.1 on that
     * host alone. */
    struct in_addr literal;
    if (inet_pton(AF_INET, address, &literal) == 1 && ntohl(literal.s_addr) >> 24 == 127) {
        *listen_fd = listen_v4(ntohl(literal.s_addr), port);
    } else if (strcmp(address, "localhost") == 0) {
        *listen_fd = listen_v4(INADDR_LOOPBACK, port);
    } else if (strcmp(address, "::1") == 0) {
        *listen_fd = listen_v6((struct in6_addr)IN6ADDR_LOOPBACK_INIT, port);
    } else {
        *listen_fd = listen_v6((struct in6_addr)IN6ADDR_ANY_INIT, port);
        if (*listen_fd < 0 && errno != EADDRINUSE && errno != EACCES)
            *listen_fd = listen_v4(INADDR_ANY, port);
    }
    if (*listen_fd >= 0) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "rank 0 cannot listen at port %d (for %s): %s%s", port, address,
        strerror(errno),
        errno == EADDRINUSE ? ": another process has it; end that one or choose another MASTER_PORT" : "");
}

int socket_port(int fd)
{
    union address address;
    socklen_t bytes = sizeof address;
    if (getsockname(fd, &address.any, &bytes) != 0) return -1;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

enum status bootstrap_listen_local(int *listen_fd, int *port)
{
    TRY(socket_listen(listen_fd, "127.0.0.1", 0));
    *port = socket_port(*listen_fd);
    if (*port > 0) return STATUS_OK;
    int error = errno;
    close(*listen_fd);
    *listen_fd = -1;
    return FAIL(STATUS_SYSTEM, "cannot read the port of a listening socket: %s", strerror(error));
}

/* ---- connecting ---- */

/* A connect to a free local port may pick that very port as its own end and meet itself. */
static bool is_self_connected(int fd)
{
    char here[ADDRESS_TEXT_BYTES], there[ADDRESS_TEXT_BYTES];
    bool loopback;
    socket_address(here, &loopback, fd, false, true);
    socket_address(there, &loopback, fd, true, true);
    return strcmp(here, there) == 0;
}

/* 0, or the errno of one try. */
static int connect_before(int fd, const struct addrinfo *info, int64_t deadline_ns)
{
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0) return is_self_connected(fd) ? ECONNREFUSED : 0;
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    for (;;) {
        int64_t left_ms = (deadline_ns - clock_ns()) / 1000000;
        if (left_ms <= 0) return ETIMEDOUT;
        struct pollfd wait = {fd, POLLOUT, 0};
        int ready = poll(&wait, 1, (int)left_ms + 1);
        if (ready > 0) break;
        if (ready < 0 && errno != EINTR) return errno;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
    if (error != 0) return error;
    return is_self_connected(fd) ? ECONNREFUSED : 0;
}

enum status socket_connect(
    int *fd, char *why, size_t why_bytes, const char *address, int port, int64_t deadline_ns)
{
    *fd = -1;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    /* The resolver keeps its own time (resolv.conf); numeric addresses do not ask it. */
    int lookup = getaddrinfo(address, service, &hints, &list);
    if (lookup == EAI_AGAIN) {
        snprintf(why, why_bytes, "the name is not resolved: %s", gai_strerror(lookup));
        return STATUS_OK;
    }
    if (lookup != 0)
        return FAIL(STATUS_SYSTEM,
            "cannot resolve the address of rank 0, \"%s\": %s: set MASTER_ADDR to its name or IP address",
            address, gai_strerror(lookup));
    snprintf(why, why_bytes, "no address");
    for (struct addrinfo *info = list; info != NULL && *fd < 0; info = info->ai_next) {
        int64_t try_ns = clock_ns() + clock_ms_to_ns(CONNECT_TRY_MS);
        int tried = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int error =
            tried < 0 ? errno : connect_before(tried, info, try_ns < deadline_ns ? try_ns : deadline_ns);
        if (error == 0) *fd = tried;
        if (error == 0) continue;
        snprintf(why, why_bytes, "%s", strerror(error));
        if (tried >= 0) close(tried);
    }
    freeaddrinfo(list);
    return STATUS_OK;
}

/* ---- this host ---- */

/* 2: IPv4, 1: an IPv6 address that other hosts can use, 0: neither. */
static int address_merit(const struct ifaddrs *entry)
{
    if (entry->ifa_addr == NULL) return 0;
    if (entry->ifa_addr->sa_family == AF_INET) return 2;
    if (entry->ifa_addr->sa_family != AF_INET6) return 0;
    union address address;
    memcpy(&address.v6, entry->ifa_addr, sizeof address.v6);
    return IN6_IS_ADDR_LINKLOCAL(&address.v6.sin6_addr) ? 0 : 1;
}

enum status socket_interface_address(char text[ADDRESS_TEXT_BYTES], const char *interface)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        return FAIL(STATUS_SYSTEM, "cannot list the network interfaces: %s", strerror(errno));
    char names[400] = "";
    int best = 0;
    for (struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        int merit = address_merit(entry);
        if (merit == 0) continue;
        if (strcmp(entry->ifa_name, interface) != 0) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", entry->ifa_name);
        } else if (merit > best) {
            union address address;
            memset(&address, 0, sizeof address);
            memcpy(&address, entry->ifa_addr, merit == 2 ? sizeof address.v4 : sizeof address.v6);
            bool loopback;
            format_address(text, &loopback, &address, false);
            best = merit;
        }
    }
    freeifaddrs(list);
    if (best > 0) return STATUS_OK;
    return FAIL(STATUS_INVALID,
        "RINGZERO_INTERFACE is \"%s\", which is no interface with an address here; expected one of: %s",
        interface, names);
}

/* Interfaces that lead to containers and virtual machines of this host only. */
static bool is_inner_interface(const char *name)
{
    static const char *const inner[] = {"docker", "br-", "veth", "virbr", "cni", "lxc"};
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
        if (strncmp(name, inner[i], strlen(inner[i])) == 0) return true;
    return false;
}

enum status socket_best_address(char text[ADDRESS_TEXT_BYTES])
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        return FAIL(STATUS_SYSTEM, "cannot list the network interfaces: %s", strerror(errno));
    snprintf(text, ADDRESS_TEXT_BYTES, "127.0.0.1");
    int best = 0;
    for (struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        int merit = address_merit(entry);
        bool up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
        if (merit == 0 || !up || is_inner_interface(entry->ifa_name)) continue;
        union address address;
        memset(&address, 0, sizeof address);
        memcpy(&address, entry->ifa_addr, merit == 2 ? sizeof address.v4 : sizeof address.v6);
        if (merit == 2 && ntohl(address.v4.sin_addr.s_addr) >> 16 == 0xa9fe) continue; /* 169.254: link-local */
        if (strncmp(entry->ifa_name, "ib", 2) == 0) merit += 2;
        if (merit <= best) continue;
        bool loopback;
        format_address(text, &loopback, &address, false);
        best = merit;
    }
    freeifaddrs(list);
    return STATUS_OK;
}

bool socket_is_local_address(const char *text)
{
    return text[0] == '\0' || strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0 || strchr(text, '%') != NULL;
}

void socket_host_identity(char text[HOST_TEXT_BYTES])
{
    /* Containers of one machine share the boot id; their network namespace tells them apart, as does
     * the host name where /proc is hidden. */
    char boot[40] = "", name[HOST_TEXT_BYTES] = "";
    memset(text, 0, HOST_TEXT_BYTES); /* it is sent whole */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, boot, 36);
        boot[got > 0 ? got : 0] = '\0';
        close(fd);
    }
    struct stat net;
    if (boot[0] != '\0' && stat("/proc/self/ns/net", &net) == 0) {
        snprintf(text, HOST_TEXT_BYTES, "%s/%llu", boot, (unsigned long long)net.st_ino);
        return;
    }
    if (gethostname(name, sizeof name - 1) != 0) snprintf(name, sizeof name, "unknown");
    memcpy(text, name, strlen(name));
}
