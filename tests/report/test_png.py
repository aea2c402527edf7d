from corymb.report.html import write_report
from tests.report.reported import runs


def test_png_is_a_picture(tmp_path):
    for several in (runs(), runs()[1:2]):
        assert write_report(several, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
