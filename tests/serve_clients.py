"""serve_clients.py URL - broken, slow, leaving and many clients of dtrain-generate --serve, which must keep answering."""
import concurrent.futures, json, socket, struct, sys, time, urllib.request

url = sys.argv[1]
host, port = url.split("//")[1].rsplit(":", 1)


def connect():
    return socket.create_connection((host, int(port)), timeout=60)


def post(body, path="/v1/completions"):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=120))


def gauge(name):
    text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("dtrain_serve_" + name + " ")))


def head(n, path="/v1/completions", more=""):
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {n}\r\n{more}\r\n".encode()


small = {"prompt": "ab", "max_tokens": 5, "temperature": 0}
expected = post(small)["choices"]
long_one = json.dumps({"prompt": "a", "max_tokens": 60, "n": 64, "seed": 1}).encode()

# bytes that are no HTTP, and requests that end early
for junk in (b"", b"\0" * 100, b"GET", b"\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
             head(10**18), head(-5), head(100) + b"{", head("x") + b"{}", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10000,
             head(4, more="Expect: 100-continue\r\n"), head(5, more="Transfer-Encoding: chunked\r\n") + b"zz\r\n"):
    with connect() as s:
        try:
            s.sendall(junk)
            s.shutdown(socket.SHUT_WR)
            s.recv(1000)
        except OSError:
            pass
assert post(small)["choices"] == expected

# what a proxy may divide otherwise
for more in ("Content-Length: 20\r\n", "Transfer-Encoding: chunked\r\n"):
    with connect() as s:
        s.sendall(head(5, more=more) + b"0\r\n\r\n" + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        text = b""
        while part := s.recv(65536):
            text += part
    assert text.startswith(b"HTTP/1.1 400 ") and text.count(b"HTTP/1.1") == 1, text

# parts of a stream have the text and the log-probabilities of the whole answer, also before a stop text of several tokens
def stream(body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps({**body, "stream": True}).encode())
    return [json.loads(line[6:])["choices"][0] for line in urllib.request.urlopen(request) if line.startswith(b"data: {")]


body = {"prompt": "ab", "max_tokens": 40, "seed": 3, "top_k": 1, "logprobs": 1}
answer = post(body)["choices"][0]
for key, whole in answer["logprobs"].items():
    assert sum((part["logprobs"][key] for part in stream(body)), []) == whole, key
text = answer["text"]
at = next(i for i in range(4, len(text)) if "\ufffd" not in text[i : i + 3])
body |= {"stop": ["never", text[at : at + 3]]}
expected_text = text[: text.find(text[at : at + 3])]
for parts in ([post(body)["choices"][0]], stream(body)):
    assert "".join(part["text"] for part in parts) == expected_text, parts
    assert parts[-1]["finish_reason"] == "stop", parts

# pipelined requests are answered in order
bodies = [json.dumps({**small, "max_tokens": n}).encode() for n in (1, 2, 3)]
with connect() as s:
    s.sendall(b"".join(head(len(b)) + b for b in bodies))
    text = b""
    while text.count(b'"usage"') < 3:
        part = s.recv(65536)
        assert part
        text += part
found = [json.loads(part.split(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] for part in text.split(b"HTTP/1.1 200 OK")[1:]]
assert found == [1, 2, 3], found

# clients that leave while their answers are computed: whole, streamed, by reset
for body in (long_one, long_one[:-1] + b', "stream": true}'):
    for reset in (False, True):
        for _ in range(5):
            s = connect()
            s.sendall(head(len(body)) + body)
            time.sleep(0.02)
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
assert post(small)["choices"] == expected
end = time.time() + 60
while gauge("requests_running") > 0 and time.time() < end:
    time.sleep(0.1)
assert gauge("requests_running") == 0 and gauge("sequences_waiting") == 0

# a client that reads nothing of its stream does not hold up the others
slow = connect()
body = json.dumps({"prompt": "a", "max_tokens": 60, "n": 64, "stream": True, "logprobs": 20}).encode()
slow.sendall(head(len(body)) + body)
for _ in range(3):
    assert post(small)["choices"] == expected

# many clients at a time, of several kinds
def one(i):
    if i % 3 == 0:
        return post(small)["choices"] == expected
    if i % 3 == 1:
        return len(post({"prompt": "x", "max_tokens": 8, "temperature": 1 + i % 5, "top_k": 3, "logprobs": i % 4})["choices"]) == 1
    return "content" in post({"messages": [{"role": "user", "content": "q"}], "max_tokens": 6}, "/v1/chat/completions")["choices"][0]["message"]


with concurrent.futures.ThreadPoolExecutor(48) as pool:
    assert all(pool.map(one, range(240)))

# a client that sends a byte at a time is cut off
start = time.time()
with connect() as s:
    try:
        for byte in head(1000) + b"{" * 990:
            s.sendall(bytes([byte]))
            time.sleep(0.1)
    except OSError:
        pass
assert time.time() - start < 60, time.time() - start
assert post(small)["choices"] == expected
slow.close()
