"""Hooks of MkDocs for `make site`: adds the pages made from the code, and adapts the pages of docs.

The pages in docs also work where code hosts show them. So a link that leaves docs leads to the repository here, a diagram
becomes a list, since the program that draws diagrams would come from the network, and the navigation names folders.
"""

import ast
import html
import re
import sys
import types
from importlib import import_module
from pathlib import Path

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "https://github.com/bucketq/bucketq/blob/main"
GENERATED = "reference/"

# Long words break outside tables, and tables scroll in themselves, so that no page scrolls sideways on a phone. Colours
# have the contrast that WCAG 2 asks for.
STYLE = """\
.md-typeset table:not([class]) th { min-width: 0; }
.md-typeset :is(p, li, h1, h2, h3, h4) code { overflow-wrap: anywhere; word-break: normal; }
.md-typeset table code { overflow-wrap: normal; word-break: normal; }
.md-typeset :is(h1, h2, h3) { color: var(--md-default-fg-color); font-weight: 600; letter-spacing: 0; }
.md-typeset h1 { margin-bottom: 0.8em; }
.md-typeset :is(p, li, td) a { text-decoration: underline; text-underline-offset: 0.15em; }
@media (max-width: 40em) { .md-typeset table:not([class]) td:last-child { min-width: 11rem; } }
.md-tabs__link { opacity: 1; }
.md-tabs__item--active .md-tabs__link { font-weight: 700; text-decoration: underline; text-underline-offset: 0.4em; }
.doc-contents .doc-contents { margin-left: 0.8rem; }
.md-typeset .doc-contents h3 { margin-top: 2em; }
[data-md-color-scheme="default"] { --md-code-hl-comment-color: #5c5c5c; --md-default-fg-color--light: #000000a8; }
[data-md-color-scheme="slate"] {
  --md-code-hl-number-color: #f08b80;
  --md-code-hl-function-color: #b3a6f2;
  --md-code-hl-constant-color: #b3a6f2;
  --md-code-hl-comment-color: #a9adbd;
  --md-code-hl-operator-color: #a9adbd;
  --md-code-hl-punctuation-color: #a9adbd;
  --md-typeset-a-color: #9fb0ff;
}
"""

# Tables that scroll can be reached with the keyboard, and the bar of each block of code has a name of its own.
SCRIPT = """\
const name = () => {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((each) => (each.tabIndex = 0));
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((each) => {
    each.setAttribute("aria-label", `Code ${document.querySelectorAll(".md-code__nav[aria-label]").length + 1}`);
  });
};
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
"""

# The search runs in a worker, which browsers refuse to a page from a disk: there a frame does its work.
FRAMES = """\
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      frame.reply = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.srcdoc =
        "<script>window.postMessage = (data) => frameElement.reply(data);</" + "script>" +
        `<script src="${new URL(address, document.baseURI)}"></` + "script>";
      this.loaded = new Promise((done) => (frame.onload = () => done(frame.contentWindow)));
      document.body.append(frame);
    }
    async postMessage(data) {
      (await this.loaded).dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
"""

# How much a page counts in the search, by its folder: guides before rules, and rules before reasons.
BOOSTS = {"how-to": 3, "reference": 0.5, "decisions": 0.1}

# Whole modules, with the values of their aliases and without a repetition of what their classes inherit.
MODULES = {"types", "errors", "events", "metrics", "measured", "testing"}
OF_MODULES = "\n    options: {show_attribute_values: true, inherited_members: false}"

# Pages of the Python API: the title, an introduction, and the objects in their order.
PAGES: dict[str, tuple[str, str, list[str]]] = {
    "python": (
        "Python",
        "The synchronous API. [Quickstart](../quickstart.md) shows it at work, and [asyncio](asyncio.md) has the same names.",
        ["open", "QueueFile", "Queue", "Job", "Batch", "Jobs", "Atomic"]
        + ["check", "restore", "fix_time", "set_max_skew", "probe", "measure"],
    ),
    "asyncio": (
        "Python with asyncio",
        "`bucketq.aio` has the names of the [synchronous API](python.md), in the same order.",
        [
            "aio.open",
            "aio.QueueFile",
            "aio.Queue",
            "aio.Job",
            "aio.Batch",
            "aio.Jobs",
            "aio.Atomic",
            "aio.Worker",
        ]
        + ["aio.check", "aio.restore", "aio.fix_time", "aio.set_max_skew", "aio.probe", "aio.measure"],
    ),
    "tasks": (
        "Tasks and workers",
        "[Tasks](../tasks.md) and [workers](../workers.md) explain how to use them, [testing](../testing.md) how to test them.",
        [
            "tasks.App",
            "tasks.Task",
            "tasks.AsyncTask",
            "tasks.Configured",
            "tasks.Call",
            "tasks.Options",
            "tasks.Result",
        ]
        + [
            "tasks.GroupResult",
            "tasks.AppWorker",
            "tasks.CurrentJob",
            "tasks.current_job",
            "tasks.TaskFailed",
        ]
        + ["Worker", "Worked", "Reject", "TimedOut", "testing"],
    ),
    "types": (
        "Types, errors and events",
        "[Errors](../errors.md) has every code with its advice, [watching](../watching.md) the events and metrics.",
        ["types", "errors", "events", "metrics", "measured"],
    ),
}


class Sessions(Preprocessor):
    """Puts the examples of docstrings, which begin with `>>>`, into blocks of code."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of a page or a docstring with a fence around each example."""
        shown: list[str] = []
        fenced = example = False
        for line in lines:
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not example and line.startswith(">>>"):
                example = True
                shown += ["", "```pycon"]
            elif example and not line.strip():
                example = False
                shown.append("```")
            shown.append(line)
        return [*shown, "```"] if example else shown


class Docstrings(Extension):
    """Adds `Sessions` to Markdown, before its blocks of code are found."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the step."""
        md.preprocessors.register(Sessions(md), "sessions", 29)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the navigation by its pages."""
    config.nav = [expanded(entry, Path(config.docs_dir)) for entry in config.nav or []]
    config.markdown_extensions.append(Docstrings())
    return config


def expanded(entry: object, docs: Path) -> object:
    """Return the entry with the list of its pages in the place of `folder/*`."""
    if isinstance(entry, dict):
        return {title: expanded(inner, docs) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [expanded(inner, docs) for inner in entry]
    if isinstance(entry, str) and entry.endswith("/*"):
        return sorted(str(page.relative_to(docs)) for page in docs.glob(f"{entry}.md"))
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages made from the code."""
    pages = {f"{name}.md": api(*page) for name, page in PAGES.items()}
    pages["commands.md"] = commands()
    pages |= {"site.css": STYLE, "site.js": SCRIPT, "iframe-worker.js": FRAMES}
    for name, text in pages.items():
        files.append(File.generated(config, GENERATED + name, content=text))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Let links out of docs lead to the repository, and write diagrams as lists."""
    here = Path(config.docs_dir, page.file.src_uri).parent
    page.meta.setdefault("search", {"boost": BOOSTS.get(page.file.src_uri.rpartition("/")[0], 1)})
    if page.file.src_uri == "README.md":
        markdown = beginning() + markdown.partition("\n")[2]

    def away(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        target = (here / path).resolve()
        if (
            "://" in path
            or target.is_relative_to(config.docs_dir)
            or not target.is_relative_to(ROOT)
            or not target.exists()
        ):
            return found[0]
        return f"]({SOURCE}/{target.relative_to(ROOT)}{anchor})"

    markdown = spaced(markdown.replace("```rust,ignore\n", "```rust\n"))
    markdown = re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", away, markdown)
    return re.sub(r"```mermaid\n(.*?)```\n", lambda found: steps(found[1]), markdown, flags=re.DOTALL)


def spaced(markdown: str) -> str:
    """Return a page with an empty line before each list and table: code hosts need none behind a paragraph."""
    shown = [""]
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        before = shown[-1]
        begins = next((mark for mark in (r"[-*] |\d+\. ", r"\|") if re.match(mark, line)), None)
        if begins and not fenced and before.strip() and not re.match(begins, before) and not before.startswith(" "):
            shown.append("")
        shown.append(line)
    return "\n".join(shown[1:])


def beginning() -> str:
    """Return what the README says first, for the first page: the product, and a task with its worker."""
    readme = (ROOT / "README.md").read_text()
    introduction, _, rest = readme.partition("\n## Install\n")
    task = re.search(r"\n## A task and its worker\n.*?(?=\n## )", rest, re.DOTALL)
    if task is None:
        raise ValueError("README.md has no section `A task and its worker`")
    return re.sub(r"\]\(docs/", "](", introduction + task[0])


def on_post_page(output: str, page: object, config: MkDocsConfig) -> str:
    """Give the search a name for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def steps(diagram: str) -> str:
    """Return a sequence diagram as nested lists."""
    kind, *lines = diagram.splitlines()
    if kind != "sequenceDiagram":
        raise ValueError(f"no diagram of this kind can be shown as a list: {kind}")
    names: dict[str, str] = {}
    shown: list[str] = []
    depth = 0
    for line in map(str.strip, lines):
        if found := re.fullmatch(r"participant (\w+) as (.*)", line):
            names[found[1]] = found[2]
        elif found := re.fullmatch(r"(\w+)--?>>(\w+): (.*)", line):
            source, target, text = found.groups()
            way = names[source] if source == target else f"{names[source]} → {names[target]}"
            shown.append(f"{'    ' * depth}- **{way}**: {html.escape(text)}")
        elif found := re.fullmatch(r"(alt|else) ?(.*)", line):
            depth = 1
            shown.append(f"- if {found[2]}:" if found[2] else "- otherwise:")
        elif line == "end":
            depth = 0
        else:
            raise ValueError(f"this line of a diagram cannot be shown in a list: {line}")
    return "\n".join(shown) + "\n"


def api(title: str, introduction: str, names: list[str]) -> str:
    """Return a page of the Python API; mkdocstrings fills it."""
    parts = [f"::: bucketq.{name}" + (OF_MODULES if name in MODULES else "") for name in names]
    return "\n\n".join([f"# {title}", introduction, *parts]) + "\n"


def without_engine() -> types.ModuleType:
    """Return a module with the names of the engine's stub, so that the package can be imported without the engine."""
    native = types.ModuleType("bucketq._native")
    generic = classmethod(lambda cls, _: cls)
    for node in ast.parse((ROOT / "python/bucketq/_native.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef):
            setattr(native, node.name, type(node.name, (), {"__slots__": (), "__class_getitem__": generic}))
        elif isinstance(node, ast.FunctionDef):
            setattr(native, node.name, lambda *_: [])
    return native


def commands() -> str:
    """Return the page of the commands, from their help texts."""
    sys.path.insert(0, str(ROOT / "python"))
    sys.modules.setdefault("bucketq._native", without_engine())
    import typer

    app = import_module("bucketq.cli._app")
    for name in app.COMMANDS:
        import_module(f"bucketq.cli.{name}")
    found = typer.main.get_command(app.app).commands
    panels: dict[str, list[str]] = {}
    for name, command in found.items():
        panels.setdefault(plain(command.rich_help_panel), []).append(described(name, command))
    text = [f"## {panel}\n\n" + "\n\n".join(all) for panel, all in panels.items()]
    head = "# Every command\n\nThese are the help texts of `bucketq`. [The command line](../cli.md) is the overview."
    return "\n\n".join([head, *text]) + "\n"


def plain(text: object) -> str:
    """Return a help text without rich's markup, for Markdown."""
    text = re.sub(r"(?<!\\)\[/?[a-z ]*\]", "", str(text or "")).replace("\\[", "[")
    return html.escape(text.replace("``", "`"), quote=False)


def described(name: str, command: object) -> str:
    """Return a command with its arguments and options."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([f"bucketq {name}", *(spelled(one) for one in arguments), "[OPTIONS]" if options else ""])
    parts = [f"### {name}", plain(command.help), f"```text\n{usage.rstrip()}\n```"]
    if command.epilog:
        example = command.epilog.removeprefix("Example:").strip().replace("\\[", "[")
        parts += [f"For example:\n\n```sh\n{example}\n```"]
    rows = [f"| `{spelled(one)}` | {cell(one)} |" for one in [*arguments, *options]]
    if rows:
        parts += ["\n".join(["| argument or option | meaning |", "|---|---|", *rows])]
    return "\n\n".join(parts)


def spelled(one: object) -> str:
    """Return an argument or an option as one writes it."""
    if one.param_type_name == "argument":
        word = (one.metavar or one.name).upper()
        return word if one.required else f"[{word}]"
    kinds = "|".join(getattr(one.type, "choices", [])) or one.type.name.upper().split()[0].replace("STR", "TEXT")
    value = "" if one.is_flag or one.count else f" {kinds}"
    return ", ".join(sorted([*one.opts, *one.secondary_opts], key=len)) + value


def cell(one: object) -> str:
    """Return the meaning of an argument or an option."""
    default = "" if one.default in (None, False, "", ()) else f" Default: `{one.default}`."
    return (" ".join(plain(one.help).split()) + default).replace("|", "\\|")
