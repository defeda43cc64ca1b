"""Workers of this package in processes of their own: whatever may hang, crash or grow runs there.

`child.Child` is the parent's side. It starts `python -P -m vermilion.process MODULE START`, where
`worker` makes one object of the class `Worker` of that module, and calls its methods on request.

A message is a line of JSON on the worker's stdin, `{"do": METHOD, "with": {…}, "number": N}`. Each
is answered in order with a line on its stdout that has the same number: `{"ok": {…}}` with what the
method returned, or `{"error": {"kinds": […], "message": …, "where": …, "hint": …}}` with what it
raised. `answers` reads them, and believes nothing unread. Arrays lie in files (`arrays`): the
worker maps them, the parent reads and writes, so that a file cut short is an error there and no
fault on access. All else that is printed, by native libraries too, goes to a log of bounded size
(`log`): a file, because a provider hangs where its stderr is a pipe
(https://github.com/microsoft/winml-cli/issues/1265).

Ctrl-C is the parent's to answer. A worker ends with its parent, whatever it is doing, and with all
that it started (`group`).
"""
