"""Reports as people and programs read them: text, HTML, CSV, JSON, other viewers' formats."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "figures": ("device_names", "device_sources", "duration", "size"),
        "flat": ("csv_text", "to_pandas"),
        "formats": (
            "ENDINGS",
            "RECORDING_ENDINGS",
            "checked_ending",
            "file_content",
            "save",
        ),
        "html": ("fragment", "html_page", "markup"),
        "pictures": ("Box", "TREEMAP_HEIGHT", "TREEMAP_WIDTH", "Treemap", "rectangles"),
        "shown": ("View",),
        "source": (
            "clipped",
            "dedented",
            "printable",
            "short_path",
            "shortened",
            "spreadsheet_text",
            "width",
        ),
        "text": ("TextRenderer",),
        "text.page": ("distinct_names",),
    },
)
