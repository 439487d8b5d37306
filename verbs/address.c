/* address: see address.h. Bytes are copied between the views of a name, so no view aliases another. */
#include "verbs/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

bool address_parse(struct sockaddr_storage *name, socklen_t *name_bytes, const char *text, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    bool is_v4 = inet_pton(AF_INET, text, &v4.sin_addr) == 1;
    if (!is_v4 && inet_pton(AF_INET6, text, &v6.sin6_addr) != 1) return false;
    memset(name, 0, sizeof *name);
    *name_bytes = is_v4 ? sizeof v4 : sizeof v6;
    memcpy(name, is_v4 ? (const void *)&v4 : (const void *)&v6, *name_bytes);
    return true;
}

int address_port(const struct sockaddr_storage *name)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memcpy(&v4, name, sizeof v4);
    memcpy(&v6, name, sizeof v6);
    return ntohs(name->ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
}

bool address_equal(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    struct sockaddr_in a4, b4;
    struct sockaddr_in6 a6, b6;
    memcpy(&a4, a, sizeof a4);
    memcpy(&b4, b, sizeof b4);
    memcpy(&a6, a, sizeof a6);
    memcpy(&b6, b, sizeof b6);
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET) return a4.sin_addr.s_addr == b4.sin_addr.s_addr;
    return a->ss_family == AF_INET6 && memcmp(&a6.sin6_addr, &b6.sin6_addr, sizeof a6.sin6_addr) == 0;
}
