"""The native loop that runs a step table, and the waiting of workers.

A row of the table is five 64-bit words: function, argument array, units, units in a chunk, and
whether all workers meet before it. Workers take chunks from a counter, so that a core that is
interrupted does not hold up the others; results do not depend on who computes what.

Context, one cache line (64 bytes) each: generation, arrived, phase, then a counter for each step.
"""

from __future__ import annotations

import sys

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.layout import (
    ARRIVED,
    CONTEXT_LINE_BYTES,
    COUNTERS,
    PHASE,
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
define internal void @meet(ptr %context, i64 %workers) nounwind {{
entry:
  %arrived = getelementptr i8, ptr %context, i64 {ARRIVED}
  %phase_at = getelementptr i8, ptr %context, i64 {PHASE}
  %phase = load atomic i64, ptr %phase_at monotonic, align 8
  %before = atomicrmw add ptr %arrived, i64 1 acq_rel
  %last_index = sub i64 %workers, 1
  %is_last = icmp eq i64 %before, %last_index
  br i1 %is_last, label %last, label %spin
last:
  store atomic i64 0, ptr %arrived monotonic, align 8
  %next = add i64 %phase, 1
  store atomic i64 %next, ptr %phase_at release, align 8
  ret void
spin:
  %spun = phi i64 [ 0, %entry ], [ %spun_next, %again ]
  call void asm sideeffect "pause", ""()
  %now = load atomic i64, ptr %phase_at acquire, align 8
  %same = icmp eq i64 %now, %phase
  br i1 %same, label %waiting, label %done
waiting:
  %spun_next = add i64 %spun, 1
  %patient = icmp slt i64 %spun, {_SPINS_BEFORE_YIELD}
  br i1 %patient, label %again, label %yield
yield:
  {_YIELD_CALL}
  br label %again
again:
  br label %spin
done:
  ret void
}}

define void @{RUN}(ptr %context, ptr %table, i64 %steps, i64 %workers) nounwind {{
entry:
  %alone = icmp eq i64 %workers, 1
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
  %meet_at = getelementptr i8, ptr %row, i64 32
  %meets = load i64, ptr %meet_at, align 8
  %must_meet = icmp ne i64 %meets, 0
  br i1 %must_meet, label %meeting, label %work
meeting:
  call void @meet(ptr %context, i64 %workers)
  br label %work
work:
  %counter_at = mul i64 %step, {CONTEXT_LINE_BYTES}
  %counter_offset = add i64 %counter_at, {COUNTERS}
  %counter = getelementptr i8, ptr %context, i64 %counter_offset
  br label %take
take:
  %begin = atomicrmw add ptr %counter, i64 %chunk monotonic
  %left = icmp slt i64 %begin, %units
  br i1 %left, label %compute, label %after
compute:
  %wanted = add i64 %begin, %chunk
  %fits = icmp slt i64 %wanted, %units
  %end = select i1 %fits, i64 %wanted, i64 %units
  call void %function(ptr %arguments, i64 %begin, i64 %end)
  br label %take
after:
  %step_next = add i64 %step, 1
  br label %head
finish:
  br i1 %alone, label %exit, label %last_meeting
last_meeting:
  call void @meet(ptr %context, i64 %workers)
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
