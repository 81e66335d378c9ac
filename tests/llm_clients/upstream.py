"""A server that speaks the APIs of OpenAI and of Anthropic: chat completions, responses and messages, as JSON and as events."""

import asyncio
import gzip
import json

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
WORDS = ("The ", "tide ", "comes ", "in.")


class Upstream:
    """Counts requests, and lets a test decide when responses continue. It uses no time and no random number: equal requests get
    equal bytes."""

    def __init__(self):
        # The tokens that responses report.
        self.input_tokens, self.output_tokens = 20, 30
        self.received = 0
        # Set if responses need not wait.
        self.released = asyncio.Event()
        self.released.set()
        # Released once for each event that the client received; `None` if events follow each other.
        self.acknowledged = None
        self.sent_events = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=500)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.received += 1
                await self.released.wait()
                await self._respond(writer, request.split()[1], headers, body)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    async def _respond(self, writer, path, headers, body):
        if not body.get("stream"):
            text = json.dumps(self._answer(path, body), indent=1).encode()
            coding = ""
            if "gzip" in headers.get("accept-encoding", ""):
                text, coding = gzip.compress(text, mtime=0), "content-encoding: gzip\r\n"
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{coding}content-length: {len(text)}\r\n\r\n"
            writer.write(head.encode() + text)
            return await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in self._events(path, body):
            text = event.encode()
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            await writer.drain()
            self.sent_events += 1
            # Clients do not return pings, and not the end of a stream.
            if self.acknowledged and not event.startswith(("event: ping", "data: [DONE]")):
                await self.acknowledged.acquire()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _answer(self, path, body):
        text = "".join(WORDS)
        if path == CHAT:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return self._chat(body, "chat.completion", choices=[choice], usage=self._chat_usage())
        if path == RESPONSES:
            return self._response(body, "completed")
        usage = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return self._message(body, [{"type": "text", "text": text}], "end_turn", usage)

    def _events(self, path, body):
        if path == CHAT:
            return self._chat_events(body)
        if path == RESPONSES:
            return self._response_events(body)
        return self._message_events(body)

    def _chat(self, body, kind, **members):
        return {"id": "chatcmpl-1", "object": kind, "created": 1763500000, "model": body["model"], **members}

    def _chat_usage(self):
        total = self.input_tokens + self.output_tokens
        return {"prompt_tokens": self.input_tokens, "completion_tokens": self.output_tokens, "total_tokens": total}

    def _chat_events(self, body):
        def chunk(delta, finish, usage=None):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps(self._chat(body, 'chat.completion.chunk', choices=[choice], usage=usage))}\n\n"

        yield chunk({"role": "assistant", "content": ""}, None)
        for word in WORDS:
            yield chunk({"content": word}, None)
        yield chunk({}, "stop")
        if body.get("stream_options", {}).get("include_usage"):
            last = self._chat(body, "chat.completion.chunk", choices=[], usage=self._chat_usage())
            yield f"data: {json.dumps(last)}\n\n"
        yield "data: [DONE]\n\n"

    def _response(self, body, status):
        content = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [content]}
        is_complete = status == "completed"
        usage = {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.input_tokens + self.output_tokens,
        }
        return {
            "id": "resp_1", "object": "response", "created_at": 1763500000, "status": status, "model": body["model"],
            "output": [message] if is_complete else [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": usage if is_complete else None,
        }

    def _response_events(self, body):
        def event(number, kind, **members):
            data = {"type": kind, "sequence_number": number, **members}
            return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

        yield event(0, "response.created", response=self._response(body, "in_progress"))
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        for number, word in enumerate(WORDS, 1):
            yield event(number, "response.output_text.delta", delta=word, logprobs=[], **place)
        yield event(5, "response.completed", response=self._response(body, "completed"))

    def _message(self, body, content, stop_reason, usage):
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": content,
            "stop_reason": stop_reason, "stop_sequence": None, "usage": usage,
        }

    def _message_events(self, body):
        def event(kind, **members):
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n"

        usage = {"input_tokens": self.input_tokens, "output_tokens": 1}
        yield event("message_start", message=self._message(body, [], None, usage))
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield event("ping")
        for word in WORDS:
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        yield event("content_block_stop", index=0)
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        yield event("message_delta", delta=delta, usage={"output_tokens": self.output_tokens})
        yield event("message_stop")
