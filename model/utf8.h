/* utf8: text that comes in pieces, for a terminal. A character whose bytes lie in several pieces
 * is held back until it is whole; what is no UTF-8, or would command the terminal, becomes U+FFFD.
 *
 *   pieces    "caf"   "\xc3"   "\xa9!"   "\x9f"   "\x1b"
 *   shown     caf     -        é!        �        �
 *
 * Shown as they are: all characters but control ones (U+0000 … U+001F, U+007F … U+009F), and of
 * those line break, carriage return and tabulator. A broken sequence becomes one U+FFFD, and the
 * byte that broke it begins anew (Unicode's "maximal subpart").
 */
#ifndef MODEL_UTF8_H
#define MODEL_UTF8_H

#include <stddef.h>

#define UTF8_MOST 4 /* bytes of a character */

/* What is held back; zeroed: nothing. */
struct utf8_held {
    unsigned char bytes[UTF8_MOST];
    int count;
};

/* Bytes that a piece can become. */
#define UTF8_ROOM(bytes) (3 * ((bytes) + UTF8_MOST))

/* Puts what can be shown now into shown (UTF8_ROOM(bytes)); returns its bytes. It is not ended by
 * 0. */
size_t utf8_show(char *shown, struct utf8_held *held, const char *piece, size_t bytes);
/* There is no more: what is held will never be whole. shown: UTF8_ROOM(0). */
size_t utf8_end(char *shown, struct utf8_held *held);

#endif
