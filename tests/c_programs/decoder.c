/* Generates text with a language model by its header: `decoder COUNT TOKEN...` prints COUNT tokens, the
   likeliest each, after the prompt. The same tokens then have to come beside another sequence, after
   forgetting them, on eight threads, in a forked process, on threads of the caller's, and from a prompt
   in two pieces; what is wrong has to be a number and a text. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net.h"

#define MOST 512
#define THREADS 8

static net *model;
static int64_t prompt[MOST], wanted[MOST];
static size_t prompt_count;
static int new_count;

static void must(int code) {
  if (!code) return;
  fprintf(stderr, "%d %s\n", code, net_error());
  exit(3);
}

static void expect(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s; the library last said: %s\n", what, net_error());
  exit(5);
}

static net_cache new_cache(void) {
  net_cache cache = {NULL, 0, (int64_t)prompt_count + new_count, 0, 0};
  cache.bytes = net_cache_bytes(model, cache.capacity);
  cache.memory = aligned_alloc(64, (cache.bytes + 63) / 64 * 64);
  memset(cache.memory, 0xFF, cache.bytes); /* no numbers */
  return cache;
}

static int64_t likeliest(const float *logits) {
  int64_t best = 0;
  for (int64_t i = 1; i < NET_VOCABULARY; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

/* Generate after what was read; `logits` are those of the last token read. */
static void go_on(net_cache *cache, float *logits, int64_t *made, const net_pool *pool) {
  for (int i = 0; i < new_count; i++) {
    made[i] = likeliest(logits);
    if (i + 1 < new_count) must(net_decode(model, cache, made[i], logits, pool));
  }
}

static int is_same(size_t first_piece, const net_pool *pool) {
  static _Thread_local float logits[NET_VOCABULARY];
  int64_t made[MOST];
  net_cache cache = new_cache();
  if (first_piece) must(net_prefill(model, &cache, prompt, first_piece, NULL, pool));
  must(net_prefill(model, &cache, prompt + first_piece, prompt_count - first_piece, logits, pool));
  go_on(&cache, logits, made, pool);
  free(cache.memory);
  return !memcmp(made, wanted, sizeof *made * (size_t)new_count);
}

static void *in_a_thread(void *unused) {
  (void)unused;
  for (int i = 0; i < 3; i++) expect(is_same(0, NULL), "other tokens in a thread");
  return NULL;
}

typedef struct task {
  void (*call)(void *work, size_t index);
  void *work;
  size_t index;
} task;

static void *do_task(void *argument) {
  task *one = argument;
  one->call(one->work, one->index);
  return NULL;
}

static int parallel_for(void *context, void (*call)(void *work, size_t index), size_t count, void *work) {
  pthread_t threads[16];
  task tasks[16];
  ++*(int *)context;
  for (size_t i = 0; i < count; i++) {
    tasks[i] = (task){call, work, i};
    if (pthread_create(&threads[i], NULL, do_task, &tasks[i])) return 1;
  }
  for (size_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
  return 0;
}

static void beside_another(void) {
  static float logits[NET_VOCABULARY], others[NET_VOCABULARY];
  int64_t made[MOST];
  net_cache cache = new_cache(), other = new_cache();
  for (int turn = 0; turn < 2; turn++) {
    cache.length = other.length = 0;
    must(net_prefill(model, &cache, prompt, prompt_count, logits, NULL));
    must(net_prefill(model, &other, prompt, 1, others, NULL));
    for (int i = 0; i < new_count; i++) {
      made[i] = likeliest(logits);
      if (i + 1 < new_count) must(net_decode(model, &cache, made[i], logits, NULL));
      must(net_decode(model, &other, prompt[(size_t)i % prompt_count], others, NULL));
    }
    expect(!memcmp(made, wanted, sizeof *made * (size_t)new_count), "other tokens beside another sequence");
  }
  /* Forget all but the prompt, and its last token, which is read again. */
  cache.length = (int64_t)prompt_count - 1;
  must(net_decode(model, &cache, prompt[prompt_count - 1], logits, NULL));
  go_on(&cache, logits, made, NULL);
  expect(!memcmp(made, wanted, sizeof *made * (size_t)new_count), "other tokens after forgetting");
  free(cache.memory);
  free(other.memory);
}

static void wrong_use(void) {
  static float logits[NET_VOCABULARY];
  net_cache cache = new_cache();
  int64_t outside = NET_VOCABULARY + 1000000;
  expect(net_decode(model, &cache, outside, logits, NULL) == 2 && strstr(net_error(), "outside"), "a token outside");
  expect(net_decode(model, &cache, -1, logits, NULL) == 2 && strstr(net_error(), "hint:"), "a token below 0");
  expect(net_prefill(model, &cache, NULL, 3, logits, NULL) == 2, "no tokens");
  expect(net_prefill(model, &cache, prompt, 0, logits, NULL) == 2, "none of the tokens");
  expect(net_prefill(model, NULL, prompt, 1, logits, NULL) == 2, "no cache");
  cache.length = cache.capacity;
  expect(net_decode(model, &cache, prompt[0], logits, NULL) == 2 && strstr(net_error(), "1 more tokens after"), "no room");
  cache.length = -1;
  expect(net_decode(model, &cache, prompt[0], logits, NULL) == 2, "a length below 0");
  cache.length = 0;
  cache.bytes--;
  expect(net_decode(model, &cache, prompt[0], logits, NULL) == 2 && strstr(net_error(), "take"), "too little memory");
  cache.bytes++;
  cache.memory = (char *)cache.memory + 8;
  expect(net_decode(model, &cache, prompt[0], logits, NULL) == 2 && strstr(net_error(), "not aligned"), "not aligned");
  cache.memory = (char *)cache.memory - 8;
  cache.capacity = NET_CONTEXT + 1;
  expect(net_decode(model, &cache, prompt[0], logits, NULL) == 2 && strstr(net_error(), "context"), "too long");
  expect(net_cache_bytes(model, NET_CONTEXT + 1) == 0 && net_cache_bytes(model, 0) == 0, "bytes of no length");
  expect(net_open(NULL, 0) == 2 && net_open(&model, -1) == 2, "a number of threads below 0");
  free(cache.memory);
}

int main(int count, char **words) {
  static float logits[NET_VOCABULARY];
  if (count < 3 || count - 2 > MOST) return 2;
  new_count = atoi(words[1]);
  for (int i = 2; i < count; i++) prompt[prompt_count++] = atoll(words[i]);
  must(net_open(&model, 2));
  fprintf(stderr, "%s\n", net_target(model));
  net_cache cache = new_cache();
  must(net_prefill(model, &cache, prompt, prompt_count, logits, NULL));
  go_on(&cache, logits, wanted, NULL);
  expect(cache.length == cache.capacity - 1, "the length");
  free(cache.memory);
  for (int i = 0; i < new_count; i++) printf("%lld\n", (long long)wanted[i]);
  fflush(stdout);
  beside_another();
#ifdef PIECE
  expect(is_same(PIECE, NULL), "other tokens of a prompt in pieces");
#endif
  int calls = 0;
  net_pool pool = {2, &calls, parallel_for};
  expect(is_same(0, &pool) && calls, "other tokens on threads of the caller's");
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, in_a_thread, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  pid_t child = fork();
  if (!child) {
    expect(is_same(0, NULL), "other tokens in a forked process");
    net_close(model);
    _exit(0);
  }
  int state;
  waitpid(child, &state, 0);
  expect(!state, "the forked process failed");
  expect(is_same(0, NULL), "other tokens after the fork");
  net *before = model;
  wrong_use();
  net_close(before);
  return 0;
}
