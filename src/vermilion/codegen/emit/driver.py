"""The native loop that runs a step table, and the waiting of workers.

A row of the table is five 64-bit words: function, argument array, units, units in the smallest
chunk, and how many units of earlier steps must be finished before it.

Each worker has a share of every step's units, the same part of the picture in every step, so that
it reads mostly what it has written itself: lines come from another core's cache at a fifth of the
speed of its own (on a virtual machine of two Zen 5 cores). It takes half of what is left of its
share at a time, then helps others with theirs. It waits for units, never for a worker: one that is
late or asleep holds up nobody. Results do not depend on who computes what.

Who calls announces the run here, with the first store, and leaves when every unit is finished:
between the two nothing but this code runs in its thread.

Counters and finished units have the run's tag in their upper half. An older tag means that nobody
has been there in this run; a worker that is so late that the next run has begun sees a newer one
and leaves.
"""

from __future__ import annotations

import sys

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.layout import (
    CLOSING,
    CONTEXT_LINE_BYTES,
    FINISHED,
    ROW_WORDS,
    RUN,
    SERVE,
    WAIT,
)

# Pauses before a waiting worker offers its core to others: about 20 microseconds. Where more
# threads want to run than there are cores, the one that is waited for may need this very core.
_SPINS_BEFORE_YIELD = 500
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_YIELD_CALL = f"%yielded = call i32 @{_YIELD}()"

# The halves of a counter.
_TAG, _UNITS = -(1 << 32), (1 << 32) - 1

_TEXT = f"""
define internal i1 @finished(ptr %context, i64 %tag, i64 %wanted, i64 %workers) nounwind {{
entry:
  br label %spin
spin:
  %spun = phi i64 [ 0, %entry ], [ %spun_next, %again ]
  br label %look
look:
  %worker = phi i64 [ 0, %spin ], [ %worker_next, %add ]
  %sum = phi i64 [ 0, %spin ], [ %sum_next, %add ]
  %line = mul i64 %worker, {CONTEXT_LINE_BYTES}
  %offset = add i64 %line, {FINISHED}
  %at = getelementptr i8, ptr %context, i64 %offset
  %now = load atomic i64, ptr %at acquire, align 8
  %now_tag = and i64 %now, {_TAG}
  %newer = icmp ugt i64 %now_tag, %tag
  br i1 %newer, label %late, label %add
add:
  %current = icmp eq i64 %now_tag, %tag
  %units = and i64 %now, {_UNITS}
  %counted = select i1 %current, i64 %units, i64 0
  %sum_next = add i64 %sum, %counted
  %worker_next = add i64 %worker, 1
  %more = icmp slt i64 %worker_next, %workers
  br i1 %more, label %look, label %sum_up
sum_up:
  %done = icmp sge i64 %sum_next, %wanted
  br i1 %done, label %leave, label %waiting
waiting:
  call void asm sideeffect "pause", ""()
  %spun_next = add i64 %spun, 1
  %patient = icmp slt i64 %spun, {_SPINS_BEFORE_YIELD}
  br i1 %patient, label %again, label %yield
yield:
  {_YIELD_CALL}
  br label %again
again:
  br label %spin
leave:
  ret i1 true
late:
  ret i1 false
}}

define void @{RUN}(ptr %context, ptr %table, i64 %steps, i64 %tag, i64 %total, i64 %worker,
                   i64 %workers) nounwind {{
entry:
  %alone = icmp eq i64 %tag, 0
  %line = mul i64 %worker, {CONTEXT_LINE_BYTES}
  %mine_offset = add i64 %line, {FINISHED}
  %mine_at = getelementptr i8, ptr %context, i64 %mine_offset
  %step_bytes = mul i64 %workers, {CONTEXT_LINE_BYTES}
  %counters_offset = add i64 %step_bytes, {FINISHED}
  %counters = getelementptr i8, ptr %context, i64 %counters_offset
  %calls = icmp ne i64 %total, 0
  br i1 %calls, label %announce, label %start
announce:
  %generation = lshr i64 %tag, 32
  store atomic i64 %generation, ptr %context release, align 8
  br label %start
start:
  br label %head
head:
  %step = phi i64 [ 0, %start ], [ %step_next, %after ]
  %mine = phi i64 [ 0, %start ], [ %mine_after, %after ]
  %more = icmp slt i64 %step, %steps
  br i1 %more, label %body, label %finish
body:
  %row_at = mul i64 %step, {ROW_WORDS * 8}
  %row = getelementptr i8, ptr %table, i64 %row_at
  %function = load ptr, ptr %row, align 8
  %arguments_at = getelementptr i8, ptr %row, i64 8
  %arguments = load ptr, ptr %arguments_at, align 8
  %units_at = getelementptr i8, ptr %row, i64 16
  %units = load i64, ptr %units_at, align 8
  br i1 %alone, label %single, label %shared
single:
  call void %function(ptr %arguments, i64 0, i64 %units)
  br label %after
shared:
  %chunk_at = getelementptr i8, ptr %row, i64 24
  %chunk = load i64, ptr %chunk_at, align 8
  %before_at = getelementptr i8, ptr %row, i64 32
  %before = load i64, ptr %before_at, align 8
  %must_wait = icmp ne i64 %before, 0
  br i1 %must_wait, label %barrier, label %work
barrier:
  %in_time = call i1 @finished(ptr %context, i64 %tag, i64 %before, i64 %workers)
  br i1 %in_time, label %work, label %exit
work:
  %whole = icmp sge i64 %chunk, %units
  %first_counter = mul i64 %step, %step_bytes
  br label %next
next:
  %others = phi i64 [ 0, %work ], [ %others_next, %empty ]
  %mine_here = phi i64 [ %mine, %work ], [ %mine_taken, %empty ]
  %straight = add i64 %worker, %others
  %beyond = icmp sge i64 %straight, %workers
  %wrapped = sub i64 %straight, %workers
  %owner = select i1 %beyond, i64 %wrapped, i64 %straight
  %owner_next = add i64 %owner, 1
  %low_product = mul i64 %units, %owner
  %high_product = mul i64 %units, %owner_next
  %low_part = udiv i64 %low_product, %workers
  %high_part = udiv i64 %high_product, %workers
  %is_first = icmp eq i64 %owner, 0
  %all_or_none = select i1 %is_first, i64 %units, i64 0
  %low = select i1 %whole, i64 0, i64 %low_part
  %high = select i1 %whole, i64 %all_or_none, i64 %high_part
  %share = sub i64 %high, %low
  %owner_line = mul i64 %owner, {CONTEXT_LINE_BYTES}
  %counter_offset = add i64 %first_counter, %owner_line
  %counter = getelementptr i8, ptr %counters, i64 %counter_offset
  br label %take
take:
  %mine_taken = phi i64 [ %mine_here, %next ], [ %mine_taken, %try ], [ %mine_next, %compute ]
  %value = load atomic i64, ptr %counter acquire, align 8
  %value_tag = and i64 %value, {_TAG}
  %late = icmp ugt i64 %value_tag, %tag
  br i1 %late, label %exit, label %in_run
in_run:
  %seen = icmp eq i64 %value_tag, %tag
  %value_units = and i64 %value, {_UNITS}
  %taken = select i1 %seen, i64 %value_units, i64 0
  %left = sub i64 %share, %taken
  %wanted = icmp sgt i64 %left, 0
  br i1 %wanted, label %try, label %empty
try:
  %half = lshr i64 %left, 1
  %enough = icmp sgt i64 %half, %chunk
  %some = select i1 %enough, i64 %half, i64 %chunk
  %fits = icmp slt i64 %some, %left
  %size = select i1 %fits, i64 %some, i64 %left
  %taken_next = add i64 %taken, %size
  %value_next = or i64 %taken_next, %tag
  %pair = cmpxchg ptr %counter, i64 %value, i64 %value_next acq_rel monotonic
  %won = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %won, label %compute, label %take
compute:
  %begin = add i64 %low, %taken
  %end = add i64 %begin, %size
  call void %function(ptr %arguments, i64 %begin, i64 %end)
  %mine_next = add i64 %mine_taken, %size
  br label %take
empty:
  %others_next = add i64 %others, 1
  %more_owners = icmp slt i64 %others_next, %workers
  br i1 %more_owners, label %next, label %leave
leave:
  %worked = icmp ne i64 %mine_taken, %mine
  br i1 %worked, label %tell, label %after
tell:
  %told = or i64 %mine_taken, %tag
  store atomic i64 %told, ptr %mine_at release, align 8
  br label %after
after:
  %mine_after = phi i64 [ 0, %single ], [ %mine_taken, %leave ], [ %mine_taken, %tell ]
  %step_next = add i64 %step, 1
  br label %head
finish:
  br i1 %calls, label %last, label %exit
last:
  %all = call i1 @finished(ptr %context, i64 %tag, i64 %total, i64 %workers)
  br label %exit
exit:
  ret void
}}

define i64 @{WAIT}(ptr %context, i64 %seen, i64 %spins) nounwind {{
entry:
  br label %head
head:
  %spin = phi i64 [ 0, %entry ], [ %spin_next, %again ]
  %now = load atomic i64, ptr %context acquire, align 8
  %changed = icmp ne i64 %now, %seen
  br i1 %changed, label %exit, label %check
check:
  %more = icmp slt i64 %spin, %spins
  br i1 %more, label %again, label %exit
again:
  call void asm sideeffect "pause", ""()
  %spin_next = add i64 %spin, 1
  br label %head
exit:
  ret i64 %now
}}

define i64 @{SERVE}(ptr %context, ptr %table, i64 %steps, i64 %seen, i64 %spins, i64 %worker,
                    i64 %workers) nounwind {{
entry:
  %closing_at = getelementptr i8, ptr %context, i64 {CLOSING}
  br label %idle
idle:
  %last = phi i64 [ %seen, %entry ], [ %now, %work ]
  %now = call i64 @{WAIT}(ptr %context, i64 %last, i64 %spins)
  %closing = load atomic i64, ptr %closing_at acquire, align 8
  %is_closing = icmp ne i64 %closing, 0
  %is_same = icmp eq i64 %now, %last
  %is_over = or i1 %is_closing, %is_same
  br i1 %is_over, label %exit, label %work
work:
  %tag = shl i64 %now, 32
  call void @{RUN}(ptr %context, ptr %table, i64 %steps, i64 %tag, i64 0, i64 %worker,
                   i64 %workers)
  br label %idle
exit:
  ret i64 %now
}}
"""


def write_driver(module: Module) -> None:
    """Add the driver to a module."""
    module.declare(_YIELD, "i32", [])
    module.add_text("driver", _TEXT)
