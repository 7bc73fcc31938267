"""The status page in a real browser: what a person sees, on a desk and on a phone.

Screenshots go to `screenshots/`, which git ignores: look at them after a change of the page.
"""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from proxy.demo.sessions import next_turn
from proxy.serving.history import Past
from proxy.slots.capabilities import Capabilities
from tests.conftest import StartLlama
from tests.serving.admin.administered import Administered, administered, answering, persisting
from tests.serving.running import sessions

SHOTS = Path(__file__).parents[2] / "screenshots"
DESK, PHONE = (1280, 800), (390, 844)
SOURCES = {"continue": 50, "hit": 15, "restore": 10, "resume": 12, "warm-up": 6, "none": 7}
FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@asynccontextmanager
async def looking(
    browser: Browser, proxy: Administered, size: tuple[int, int] = DESK, scheme: str = "light"
) -> AsyncIterator[Page]:
    """The page, open and live; whatever its console complains of fails the test."""
    width, height = size
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=size == PHONE,
    )
    page, complaints = await context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if not is_own(request.url, proxy) else None)
    await page.goto(proxy.admin_url)
    await expect(page.locator("#state")).not_to_have_text("connecting …")
    yield page
    await context.close()
    # That a refused action had a status for refusals is the browser's own remark.
    assert [] == [words for words in complaints if "(Conflict)" not in words]


def is_own(url: str, proxy: Administered) -> bool:
    return url.startswith((proxy.admin_url, "data:"))


async def shoot(page: Page, name: str) -> None:
    await page.evaluate(FRAME)
    SHOTS.mkdir(exist_ok=True)
    size = page.viewport_size or {"width": 0}
    await page.screenshot(path=SHOTS / f"{name}-{size['width']}.png")
    await page.screenshot(path=SHOTS / f"{name}-{size['width']}-whole.png", full_page=True)


def one_of_many(choose: random.Random) -> Past:
    """A request as it might have been."""
    source = choose.choices([*SOURCES], [*SOURCES.values()])[0]
    tokens = choose.randint(2_000, 24_000)
    prefilled = tokens if source == "none" else choose.randint(20, 1_500)
    outcome = choose.choices(["answered", "cut", "unanswered"], [96, 2, 2])[0]
    known = outcome != "unanswered"
    saved = tokens - prefilled if known and source in {"hit", "restore", "resume"} else 0
    return Past(
        number=0,
        ended_at=0.0,
        source=source,
        reason="some_reason",
        outcome=outcome,
        status=200 if known else 0,
        fingerprint="0123456789abcdef",
        slot=choose.randint(0, 3),
        prompt_tokens=tokens if known else None,
        prefilled_tokens=prefilled if known else None,
        reused_tokens=tokens - prefilled if known else None,
        saved_tokens=saved,
        saved_s=saved * 0.0009,
        queued_ms=0.1,
        prepared_ms=choose.random() * 20,
        first_token_ms=prefilled * 0.9 + choose.random() * 60 if known else 0.0,
        total_ms=prefilled + 900.0,
    )


async def test_a_session_sent_through_the_proxy_appears(
    start_llama: StartLlama, tmp_path: Path, chromium: Browser
) -> None:
    """Live: slot, tokens, request, checkpoint; nothing is reloaded."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]))
    async with administered(server, **settings) as proxy, looking(chromium, proxy) as page:
        await expect(page.locator("#told")).to_contain_text("No request yet")
        await shoot(page, "empty")
        first, second = sessions("/a", "/b")
        answer = await proxy.ask(first)
        await expect(page.locator("#count")).to_have_text("1")
        await expect(page.locator("#told")).to_contain_text("warm-up: its prefix was prefilled first")
        await expect(page.locator("#told")).to_contain_text(f"{answer.prefilled} prefilled")
        await expect(page.locator("#files li")).to_have_count(1)
        await expect(page.locator("#slots")).to_contain_text("conversation")
        await proxy.ask(next_turn(first, answer.text, "go on"))
        await expect(page.locator("#told")).to_contain_text("continue: went on")
        second_answer = await proxy.ask(second)
        await expect(page.locator("#saved")).to_have_text(f"{second_answer.reused:,}")
        await shoot(page, "session")


async def test_nothing_of_a_prompt_is_on_it(start_llama: StartLlama, chromium: Browser) -> None:
    """Neither what the user says nor what the system prompt says."""
    async with administered(start_llama("dense")) as proxy, looking(chromium, proxy) as page:
        body = sessions("/somewhere/canarysentence")[0]
        body["messages"][1]["content"] = "canarysentence"
        await proxy.ask(body)
        await page.locator("#list summary").click()
        await expect(page.locator("#rows tr")).to_have_count(1)
        assert "canary" not in (await page.content()).lower()


async def test_ten_thousand_requests_fit(start_llama: StartLlama, chromium: Browser) -> None:
    """The last 200 are drawn, the rest is counted; nothing is wider than the screen."""
    choose = random.Random(3)
    async with administered(start_llama("dense")) as proxy:
        for session in sessions("/a", "/b"):
            await proxy.ask(session)
        for _ in range(10_000):
            proxy.proxy.admin.history.remember(one_of_many(choose))
        proxy.heard.trouble("no_copies", "the server keeps no copies in host memory: start it with --cache-ram 8192")
        for size, scheme in itertools.product((DESK, PHONE), ("light", "dark")):
            async with looking(chromium, proxy, size, scheme) as page:
                await expect(page.locator("#count")).to_have_text("10,002")
                await expect(page.locator("#span")).to_contain_text("the last 200 of 10,000")
                await expect(page.locator("#advice")).to_contain_text("--cache-ram 8192")
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                await shoot(page, f"many-{scheme}")


async def test_it_is_used_by_keyboard(chromium: Browser) -> None:
    """Tab reaches button, chart and table; arrows go through the requests and tell each; Escape lets go."""
    choose = random.Random(3)
    async with answering(503) as upstream, administered(upstream) as proxy:
        for _ in range(30):
            proxy.proxy.admin.history.remember(one_of_many(choose))
        async with looking(chromium, proxy) as page:
            await expect(page.locator("#count")).to_have_text("30")
            reached = []
            for _ in range(4):
                await page.keyboard.press("Tab")
                reached.append(await page.evaluate("document.activeElement.id || document.activeElement.tagName"))
                if reached[-1] == "chart":
                    break
            assert ["warm", "chart"] == reached
            await page.keyboard.press("ArrowLeft")
            await expect(page.locator("#told")).to_contain_text("#30 ")
            await page.keyboard.press("ArrowLeft")
            await expect(page.locator("#told")).to_contain_text("#29 ")
            assert "29" == await page.get_attribute("#chart", "aria-valuenow")
            assert await page.inner_text("#told") == await page.get_attribute("#chart", "aria-valuetext")
            await page.keyboard.press("Home")
            await expect(page.locator("#told")).to_contain_text("#1 ")
            await page.keyboard.press("Escape")
            await expect(page.locator("#told")).to_contain_text("Latest")
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")
            await expect(page.locator("#rows tr")).to_have_count(30)


async def test_a_finger_on_the_chart_tells_that_request(chromium: Browser) -> None:
    """No hovering is needed."""
    choose = random.Random(3)
    async with answering(503) as upstream, administered(upstream) as proxy:
        for _ in range(200):
            proxy.proxy.admin.history.remember(one_of_many(choose))
        async with looking(chromium, proxy, PHONE) as page:
            await expect(page.locator("#count")).to_have_text("200")
            box = await page.locator("#chart").bounding_box()
            assert box is not None
            await page.locator("#chart").tap(position={"x": 43, "y": 60})
            await expect(page.locator("#told")).to_contain_text("#1 ")
            await page.locator("#chart").tap(position={"x": box["width"] - 1, "y": 60})
            await expect(page.locator("#told")).to_contain_text("#200 ")


async def test_a_checkpoint_is_deleted_after_a_second_press(
    start_llama: StartLlama, tmp_path: Path, chromium: Browser
) -> None:
    """One press asks, the second does it; the file is gone."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]))
    async with administered(server, **settings) as proxy, looking(chromium, proxy) as page:
        await proxy.ask(sessions("/a")[0])
        button = page.locator("#files button")
        await button.click()
        await expect(button).to_have_text("Really?")
        assert 1 == len([*settings["slot_dir"].iterdir()])
        await button.click()
        await expect(page.locator("#toast")).to_have_text("Deleted.")
        await expect(page.locator("#files li")).to_have_count(0)
        assert [] == [*settings["slot_dir"].iterdir()]


async def test_warm_now_says_what_came_of_it(start_llama: StartLlama, chromium: Browser) -> None:
    """In words, not codes."""
    async with administered(start_llama("dense")) as proxy, looking(chromium, proxy) as page:
        await page.locator("#warm").click()
        await expect(page.locator("#toast")).to_have_text("No prefix is known yet: let a client ask first.")
        await proxy.ask(sessions("/a")[0])
        await page.locator("#warm").click()
        await expect(page.locator("#toast")).to_have_text("The prefix was prefilled and is in a slot.")
        await expect(page.locator("#slots")).to_contain_text("· prefix")


async def test_a_server_that_is_away_is_shown(chromium: Browser) -> None:
    """The page is there all the same, and says of the slots only that; what the server can't do it says in words."""
    async with administered("http://127.0.0.1:9/v1") as proxy:
        proxy.proxy.engine.model.able = Capabilities(rolls_back=False, keeps_copies=True)
        async with looking(chromium, proxy) as page:
            await expect(page.locator("#state")).to_have_text("server unreachable")
            await expect(page.locator("#noslots")).to_have_text("The server can't be reached.")
            await expect(page.locator("#chips li")).to_have_text(
                ["✗ doesn't roll back", "✓ keeps copies in host memory"]
            )


async def test_a_lost_connection_is_shown_and_found_again(chromium: Browser) -> None:
    """What is shown is marked as old, until the proxy is back."""
    async with answering(200) as upstream:
        async with administered(upstream) as proxy:
            port = proxy.proxy.admin.port
            context = await chromium.new_context()
            page = await context.new_page()
            await page.goto(proxy.admin_url)
            await expect(page.locator("#state")).to_have_text("server ready")
        await expect(page.locator("#lost")).to_be_visible()
        async with administered(upstream, admin_port=port):
            await expect(page.locator("#lost")).to_be_hidden(timeout=10_000)


async def test_with_a_token_the_page_lives_by_its_cookie(chromium: Browser) -> None:
    """The token leaves the address bar, and live events still come."""
    async with answering(200) as upstream, administered(upstream, admin_token="s3cret") as proxy:
        page = await chromium.new_page()
        await page.goto(f"{proxy.admin_url}/?token=s3cret")
        await expect(page.locator("#state")).to_have_text("server ready")
        assert f"{proxy.admin_url}/" == page.url
        proxy.heard.trouble("something", "something new")
        await expect(page.locator("#advice")).to_contain_text("something new")
