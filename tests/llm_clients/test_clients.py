"""The Python clients of OpenAI and Anthropic send requests through the gateway to a server of the test."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import tempfile
import unittest
import urllib.request

import anthropic
import openai

from upstream import Upstream

TIMEOUT = 300  # Seconds for each test; much longer than one takes.
CLIENTS = 100
BUDGET, ESTIMATE, MAX_DEBT = 1000, 100, 20
PROGRAM = os.environ.get("TIDEGATE") or str(pathlib.Path(__file__).parents[2] / "target/debug/tidegate")
POLICY = f"""
listen: 127.0.0.1:0
admin: 127.0.0.1:0
upstreams: {{ models: {{ servers: http://127.0.0.1:PORT, timeouts: {{ response: {TIMEOUT}s }} }} }}
routes: models
templates:
  tokens: {{ key: header x-team, quota: {BUDGET} per 1000h fixed-window, charge: {{ refund-status: [4xx, 5xx] }} }}
rules:
  - name: openai
    use: tokens
    match: {{ method: POST, path: [/v1/chat/completions, /v1/responses] }}
    cost: {{ from: {{ first: [body /max_completion_tokens, body /max_output_tokens] }}, default: 1000, max: 1000 }}
    settle: {{ from: openai, max-debt: {MAX_DEBT} }}
  - name: anthropic
    use: tokens
    match: {{ method: POST, path: /v1/messages }}
    cost: {{ from: body /max_tokens, default: 1000, max: 1000 }}
    settle: {{ from: anthropic, max-debt: {MAX_DEBT} }}
"""
CONVERSATION = [{"role": "user", "content": "Does the tide come in?"}]


@dataclasses.dataclass
class Api:
    """One of the APIs, and how its client calls it."""

    name: str
    rule: str
    client: type
    base: str
    method: str
    arguments: dict
    estimate: str
    stream: dict

    def connect(self, port, team):
        """Returns a client with connections of its own."""
        http_client = {"openai": openai, "anthropic": anthropic}[self.rule].DefaultAsyncHttpxClient(verify=False)
        return self.client(
            api_key="none",
            base_url=f"http://127.0.0.1:{port}{self.base}",
            default_headers={"x-team": team},
            http_client=http_client,
            timeout=TIMEOUT,
            max_retries=0,
        )

    def call(self, client, streams, wrapper=None):
        """Calls the API, with `with_raw_response` or `with_streaming_response` as the wrapper."""
        target = client
        for name in self.method.split("."):
            target = getattr(target, name)
        target = getattr(target, wrapper) if wrapper else target
        arguments = {"model": "moon-1", self.estimate: ESTIMATE} | self.arguments
        return target.create(**arguments, **({"stream": True} | self.stream if streams else {}))


APIS = [
    Api("chat", "openai", openai.AsyncOpenAI, "/v1", "chat.completions", {"messages": CONVERSATION},
        "max_completion_tokens", {"stream_options": {"include_usage": True}}),
    Api("responses", "openai", openai.AsyncOpenAI, "/v1", "responses", {"input": "Does the tide come in?"},
        "max_output_tokens", {}),
    Api("messages", "anthropic", anthropic.AsyncAnthropic, "", "messages", {"messages": CONVERSATION},
        "max_tokens", {}),
]
CASES = [(api, streams) for api in APIS for streams in (False, True)]


@contextlib.asynccontextmanager
async def gateway(upstream):
    """A running gateway: its port, and the URL of its admin API."""
    with tempfile.TemporaryDirectory() as directory:
        policy = pathlib.Path(directory) / "policy.yaml"
        policy.write_text(POLICY.replace("PORT", str(upstream.port)))
        process = await asyncio.create_subprocess_exec(PROGRAM, "serve", "--json", policy, stdout=asyncio.subprocess.PIPE)
        try:
            addresses = json.loads(await process.stdout.readline())
            yield int(addresses["gateway"][0].rsplit(":", 1)[1]), addresses["admin"][0]
        finally:
            process.kill()
            await process.wait()


async def raw_response(api, client, streams):
    """The status, the headers of the content, and the bytes as they were received, before the client decodes them."""
    async with api.call(client, streams, "with_streaming_response") as response:
        content = {name: response.headers.get(name) for name in ("content-type", "content-encoding", "content-length")}
        return response.status_code, content, b"".join([part async for part in response.http_response.aiter_raw()])


async def parsed_response(api, client, streams):
    """What the client makes of a response."""
    response = await api.call(client, streams)
    return [event.model_dump() async for event in response] if streams else response.model_dump()


def limited(test):
    """Fails a test that takes too long."""

    @functools.wraps(test)
    async def run(self):
        async with asyncio.timeout(TIMEOUT):
            await test(self)

    return run


class ClientTests(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        # The debug mode, which these tests have by default, makes the clients slow.
        asyncio.get_running_loop().set_debug(False)
        self.upstream = await self.enterAsyncContext(Upstream())
        self.port, self.admin = await self.enterAsyncContext(gateway(self.upstream))

    async def connect(self, api, team, port=None):
        client = api.connect(port or self.port, team)
        self.addAsyncCleanup(client.close)
        return client

    async def remaining(self, api, team):
        """The tokens that are left after one more request has reserved its estimate."""
        client = await self.connect(api, team)
        response = await api.call(client, False, "with_raw_response")
        return int(re.search(r"r=(\d+)", response.headers["ratelimit"])[1])

    async def settled(self, kind):
        def read():
            with urllib.request.urlopen(f"{self.admin}/metrics", timeout=TIMEOUT) as response:
                return response.read().decode()

        series = re.findall(rf'^tidegate_settled_tokens_total{{rule="\w+",kind="{kind}"}} (\d+)', await asyncio.to_thread(read), re.M)
        return sum(map(int, series))

    @limited
    async def test_responses_arrive_byte_for_byte(self):
        for api, streams in CASES:
            with self.subTest(api=api.name, streams=streams):
                direct = await self.connect(api, "bytes", self.upstream.port)
                team = f"bytes-{api.name}-{streams}"
                through = await self.connect(api, team)
                expected = await raw_response(api, direct, streams)
                self.assertEqual(await raw_response(api, through, streams), expected)
                self.assertEqual(
                    await parsed_response(api, through, streams), await parsed_response(api, direct, streams)
                )
                # Both calls used 50 tokens.
                self.assertEqual(await self.remaining(api, team), BUDGET - 2 * 50 - ESTIMATE)

    @limited
    async def test_events_arrive_before_the_next_one_is_sent(self):
        for api in APIS:
            with self.subTest(api=api.name):
                self.upstream.acknowledged, self.upstream.sent_events = asyncio.Semaphore(0), 0
                client = await self.connect(api, "events")
                received = 0
                async for event in await api.call(client, True):
                    received += 1
                    self.upstream.acknowledged.release()
                self.assertGreater(received, 4)
                self.assertGreaterEqual(self.upstream.sent_events, received)

    async def call_in_parallel(self, api, team):
        """Sends requests of all clients at once, every second one for a stream. Responses wait until each request is admitted or
        rejected. Returns the number of admitted requests."""
        self.upstream.released.clear()
        before = self.upstream.received
        rejected = 0

        async def call(index):
            nonlocal rejected
            client = await self.connect(api, team)
            try:
                return await parsed_response(api, client, bool(index % 2))
            except (openai.RateLimitError, anthropic.RateLimitError) as error:
                self.assertGreater(int(error.response.headers["retry-after"]), 0)
                rejected += 1

        calls = [asyncio.create_task(call(index)) for index in range(CLIENTS)]
        while self.upstream.received - before + rejected < CLIENTS:
            for failed in [call for call in calls if call.done() and call.exception()]:
                await failed
            await asyncio.sleep(0.01)
        admitted = self.upstream.received - before
        self.upstream.released.set()
        responses = [response for response in await asyncio.gather(*calls) if response]
        self.assertEqual((len(responses), admitted + rejected), (admitted, CLIENTS))
        return admitted

    @limited
    async def test_refunds_of_parallel_clients_are_exact(self):
        for api in APIS:
            with self.subTest(api=api.name):
                admitted = await self.call_in_parallel(api, api.name)
                self.assertEqual(admitted, BUDGET // ESTIMATE)
                self.assertEqual(await self.remaining(api, api.name), BUDGET - admitted * 50 - ESTIMATE)
        # 50 of each request, also of the three that read the remaining tokens.
        self.assertEqual(await self.settled("refunded"), 3 * 50 * (BUDGET // ESTIMATE + 1))
        self.assertEqual(await self.settled("debt"), 0)

    @limited
    async def test_parallel_clients_use_the_budget_and_the_declared_debt(self):
        self.upstream.output_tokens = 130
        for api in APIS:
            with self.subTest(api=api.name):
                admitted = await self.call_in_parallel(api, api.name)
                self.assertEqual(admitted, BUDGET // ESTIMATE)
                with self.assertRaises((openai.RateLimitError, anthropic.RateLimitError)):
                    await parsed_response(api, await self.connect(api, api.name), False)
        # Each request used 150 tokens: its estimate, the declared debt, and 30 tokens above it.
        requests = 3 * BUDGET // ESTIMATE
        self.assertEqual(await self.settled("debt"), requests * MAX_DEBT)
        self.assertEqual(await self.settled("uncharged"), requests * 30)

    @limited
    async def test_client_that_closes_a_stream_is_charged_what_was_stated(self):
        api = APIS[2]
        self.upstream.acknowledged = asyncio.Semaphore(0)
        client = await self.connect(api, "closed")
        stream = await api.call(client, True)
        await anext(aiter(stream))
        await stream.close()
        # The first event states 20 tokens of the prompt and 1 of the answer.
        while await self.settled("refunded") == 0:
            pass
        self.upstream.acknowledged = None
        self.assertEqual(await self.remaining(api, "closed"), BUDGET - 21 - ESTIMATE)


if __name__ == "__main__":
    unittest.main()
