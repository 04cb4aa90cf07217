"""The health check of the container: exits with 0 if the server of $CAMPAIGN says 200, else 1."""

import os
import socket
import sys
from http.client import HTTPConnection

connection = HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.settimeout(4)
connection.sock.connect(f"/run/fedtally/{os.environ['CAMPAIGN']}.operate.sock")
connection.request("GET", "/healthz")
sys.exit(connection.getresponse().status != 200)
