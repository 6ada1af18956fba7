/* Writes 1,000 blocks, up to 32 of them at a time: queue POOL-OR-ADDRESS. On servers and devices they are under way
 * together, and no thread waits for one of them. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "ferrite.h"

enum { DEPTH = 32, BLOCKS = 1000, LEN = 4096 };

static int fail(void) {
    fprintf(stderr, "queue: %s\n", ferrite_error());
    return 1;
}

int main(int argc, char **argv) {
    ferrite_volume *volume = argc > 1 ? ferrite_open(argv[1], NULL) : NULL;
    ferrite_file *file = volume ? ferrite_open_file(volume, "/blocks", O_RDWR | O_CREAT, 0644) : NULL;
    ferrite_queue *queue = file ? ferrite_queue_open(DEPTH) : NULL;
    if (!queue)
        return fail();
    char block[LEN];
    ferrite_completion done[DEPTH];
    int submitted = 0, completed = 0;
    while (completed < BLOCKS) {
        for (; submitted < BLOCKS && submitted - completed < DEPTH; submitted++) {
            memset(block, submitted, LEN);
            if (ferrite_submit_pwrite(queue, file, block, LEN, (int64_t)submitted * LEN, submitted) < 0)
                return fail();
        }
        int count = ferrite_queue_wait(queue, done, 1, DEPTH, -1);
        for (int i = 0; i < count; i++)
            if (done[i].result != LEN)
                return fprintf(stderr, "queue: block %d: %s\n", (int)done[i].tag, strerror((int)-done[i].result)), 1;
        if (count < 0)
            return fail();
        completed += count;
    }
    printf("%d blocks are durable\n", completed);
    ferrite_queue_close(queue);
    ferrite_close_file(file);
    return ferrite_close(volume) < 0;
}
