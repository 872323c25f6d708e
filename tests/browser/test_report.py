"""The report in a real browser: pointer, keyboard, tabs, phone, dark mode, print, no script."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.float64_only]

PAGES = ("regression", "mixed", "series", "pictures")
TIP = "#tip"
# The colours of all text against what is behind it, as the least ratio of WCAG 2 and its place.
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


def tabs_of(page):
    return page.locator("[role=tab]")


@pytest.mark.parametrize("name", PAGES)
def test_every_tab_shows_its_part_and_hides_the_others(look, name):
    page = look(name)
    tabs = tabs_of(page)
    for index in range(tabs.count()):
        tabs.nth(index).click()
        assert page.locator("[role=tabpanel]:visible").count() == 1
        shown = tabs.nth(index).get_attribute("aria-controls")
        assert page.locator(f"#{shown}").is_visible()
        assert page.locator("[aria-selected=true]").count() == 1
        assert page.url.endswith(f"#{shown}")


def test_tabs_follow_the_arrow_keys_and_a_link_opens_its_part(look):
    page = look("regression")
    tabs_of(page).first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#fit").is_visible()
    page.keyboard.press("End")
    assert page.locator("#repeat").is_visible()
    page.keyboard.press("ArrowRight")  # around the end
    assert page.locator("#estimates").is_visible()
    assert page.evaluate("document.activeElement.id") == "tab-estimates"
    assert look("regression", part="#convergence").locator("#convergence").is_visible()


def test_an_estimate_tells_its_values_at_the_pointer(look):
    page = look("regression")
    row = page.locator(".forest tbody tr").nth(5)
    row.scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # scrolling hides what was shown
    row.hover()
    assert page.locator(TIP).is_visible()
    assert page.locator(TIP).inner_text() == row.get_attribute("data-tip")
    assert "90 % probability" in page.locator(TIP).inner_text()
    page.locator("h1").hover()
    assert page.locator(TIP).is_hidden()


def test_a_chart_tells_the_nearest_point_at_the_pointer_and_by_keys(look):
    page = look("regression", part="#fit")
    plot = page.locator("#fit .plot").nth(1)
    plot.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    plot.hover()
    at_pointer = page.locator(TIP).inner_text()
    assert at_pointer.startswith("row ")
    plot.focus()
    page.keyboard.press("Home")
    first = page.locator(TIP).inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(TIP).inner_text() != first
    assert plot.get_attribute("aria-label")
    box = page.locator(TIP).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    page.keyboard.press("Escape")
    assert page.locator(TIP).is_hidden()


def test_estimates_are_sorted_by_size_sign_and_certainty_and_found_by_name(look):
    page = look("regression")
    rows = "() => [...document.querySelectorAll('.forest tbody tr')].filter((r) => !r.hidden)"

    def column(name):
        return page.evaluate(f"{rows.replace('() => ', '')}.map((r) => +r.dataset.{name})")

    for label, name in (("by size", "size"), ("by sign", "mean"), ("by certainty", "direction")):
        page.get_by_role("button", name=label).click()
        values = column(name)
        assert values == sorted(values, reverse=True)
        assert len(values) == 16
    page.get_by_role("button", name="as given").click()
    assert column("index") == list(range(16))
    page.get_by_role("searchbox").fill("X1")
    names = page.locator(".forest tbody tr:visible th").all_inner_texts()
    assert names == ["x1", "x10", "x11", "x12", "x13", "x14", "x15"]


@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_no_page_sideways(look, name, width):
    page = look(name, width=width)
    tabs = tabs_of(page)
    for index in range(tabs.count()):
        tabs.nth(index).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_all_text_has_contrast(look, name, scheme):
    page = look(name, color_scheme=scheme)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(246, 247, 249)"
    assert dark is (scheme == "dark")
    tabs = tabs_of(page)
    for index in range(tabs.count()):
        tabs.nth(index).click()
        worst = page.evaluate(CONTRAST)
        assert worst["seen"] > 5
        assert worst["ratio"] >= 4.5, worst  # WCAG 2, level AA, of small text


def test_print_shows_all_parts_and_no_controls(look):
    page = look("regression")
    page.emulate_media(media="print")
    assert page.locator("[role=tabpanel]:visible").count() == tabs_of(page).count()
    assert page.locator("[role=tab]:visible, .tools:visible").count() == 0


def test_without_a_script_everything_is_there(look):
    page = look("mixed", java_script_enabled=False)
    assert page.locator("[role=tabpanel]:visible").count() == 5
    assert page.locator("[role=tab]:visible, .tools:visible").count() == 0
    assert page.locator(".forest circle:visible").count() > 14


def test_a_script_in_foreign_text_does_not_run(browser, tmp_path):
    from curvi.report import Prose, Report, Tab, Verdict, write_report

    text = "<img src=x onerror='document.title=1'><script>document.title = 2</script>"
    verdict = Verdict("good", text)
    report = Report("plain", text, verdict, (), (Tab("a", text, (Prose(text),)),))
    page = browser.new_page()
    page.goto(write_report(report, tmp_path / "r.html").as_uri())
    assert page.title() == "plain · curvi"
    assert page.locator("img").count() == 0
    page.close()
