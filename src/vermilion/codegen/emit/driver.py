"""The native loop that runs a step table, and the waiting of workers.

A row of the table is five 64-bit words: function, argument array, units, units in a chunk, and how
many units of earlier steps must be finished before it. Workers take chunks from a counter, and
wait for units, never for each other: one that is late or asleep holds up nobody, and what it does
not take the others do. Results do not depend on who computes what.

Context, one cache line (64 bytes) each: generation, units finished, then a counter for each step.
The last two have the low half of the generation in their upper half: a worker that is so late that
the next run has begun sees it and leaves.
"""

from __future__ import annotations

import sys

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.layout import (
    CONTEXT_LINE_BYTES,
    COUNTERS,
    FINISHED,
    ROW_WORDS,
    RUN,
    WAIT,
)

# Pauses before a waiting worker offers its core to others: about 20 microseconds. Where more
# threads want to run than there are cores, the one that is waited for may need this very core.
_SPINS_BEFORE_YIELD = 500
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_YIELD_CALL = f"%yielded = call i32 @{_YIELD}()"

_TEXT = f"""
define internal i1 @finished(ptr %context, i64 %tag, i64 %wanted) nounwind {{
entry:
  %at = getelementptr i8, ptr %context, i64 {FINISHED}
  %goal = or i64 %tag, %wanted
  br label %spin
spin:
  %spun = phi i64 [ 0, %entry ], [ %spun_next, %again ]
  %now = load atomic i64, ptr %at acquire, align 8
  %done = icmp uge i64 %now, %goal
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
  %now_tag = and i64 %now, -4294967296
  %current = icmp eq i64 %now_tag, %tag
  ret i1 %current
}}

define void @{RUN}(ptr %context, ptr %table, i64 %steps, i64 %tag, i64 %total) nounwind {{
entry:
  %alone = icmp eq i64 %tag, 0
  %finished_at = getelementptr i8, ptr %context, i64 {FINISHED}
  br label %head
head:
  %step = phi i64 [ 0, %entry ], [ %step_next, %after ]
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
  br i1 %must_wait, label %meeting, label %work
meeting:
  %current = call i1 @finished(ptr %context, i64 %tag, i64 %before)
  br i1 %current, label %work, label %exit
work:
  %counter_at = mul i64 %step, {CONTEXT_LINE_BYTES}
  %counter_offset = add i64 %counter_at, {COUNTERS}
  %counter = getelementptr i8, ptr %context, i64 %counter_offset
  br label %take
take:
  %mine = phi i64 [ 0, %work ], [ %mine, %try ], [ %mine_next, %compute ]
  %value = load atomic i64, ptr %counter acquire, align 8
  %begin = and i64 %value, 4294967295
  %value_tag = and i64 %value, -4294967296
  %left = icmp slt i64 %begin, %units
  %same = icmp eq i64 %value_tag, %tag
  %wanted = and i1 %left, %same
  br i1 %wanted, label %try, label %leave
try:
  %value_next = add i64 %value, %chunk
  %pair = cmpxchg ptr %counter, i64 %value, i64 %value_next acq_rel monotonic
  %taken = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %taken, label %compute, label %take
compute:
  %far = add i64 %begin, %chunk
  %fits = icmp slt i64 %far, %units
  %end = select i1 %fits, i64 %far, i64 %units
  call void %function(ptr %arguments, i64 %begin, i64 %end)
  %count = sub i64 %end, %begin
  %mine_next = add i64 %mine, %count
  br label %take
leave:
  %worked = icmp ne i64 %mine, 0
  br i1 %worked, label %tell, label %quit
tell:
  %told = atomicrmw add ptr %finished_at, i64 %mine acq_rel
  br label %quit
quit:
  br i1 %same, label %after, label %exit
after:
  %step_next = add i64 %step, 1
  br label %head
finish:
  %must_see_all = icmp ne i64 %total, 0
  br i1 %must_see_all, label %last, label %exit
last:
  %all = call i1 @finished(ptr %context, i64 %tag, i64 %total)
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
"""


def write_driver(module: Module) -> None:
    """Add the driver to a module."""
    module.declare(_YIELD, "i32", [])
    module.add_text("driver", _TEXT)
