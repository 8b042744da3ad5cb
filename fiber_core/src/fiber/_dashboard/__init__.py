"""Page in a browser on which people see what a run does; needs the extra ``dashboard``.

It asks the run's program at its status socket, as ``fiber top`` does, and only while somebody has the page
open. A program that serves its own starts a process for that, which ends with it and may die without it.

Invariants: nothing on the page changes a run; nothing is answered to who has not shown the token; nothing is
loaded from another host; a browser that does not read costs its own connection and nothing else.

guard         who is answered: token, Host header, headers of answers
feed          what is told of a run: asked for once a second for all who look, with the last minutes
server        the addresses of the page, and the HTTP server
program       the page of a program that asked for it
page/         the page itself: files that a browser takes as they are
"""
