"""Workers of this package in processes of their own: whatever may hang, crash or grow runs there.

`child.Child` is the parent's side. It starts `python -P -m vermilion.process MODULE START`, where
`worker` makes one object of the class `Worker` of that module, and calls its methods on request.

A message is a line of JSON on the worker's stdin, `{"do": METHOD, "with": {…}}`. Each is answered
in order with a line on its stdout: `{"ok": {…}}` with what the method returned, or
`{"error": {"kinds": […], "message": …, "where": …, "hint": …}}` with what it raised. Arrays lie in
files (`arrays`), which both map. All else that is printed, by native libraries too, goes to a log:
a file, because a provider hangs where its stderr is a pipe
(https://github.com/microsoft/winml-cli/issues/1265).

Ctrl-C is the parent's to answer. A worker ends with its parent, whatever it is doing.
"""
