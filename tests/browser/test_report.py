"""A report in real Chromium: it is drawn without network requests or console messages, on a desktop and on a phone."""

import json
import shutil
from dataclasses import replace

import pytest

from corymb.core.federation import Ledger
from corymb.report.html import write_report
from corymb.report.sections import tabs
from tests.report.reported import HARMFUL, runs, soft_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("default"),  # selenium leaves sockets to the garbage collector
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
WIDTHS = {1280: 900, 390: 844}
DARK = "rgb(15, 18, 22)"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(runs(), tmp_path_factory.mktemp("report") / "report.html").as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(params=WIDTHS, ids=lambda width: f"{width}px")
def browser(request, chromium, page):
    """The page, freshly opened in light colours."""
    size = {"width": request.param, "height": WIDTHS[request.param]}
    chromium.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**size, "deviceScaleFactor": 1, "mobile": request.param < 500}
    )
    prefer(chromium, "light")
    chromium.get_log("browser")
    chromium.get_log("performance")
    chromium.get("about:blank")
    chromium.get(page)
    yield chromium
    assert chromium.get_log("browser") == []


def prefer(driver, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(driver, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 10).until(lambda _: driver.execute_script(f"return {condition}"))


def open_tab(driver, name):
    driver.find_element("id", f"tab-{name}").click()
    drawn = f"[...document.querySelectorAll('#{name} .plot')].every((plot) => plot.dataset.drawn)"
    until(driver, drawn)


def ground(driver):
    return driver.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_every_figure_is_drawn_in_its_tab(browser):
    drawn = 0
    for name in tabs():
        open_tab(browser, name)
        panels = browser.find_elements("css selector", "section")
        visible = [panel.get_attribute("id") for panel in panels if panel.is_displayed()]
        assert visible == [name]
        for plot in browser.find_elements("css selector", f"#{name} .plot"):
            marks = plot.find_elements("css selector", "svg.main-svg path, svg.main-svg image, canvas")
            assert marks, plot.get_attribute("id")
            assert plot.size["width"] > 200
            inside = browser.execute_script(
                "const box = arguments[0].querySelector('.main-svg').getBoundingClientRect();"
                "return box.left >= 0 && box.right <= innerWidth + 1;", plot
            )  # fmt: skip
            assert inside, plot.get_attribute("id")
            drawn += 1
    assert drawn >= 10


def test_nothing_is_asked_for_but_the_file_itself(browser, page):
    for name in tabs():
        open_tab(browser, name)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"].partition("#")[0]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith(("data:", "blob:", "about:"))} == {page}


def test_the_page_is_no_wider_than_the_window(browser):
    for name in tabs():
        open_tab(browser, name)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), name


def test_tabs_are_used_from_the_keyboard(browser):
    from selenium.webdriver.common.keys import Keys

    names = list(tabs())
    browser.execute_script("document.getElementById('tab-overview').focus()")
    for name in (*names[1:], names[0]):
        browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        assert browser.switch_to.active_element.get_attribute("id") == f"tab-{name}"
        assert browser.find_element("id", name).is_displayed()
    browser.switch_to.active_element.send_keys(Keys.END)
    assert browser.find_element("id", names[-1]).is_displayed()
    assert browser.switch_to.active_element.get_attribute("aria-selected") == "true"


def test_dark_follows_the_system_and_the_button(browser):
    light = ground(browser)
    prefer(browser, "dark")
    assert ground(browser) == DARK
    open_tab(browser, "overview")
    ink = "document.querySelector('#plot-quality .xtick text').style.fill"
    until(browser, f"{ink} === 'rgb(154, 164, 178)'")
    browser.find_element("id", "theme").click()
    assert ground(browser) == light
    until(browser, f"{ink} === 'rgb(92, 100, 112)'")
    browser.find_element("id", "theme").click()
    assert ground(browser) == DARK


def test_names_of_clients_are_shown_as_text_and_run_nothing(browser):
    open_tab(browser, "clients")
    shown = browser.execute_script("return [...document.querySelectorAll('#client-rows th')].map((c) => c.textContent)")
    assert set(HARMFUL) <= set(shown)
    open_tab(browser, "clusters")
    browser.execute_script(
        "const traces = document.getElementById('plot-map').data;"
        "const at = (trace) => trace.text.findIndex((text) => text.includes('alert(1)'));"
        "const curve = traces.findIndex((trace) => at(trace) >= 0);"
        "Plotly.Fx.hover('plot-map', [{curveNumber: curve, pointNumber: at(traces[curve])}])"
    )
    until(browser, "document.querySelector('#plot-map .hovertext')")
    assert browser.find_element("css selector", "#plot-map .hovertext").text.startswith(HARMFUL[0])
    assert browser.execute_script("return document.querySelectorAll('img, .plot a, .plot script').length") == 0


def test_a_client_is_found_by_name(browser):
    open_tab(browser, "clients")
    browser.find_element("id", "find-client").send_keys("ALERT(1)")
    rows = browser.find_elements("css selector", "#client-rows tr")
    (found,) = (row.text for row in rows if row.is_displayed())
    assert found.startswith(HARMFUL[0])


def test_large_numbers_fit_on_a_phone(chromium, tmp_path):
    size = {"width": 390, "height": WIDTHS[390], "deviceScaleFactor": 1, "mobile": True}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    values = {"test": 431_600_000.0, "worst_decile": 702_100_000.0, "trivial": 959_300_000.0}
    metrics = {f"{what}_squared_error": value for what, value in values.items()}
    chromium.get(write_report(replace(runs()[0], metrics=metrics, objective=None), tmp_path / "large.html").as_uri())
    assert "959,300,000" in chromium.find_element("css selector", ".keys").text
    assert chromium.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_soft_memberships_are_drawn(chromium, tmp_path):
    chromium.get(write_report(soft_run(), tmp_path / "soft.html").as_uri())
    open_tab(chromium, "clusters")
    bars = chromium.find_elements("css selector", "#plot-memberships .bars .point")
    assert len(bars) == 2 * len(soft_run().names)


def test_on_paper_all_tabs_are_open_with_titles_and_figures_fit(browser):
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    until(browser, "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn)")
    until(browser, "[...document.querySelectorAll('.plot .main-svg')].every((one) => one.clientWidth <= 660)")
    titles = browser.execute_script(
        "return [...document.querySelectorAll('h2')].filter((one) => one.getBoundingClientRect().left >= 0).length"
    )
    assert titles == len(tabs())
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert [panel.is_displayed() for panel in browser.find_elements("css selector", "section")].count(True) == 1


def test_the_table_of_clusters_is_seen_as_a_whole(browser):
    open_tab(browser, "quality")
    hidden = "(box => box.scrollWidth - box.clientWidth)(document.getElementById('cluster-table').parentElement)"
    assert browser.execute_script(f"return innerWidth < 500 || {hidden} === 0")


def test_without_scripts_the_tables_are_open_and_the_page_says_what_is_missing(chromium, page):
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chromium.get(page)
        text = chromium.find_element("tag name", "body").text
        assert "The figures need JavaScript." in text
        assert "Other metrics" in text
        shown = chromium.find_elements("css selector", ".plot, .tabs, #theme, .save, .download, .find")
        assert shown
        assert not [element for element in shown if element.is_displayed()]
    finally:
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_name_in_the_download_is_no_formula(browser):
    open_tab(browser, "clients")
    browser.execute_script(
        "document.querySelector('#client-rows th').textContent = '=1+2';"
        "document.querySelector('#client-rows td').textContent = '-0.5';"
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#'; };"
    )
    browser.find_element("css selector", "[data-download]").click()
    until(browser, "window.saved")
    row = browser.execute_script("return window.saved").splitlines()[1]
    assert row.startswith('"\'=1+2","-0.5",')


def test_reasons_of_refusals_can_be_read_on_a_phone(chromium, tmp_path):
    entries = [{"clock": 1, "client": "a", "reason": "update is 4.47e+10 times as long as is usual"}]
    page = write_report(replace(runs()[0], ledger=Ledger(rejected=entries)), tmp_path / "refused.html")
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chromium.get(page.as_uri())
    open_tab(chromium, "clients")
    assert chromium.find_element("css selector", "#rejected-rows td.text").size["width"] > 150
