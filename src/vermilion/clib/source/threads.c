/* Threads that wait for work inside of generated code, and the running of a step table by all of them.

   A worker spins for a moment after each run, so that the next one starts within a microsecond, then
   sleeps: nothing burns a core while nobody calls. Who calls waits for no worker, only for what a worker
   has begun; results never depend on a worker being there. */
#include "internal.h"

/* About a millisecond; where the number comes from is in `codegen/workers.py`. */
#define VM_SPINS 50000
/* Runs that are told apart by their tags; after them the workers start anew. */
#define VM_TAGS INT32_MAX
#define VM_LINE_WORDS 8 /* of a cache line */
#define VM_CLOSING 1    /* a word of the first line: `codegen/table.py` */
#define VM_ROW_WORDS 5
#define VM_CHUNKS_A_WORKER 4

/* ---- the system's threads ---- */

#ifdef _WIN32
typedef SRWLOCK vm_lock;
typedef CONDITION_VARIABLE vm_condition;
typedef HANDLE vm_thread;
static void vm_lock_new(vm_lock *lock) { InitializeSRWLock(lock); }
static void vm_lock_take(vm_lock *lock) { AcquireSRWLockExclusive(lock); }
static void vm_lock_leave(vm_lock *lock) { ReleaseSRWLockExclusive(lock); }
static void vm_condition_new(vm_condition *condition) { InitializeConditionVariable(condition); }
static void vm_condition_wake(vm_condition *condition) { WakeAllConditionVariable(condition); }
static void vm_condition_wait(vm_condition *condition, vm_lock *lock) { SleepConditionVariableSRW(condition, lock, 1000, 0); }
static void vm_thread_join(vm_thread thread) {
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
}
static long vm_process(void) { return 1; } /* Windows does not fork */
static void vm_pause(void) { SwitchToThread(); }
static int64_t vm_clock_ns(void) {
  LARGE_INTEGER now, second;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&second);
  return (int64_t)((double)now.QuadPart * 1e9 / (double)second.QuadPart);
}
static int64_t vm_taken_away(void) { return 0; }
/* Touch the stack page by page: code for System V may need more than a page of it at once, and Windows
   grows a stack only where the next page is touched. */
static void vm_grow_stack(void) {
  volatile char room[64 * 1024];
  for (size_t i = sizeof room; i >= 4096; i -= 4096) room[i - 1] = 0;
}
#else
typedef pthread_mutex_t vm_lock;
typedef pthread_cond_t vm_condition;
typedef pthread_t vm_thread;
static void vm_lock_new(vm_lock *lock) { pthread_mutex_init(lock, NULL); }
static void vm_lock_take(vm_lock *lock) { pthread_mutex_lock(lock); }
static void vm_lock_leave(vm_lock *lock) { pthread_mutex_unlock(lock); }
static void vm_condition_new(vm_condition *condition) { pthread_cond_init(condition, NULL); }
static void vm_condition_wake(vm_condition *condition) { pthread_cond_broadcast(condition); }
static void vm_condition_wait(vm_condition *condition, vm_lock *lock) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec++;
  pthread_cond_timedwait(condition, lock, &until);
}
static void vm_thread_join(vm_thread thread) { pthread_join(thread, NULL); }
static long vm_process(void) { return (long)getpid(); }
static void vm_pause(void) { sched_yield(); }
static int64_t vm_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
/* How often a core was given to another program while this process had work for it. */
static int64_t vm_taken_away(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_nivcsw;
}
static void vm_grow_stack(void) {}
#endif

/* ---- whether workers help ---- */

/* As `codegen/crowding.py`, which says why and where the numbers come from. */
typedef struct vm_crowding {
  bool is_alone, is_trying;
  int64_t seen, spent_ns, runs, units, hold_ns, waited_ns;
  double other_ns;
} vm_crowding;

#define VM_WINDOW_NS 60000000
#define VM_LEAST_RUNS 4
#define VM_FIRST_HOLD_NS 500000000
#define VM_LAST_HOLD_NS 2000000000
#define VM_CROWDED 0.1
#define VM_CLEARLY 0.95

static void vm_crowding_begin(vm_crowding *crowding) {
  memset(crowding, 0, sizeof *crowding);
  crowding->seen = vm_taken_away();
  crowding->hold_ns = crowding->waited_ns = VM_FIRST_HOLD_NS;
}

static void vm_crowding_decide(vm_crowding *crowding, int64_t spent_ns, double unit_ns) {
  int64_t before = crowding->seen;
  crowding->seen = vm_taken_away();
  if (crowding->is_trying) {
    bool is_better = unit_ns < VM_CLEARLY * crowding->other_ns;
    crowding->is_alone ^= !is_better;
    int64_t twice = 2 * crowding->hold_ns;
    crowding->hold_ns = is_better ? VM_FIRST_HOLD_NS : twice < VM_LAST_HOLD_NS ? twice : VM_LAST_HOLD_NS;
    crowding->is_trying = false;
    crowding->waited_ns = 0;
    return;
  }
  crowding->waited_ns += spent_ns;
  bool is_calm = (double)(crowding->seen - before) < VM_CROWDED * (double)spent_ns / 1e6;
  if ((is_calm && !crowding->is_alone) || crowding->waited_ns < crowding->hold_ns) return;
  crowding->other_ns = unit_ns;
  crowding->is_trying = true;
  crowding->is_alone = !crowding->is_alone;
}

static void vm_crowding_note(vm_crowding *crowding, int64_t spent_ns, int64_t units) {
  crowding->spent_ns += spent_ns;
  crowding->runs++;
  crowding->units += units;
  if (crowding->spent_ns < VM_WINDOW_NS || crowding->runs < VM_LEAST_RUNS) return;
  int64_t spent = crowding->spent_ns;
  double each = (double)spent / (double)(crowding->units > 1 ? crowding->units : 1);
  crowding->spent_ns = crowding->runs = crowding->units = 0;
  vm_crowding_decide(crowding, spent, each);
}

/* ---- a team ---- */

typedef struct vm_team vm_team;

typedef struct vm_worker {
  vm_team *team;
  int32_t number;
  vm_thread thread;
  _Atomic long place; /* the thread's number, where the system has one */
  bool is_started;
} vm_worker;

/* Threads that run one step table. `context` is what they share: a generation, then counters; `apart` is
   the same for runs on the caller's threads, which these must not join. */
struct vm_team {
  vm_run_function run;
  vm_serve_function serve;
  int64_t *table, *context, *apart;
  int64_t steps, units, apart_generation;
  int32_t workers;
  bool is_started;
  _Atomic int32_t asleep;
  vm_lock lock;
  vm_condition wake;
  vm_worker *crew;
  vm_crowding crowding;
#ifdef __linux__
  int kept_off; /* the core that the workers were last kept off, -1: none */
#endif
};

static size_t vm_context_bytes(int64_t steps, int32_t workers) {
  return 64 * (size_t)(1 + (1 + steps) * workers);
}

static int64_t vm_generation(const vm_team *team) {
  return atomic_load((const _Atomic int64_t *)team->context);
}

static bool vm_is_closing(const vm_team *team) {
  return atomic_load((const _Atomic int64_t *)(team->context + VM_CLOSING)) != 0;
}

static void vm_work(vm_worker *worker, int64_t seen) {
  vm_team *team = worker->team;
#ifdef __linux__
  atomic_store(&worker->place, (long)syscall(SYS_gettid));
#endif
  vm_grow_stack();
  while (!vm_is_closing(team)) {
    seen = team->serve(team->context, team->table, team->steps, seen, VM_SPINS, worker->number, team->workers);
    vm_lock_take(&team->lock);
    atomic_fetch_add(&team->asleep, 1);
    if (vm_generation(team) == seen && !vm_is_closing(team)) vm_condition_wait(&team->wake, &team->lock);
    atomic_fetch_sub(&team->asleep, 1);
    vm_lock_leave(&team->lock);
  }
}

#ifdef _WIN32
static DWORD WINAPI vm_begin_work(void *worker) {
  vm_work(worker, 0);
  return 0;
}
static bool vm_thread_start(vm_worker *worker) {
  worker->thread = CreateThread(NULL, 0, vm_begin_work, worker, 0, NULL);
  return worker->thread != NULL;
}
#else
static void *vm_begin_work(void *worker) {
  vm_work(worker, 0);
  return NULL;
}
static bool vm_thread_start(vm_worker *worker) {
  /* Signals are the caller's business. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&worker->thread, NULL, vm_begin_work, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return !failed;
}
#endif

/* Begin with no threads and no runs. */
static void vm_team_clear(vm_team *team) {
  memset(team->context, 0, vm_context_bytes(team->steps, team->workers));
  for (int32_t i = 0; i < team->workers; i++) team->crew[i].is_started = false;
  team->is_started = false;
  atomic_store(&team->asleep, 0);
  vm_lock_new(&team->lock);
  vm_condition_new(&team->wake);
#ifdef __linux__
  team->kept_off = -1;
#endif
}

/* Say whether `process`, whose threads there are, is another one than this: the caller then begins anew
   and sets it. Of several threads that ask one does; the others wait. */
static bool vm_enter_process(_Atomic long *process) {
  long here = vm_process(), known = atomic_load(process);
  while (known != here) {
    if (known != -1 && atomic_compare_exchange_strong(process, &known, -1)) return true;
    vm_pause();
    known = atomic_load(process);
  }
  return false;
}

/* Begin anew in a forked process. */
static void vm_team_renew(vm_team *team) {
  vm_team_clear(team);
  vm_aligned_free(team->apart);
  team->apart = NULL;
  team->apart_generation = 0;
}

static vm_status vm_team_new(const vm_program *program, int64_t steps, int32_t workers, vm_team **result) {
  vm_team *team = calloc(1, sizeof *team);
  if (!team) return vm_no_memory();
  team->run = program->run;
  team->serve = program->serve;
  team->steps = steps;
  team->workers = workers;
  team->table = vm_aligned(8 * VM_ROW_WORDS * (size_t)steps);
  team->context = vm_aligned(vm_context_bytes(steps, workers));
  team->crew = calloc((size_t)workers, sizeof *team->crew);
  *result = team;
  if (!team->table || !team->context || !team->crew) return vm_no_memory();
  for (int32_t i = 0; i < workers; i++) {
    team->crew[i].team = team;
    team->crew[i].number = i;
  }
  vm_team_clear(team);
  vm_crowding_begin(&team->crowding);
  return NULL;
}

/* End the threads, and wait for them. */
static void vm_team_end(vm_team *team) {
  vm_lock_take(&team->lock);
  atomic_store((_Atomic int64_t *)(team->context + VM_CLOSING), 1);
  atomic_fetch_add((_Atomic int64_t *)team->context, 1);
  vm_condition_wake(&team->wake);
  vm_lock_leave(&team->lock);
  for (int32_t i = 1; i < team->workers; i++)
    if (team->crew[i].is_started) vm_thread_join(team->crew[i].thread);
}

static void vm_team_free(vm_team *team, bool has_threads) {
  if (!team) return;
  if (has_threads && team->is_started) vm_team_end(team);
  vm_aligned_free(team->table);
  vm_aligned_free(team->context);
  vm_aligned_free(team->apart);
  free(team->crew);
  free(team);
}

/* Take the rows of another table of as many rows, between two runs.

   A worker that is late from the run before must find the next run's counters before it finds the new
   rows: it would hold the old counts against the new units. */
static void vm_team_hold(vm_team *team, const vm_program *program, const vm_sized *sized, const int64_t *arguments) {
  int64_t tag = (vm_generation(team) + 1) << 32, before = 0;
  for (int64_t line = 1 + team->workers; line < 1 + (1 + team->steps) * team->workers; line++)
    atomic_store((_Atomic int64_t *)(team->context + line * VM_LINE_WORDS), tag);
  for (uint32_t i = 0; i < sized->row_count; i++) {
    const vm_row *row = &sized->rows[i];
    int64_t *words = team->table + (size_t)VM_ROW_WORDS * i;
    int64_t shared = row->units / ((int64_t)team->workers * VM_CHUNKS_A_WORKER);
    if (shared < 1) shared = 1;
    words[0] = (int64_t)(intptr_t)program->functions[row->function].address;
    words[1] = (int64_t)(intptr_t)arguments;
    words[2] = row->units;
    words[3] = row->chunk > 0 ? row->chunk : row->chunk < 0 && -row->chunk < shared ? -row->chunk : shared;
    words[4] = row->has_barrier ? before : 0;
    arguments += row->argument_count;
    before += row->units;
  }
  team->units = before;
}

#ifdef __linux__
/* Keep those who are woken off the caller's core, where Linux may put them to wait for it. */
static void vm_make_room(vm_team *team) {
  int here = sched_getcpu();
  cpu_set_t others;
  if (here < 0 || here == team->kept_off || sched_getaffinity(0, sizeof others, &others)) return;
  if (here < CPU_SETSIZE) CPU_CLR(here, &others);
  if (!CPU_COUNT(&others)) return;
  for (int32_t i = 1; i < team->workers; i++) {
    long place = atomic_load(&team->crew[i].place);
    if (team->crew[i].is_started && place) sched_setaffinity((pid_t)place, sizeof others, &others);
  }
  team->kept_off = here;
}
#else
static void vm_make_room(vm_team *team) { (void)team; }
#endif

static void vm_team_wake(vm_team *team) {
  for (int32_t i = 1; !team->is_started && i < team->workers; i++)
    if (!team->crew[i].is_started) team->crew[i].is_started = vm_thread_start(&team->crew[i]);
  team->is_started = true;
  if (!atomic_load(&team->asleep)) return;
  /* Whoever is woken before the run is announced spins until it is. */
  vm_make_room(team);
  vm_lock_take(&team->lock);
  vm_condition_wake(&team->wake);
  vm_lock_leave(&team->lock);
}

static void vm_run_alone(vm_team *team) {
  team->run(team->context, team->table, team->steps, 0, 0, 0, 1);
}

/* Run the table once, on the team's own threads. */
static void vm_team_run(vm_team *team) {
  vm_grow_stack();
  if (team->workers == 1) {
    vm_run_alone(team);
    return;
  }
  int64_t begin = vm_clock_ns();
  if (team->crowding.is_alone) {
    vm_run_alone(team);
  } else {
    if (vm_generation(team) >= VM_TAGS - 1) { /* a tag would be taken for an old one */
      if (team->is_started) vm_team_end(team);
      vm_team_clear(team);
    }
    vm_team_wake(team);
    team->run(team->context, team->table, team->steps, (vm_generation(team) + 1) << 32, team->units, 0, team->workers);
  }
  vm_crowding_note(&team->crowding, vm_clock_ns() - begin, team->units);
}

/* ---- the caller's threads ---- */

typedef struct vm_shared_run {
  vm_team *team;
  int64_t tag;
  int32_t workers;
  _Atomic int32_t done;
} vm_shared_run;

static void vm_shared_task(void *work, size_t index) {
  vm_shared_run *run = work;
  vm_grow_stack();
  run->team->run(run->team->apart, run->team->table, run->team->steps, run->tag, 0, (int64_t)index, run->workers);
  atomic_fetch_add(&run->done, 1);
}

static vm_status vm_team_share(vm_team *team, const vermilion_pool *pool, int32_t workers) {
  size_t bytes = vm_context_bytes(team->steps, team->workers);
  if (!team->apart && !(team->apart = vm_aligned(bytes))) return vm_no_memory();
  if (team->apart_generation >= VM_TAGS - 1) {
    memset(team->apart, 0, bytes);
    team->apart_generation = 0;
  }
  vm_shared_run run = {team, ++team->apart_generation << 32, workers, 0};
  int failed = pool->parallel_for(pool->context, vm_shared_task, (size_t)workers, &run);
  if (failed || atomic_load(&run.done) != workers)
    return vm_fail(VERMILION_ERROR_DEVICE, "", "look at what the caller's threads say", "the caller's threads ran %d of %d tasks (%d)",
                   (int)atomic_load(&run.done), (int)workers, failed);
  return NULL;
}

/* Run the table once on threads of the caller's; on the caller's own alone, where neighbours make that
   faster. */
static vm_status vm_team_run_on(vm_team *team, const vermilion_pool *pool) {
  int32_t workers = (size_t)team->workers < pool->workers ? team->workers : (int32_t)pool->workers;
  vm_status status = NULL;
  int64_t begin = workers > 1 ? vm_clock_ns() : 0;
  if (workers <= 1 || team->crowding.is_alone) {
    vm_grow_stack();
    vm_run_alone(team);
  } else {
    status = vm_team_share(team, pool, workers);
  }
  if (workers > 1) vm_crowding_note(&team->crowding, vm_clock_ns() - begin, team->units);
  return status;
}
