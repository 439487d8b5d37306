/* bootstrap_socket: listening, connecting, and numeric addresses, for the control connections alone.
 */
#ifndef VERBS_BOOTSTRAP_SOCKET_H
#define VERBS_BOOTSTRAP_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/bootstrap_wire.h"
#include "verbs/status.h"

/* Listens where the ranks that are told `address` will look: on loopback if the address says so, else
 * on every interface. The socket is non-blocking. errors: SYSTEM (port taken, …). */
MUST_CHECK enum status socket_listen(int *listen_fd, const char *address, int port);

/* One try at each numeric address of a name, each for at most 3 s and not beyond the deadline. *fd is a
 * non-blocking socket, or -1 with a phrase in why (nobody there now: try again). errors: SYSTEM when
 * the name does not exist. */
MUST_CHECK enum status socket_connect(
    int *fd, char *why, size_t why_bytes, const char *address, int port, int64_t deadline_ns);

/* Numeric address of this or the other end of a connected socket: "10.0.0.1", or with the port
 * "10.0.0.1:4711". An IPv4 address that travelled over an IPv6 socket is written as IPv4. */
void socket_address(char text[ADDRESS_TEXT_BYTES], bool *loopback, int fd, bool peer, bool with_port);

/* The numeric address of a network interface, IPv4 if it has one. errors: INVALID naming the interfaces
 * that exist. */
MUST_CHECK enum status socket_interface_address(char text[ADDRESS_TEXT_BYTES], const char *interface);

/* The numeric address of this host that other hosts most likely reach: of an ib* interface, else of any that is up and
 * is not made for containers and virtual machines of this host alone (docker*, br-*, veth*, virbr*, cni*,
 * lxc*); IPv4 before IPv6. "127.0.0.1" where there is none. */
MUST_CHECK enum status socket_best_address(char text[ADDRESS_TEXT_BYTES]);

/* True for a numeric address that means nothing on another host: loopback, link-local with its scope, or none (""). */
bool socket_is_local_address(const char *text);

/* The port that a socket is bound to; -1 on an error. */
int socket_port(int fd);

/* A text that is equal for processes of one host (and network namespace), and differs otherwise. */
void socket_host_identity(char text[HOST_TEXT_BYTES]);

#endif
