/* raw MIB: a statically linked program that accesses the GPU directly, so libgpushare cannot be loaded into it.
 *
 * Allocates MIB on the GPU named by NVIDIA_VISIBLE_DEVICES, prints "got MIB", and holds the memory until its standard
 * input ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"

static int given(void) {
    const char *wanted = getenv("NVIDIA_VISIBLE_DEVICES");
    for (int c = 0; c < CARDS; c++) {
        uint8_t uuid[16];
        char begin[16];
        card_uuid(c, uuid);
        snprintf(begin, sizeof begin, "GPU-%02x%02x", uuid[0], uuid[1]);
        if (wanted && strncmp(wanted, begin, strlen(begin)) == 0) return c;
    }
    return 0;
}

int main(int count, char **words) {
    uint64_t mib = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    bool good = card_take(given(), mib * MIB);
    printf("got %d\n", good ? (int)mib : 0);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
