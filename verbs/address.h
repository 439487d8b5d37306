/* address: a numeric IPv4 or IPv6 address and a port, as the system's calls want them.
 */
#ifndef VERBS_ADDRESS_H
#define VERBS_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Reads "10.0.0.1" or "fd00::1". False, and nothing is written, when text is neither. */
bool address_parse(struct sockaddr_storage *name, socklen_t *name_bytes, const char *text, int port);

/* The port in a name that the system has filled in. */
int address_port(const struct sockaddr_storage *name);

/* Whether two names that the system has filled in have the same address, whatever their ports. */
bool address_equal(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

#endif
