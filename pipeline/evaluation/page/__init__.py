"""The report page: boards, charts and one self-contained HTML file."""
