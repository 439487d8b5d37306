/* utf8: see utf8.h. The ranges of bytes are those of table 3-7 of the Unicode standard:
 *
 *   first      C2…DF   E0      E1…EC, EE, EF   ED      F0      F1…F3   F4
 *   second     80…BF   A0…BF   80…BF           80…9F   90…BF   80…BF   80…8F
 *   in all     2       3       3               3       4       4       4
 */
#include "model/utf8.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* Bytes of the character that begins so; 0: none does. */
static int length_of(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Whether the byte may follow what is held. */
static bool may_follow(unsigned char byte, const struct utf8_held *held)
{
    unsigned char least = 0x80, most = 0xbf;
    if (held->count == 1) {
        switch (held->bytes[0]) {
        case 0xe0: least = 0xa0; break;
        case 0xed: most = 0x9f; break;
        case 0xf0: least = 0x90; break;
        case 0xf4: most = 0x8f; break;
        default: break;
        }
    }
    return byte >= least && byte <= most;
}

static bool is_control(const struct utf8_held *whole)
{
    unsigned char first = whole->bytes[0];
    if (whole->count == 1)
        return (first < 0x20 && strchr("\n\r\t", first) == NULL) || first == 0 || first == 0x7f;
    return first == 0xc2 && whole->bytes[1] < 0xa0;
}

static size_t replace(char *shown, struct utf8_held *held)
{
    memcpy(shown, "\xef\xbf\xbd", 3);
    held->count = 0;
    return 3;
}

static size_t show_byte(char *shown, struct utf8_held *held, unsigned char byte)
{
    size_t used = 0;
    if (held->count > 0 && !may_follow(byte, held)) used = replace(shown, held);
    if (held->count == 0 && length_of(byte) == 0) return used + replace(shown + used, held);
    assert(held->count >= 0 && held->count < UTF8_MOST);
    held->bytes[held->count++] = byte;
    if (held->count < length_of(held->bytes[0])) return used;
    if (is_control(held)) return used + replace(shown + used, held);
    memcpy(shown + used, held->bytes, (size_t)held->count);
    used += (size_t)held->count;
    held->count = 0;
    return used;
}

size_t utf8_show(char *shown, struct utf8_held *held, const char *piece, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++)
        used += show_byte(shown + used, held, (unsigned char)piece[i]);
    return used;
}

size_t utf8_end(char *shown, struct utf8_held *held)
{
    return held->count > 0 ? replace(shown, held) : 0;
}
