"""chat_terminal.py MODEL FILE - dtrain-generate --chat on a pseudo-terminal with simulated typing. Prints "ok NAME" and "not ok NAME: why" lines."""
import json, os, pty, re, select, signal, sys, termios, time

model, saved = sys.argv[1], sys.argv[2]
WAIT = 120  # seconds until something that must come counts as missing


class Talk:
    def __init__(self, *args, model=model, **env):
        self.seen, self.at, self.patience = b"", 0, 20
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", **env})
            if "NO_COLOR" not in env:
                os.environ.pop("NO_COLOR", None)
            os.execv("./dtrain-generate", ["dtrain-generate", model, "--chat", "--threads", "1", *args])

    def pump(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def wait(self, pattern):
        """Until the pattern is in what came since the last wait; that part, or None."""
        end = time.time() + WAIT
        while True:
            m = re.search(pattern, self.seen[self.at:], re.S)
            if m:
                text = self.seen[self.at:self.at + m.end()]
                self.at += m.end()
                return text
            if time.time() > end or not self.pump(0.2):
                if not re.search(pattern, self.seen[self.at:], re.S):
                    return None

    def type(self, text):
        # The editor shows its prompt a moment before it takes the terminal over, and what is typed between would be the terminal's.
        end = time.time() + self.patience
        while termios.tcgetattr(self.fd)[3] & termios.ICANON and self.patience:
            time.sleep(0.01)
            if time.time() > end:
                self.patience = 0  # built without an editor
        os.write(self.fd, text.encode())

    def end(self):
        limit = time.time() + WAIT
        while time.time() < limit and self.pump(0.2):
            pass
        if time.time() >= limit:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def check(name, good, talk):
    print(f"ok {name}" if good else f"not ok {name}: the terminal showed {talk.seen[-400:]!r}", flush=True)
    return good


PROMPT = rb"\x1b\[1;32m>\x1b\[0m "
MORE = rb"\x1b\[1;32m\.\.\.\x1b\[0m "
ANSWERED = rb"\r\n.*" + PROMPT


def said_now(t, name):
    """What /save writes now. The test's model takes 64 tokens: it hears one message at a time."""
    path = f"{saved}-{name}"
    t.type(f"/save {path}\r")
    told = t.wait(rb"(\d) messages written to .*" + PROMPT)
    return [(m["role"], m["content"]) for m in json.load(open(path))["messages"]] if told else []


def mine(t, name):
    said = said_now(t, name)
    t.type("/clear\r")
    check(f"/clear forgets ({name})", t.wait(rb"conversation cleared.*" + PROMPT), t)
    return [text for role, text in said if role == "user"]


t = Talk("--max-new-tokens", "5", "--system", "hi")
greeting = t.wait(PROMPT) or b""
check("a greeting names the model and the template", b"talking to " in greeting and b"chat template: plain" in greeting, t)
check("and how to leave", b"/exit leaves" in greeting, t)
t.type("/help\r")
check("/help lists the commands", t.wait(rb"/clear .*/system TEXT.*/save FILE.*/exit.*" + PROMPT), t)
t.type("hullo\x01\x1b[C\x08x\x05!\r")  # to the start, one right, delete to the left, type, to the end
check("an edited line is answered", t.wait(ANSWERED), t)
said = said_now(t, "first")
check("the roles in the file alternate", [r for r, _ in said] == ["system", "user", "assistant"], t)
check("lines are edited", mine(t, "edited") == ["xullo!"], t)
t.type("/nonsense\r")
check("an unknown command is no message", t.wait(rb"/nonsense: no such command; /help lists them.*" + PROMPT), t)
t.type("\x1b[A" * 5 + "\r")  # the line before the commands
t.wait(ANSWERED)
check("arrow-up brings lines back", mine(t, "history") == ["xullo!"], t)
t.type("one \\\r")
check("a line that ends in a backslash continues", t.wait(MORE), t)
t.type("two\r")
t.wait(ANSWERED)
check("with a line break", mine(t, "backslash") == ["one \ntwo"], t)
t.type('"""\r')
t.wait(MORE)
t.type("a\r")
t.wait(MORE)
t.type('b"""\r')
t.wait(ANSWERED)
check("a message between quotes", mine(t, "quotes") == ["a\nb"], t)
t.type("gone")
t.wait(rb"gone")
t.type("\x03")
check("Ctrl-C drops the line", t.wait(PROMPT), t)
t.type("//x\r")
t.wait(ANSWERED)
check("two slashes are one", mine(t, "slashes") == ["/x"], t)
t.type(f"/save {saved}-first\r")
check("/save does not overwrite", t.wait(rb"-first.*exists.*" + PROMPT), t)
t.type("/system be long\r")
check("/system begins again", t.wait(rb"a new conversation with another system message.*" + PROMPT), t)
check("and the system message is another", said_now(t, "system") == [("system", "be long")], t)
t.type("/image x.png\r")
check("a model of texts takes no images", t.wait(rb"does not accept images.*" + PROMPT), t)
t.type("/exit\r")
check("/exit leaves", t.end() == 0, t)

t = Talk("--max-new-tokens", "3", NO_COLOR="1")
check("NO_COLOR is heeded", t.wait(rb"leaves\r\n> ") and b"\x1b[" not in t.seen.replace(b"\x1b[K", b""), t)
t.type("\x04")
check("Ctrl-D leaves", t.end() == 0, t)

t = Talk("--max-new-tokens", "3", "--greedy", "--chat-template", "plain", NO_COLOR="1", model="tests/data/vision/hf/clip_llama")
t.wait(rb"leaves\r\n> ")
t.type("/image nowhere.png\r")
check("a missing image is reported", t.wait(rb"nowhere.png: cannot be opened.*\n> "), t)
t.type("/image tests/data/image/files/rgb.jpg\r")
check("/image shows one", t.wait(rb"the image goes with your next message.*\n> "), t)
t.type("two <image><image>?\r")
check("a message that wants two is left out", t.wait(rb"the text has 2 <image>, but the message has 1 image.*> "), t)
t.type("what?\r")
check("one that wants none has it in front", t.wait(rb"what\?.*\n> "), t)
path = f"{saved}-image"
t.type(f"/save {path}\r")
t.wait(rb"messages written.*\n> ")
record = json.load(open(path))
check("/save has its path", record["images"] == [os.path.abspath("tests/data/image/files/rgb.jpg")] and record["messages"][0]["content"] == "<image>\nwhat?", t)
t.type("/clear\r")
t.wait(rb"cleared.*\n> ")
t.type("<image>\r")
check("/clear forgets it", t.wait(rb"the text has 1 <image>, but the message has no image.*> "), t)
t.type("/exit\r")
check("a conversation with images ends", t.end() == 0, t)
