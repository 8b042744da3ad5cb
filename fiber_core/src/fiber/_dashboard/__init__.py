"""Dashboard: a page in a browser that shows what a run does; needs the extra ``dashboard``.

The dashboard asks the program of a run for its status, at the same socket as ``fiber top``, and only while
somebody has the page open. It is served by ``fiber dashboard`` or, for a program with the setting
``dashboard``, by a process that this program starts. That process ends with the program; if it dies first, the
program continues.

Invariants: nothing on the page changes a run; a request without the token gets no answer but 403; the page
loads nothing from another host; a browser that stops reading costs its own connection and nothing else.

server        status of a run, asked for once a second for all open pages; the HTTP server, its addresses, and the
              check of requests (token, Host header)
program       process that serves the page of one program
page/         HTML, CSS and JavaScript, sent unchanged
"""
