"""Results of harnesses in one Markdown page, a section each, and the machine on which they came about."""

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_section(page, title, text):
    """Puts `text` under the heading `title` of the file `page`, in place of what was there, and leaves other sections."""
    sections = read_sections(page.read_text()) if page.exists() else {}
    sections[title] = text.strip()
    page.write_text("\n\n".join(f"# {title}\n\n{text}" for title, text in sections.items()) + "\n")


def read_sections(text):
    """By heading of the first level, what stands under it, in order."""
    sections, title = {}, None
    for line in text.splitlines():
        if line.startswith("# "):
            title = line[2:].strip()
            sections[title] = []
        elif title is not None:
            sections[title].append(line)
    return {title: "\n".join(lines).strip() for title, lines in sections.items()}


def machine():
    """What tells one machine and version from another."""
    processor = platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {"processor": processor, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}",
            "ropewalk": commit.stdout.strip() or None, "date": datetime.date.today().isoformat(),
            "load": round(os.getloadavg()[0], 2)}


def described(machine):
    """A machine in one line."""
    return ", ".join(f"{key} {value}" for key, value in machine.items() if value is not None)
