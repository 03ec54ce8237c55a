#!/usr/bin/env python3
"""Prints numbers about the structure of the library: the size of `Run`, imports against the layers, cycles, code lines.

    python3 scripts/structure.py [--json] [--list] [--check]

`--list` also prints what was counted. Tests, comments, the contents of strings and what is only compiled for documentation are
not read. The rules:

- `Run` and its parts: `Run`, and each struct that a field of a counted struct names (directly, or as an argument of
  `Option`, `Vec` and the like; not behind `&`, `Arc`, `fn` or `dyn`), if it is declared below one of the files and folders in
  STATE, and not below one in NOT_STATE, wherever these are. Each struct is counted once.
- Functions of `Run`: the functions in its inherent impl blocks, and all others that take `&Run` or `&mut Run`, more than three
  of the types of its fields, or a struct of more than three of these, by reference.
- Fields of `Run` that can be reached: those with a visibility.
- The loop: the files in LOOP. Calls that a `fit` passes through: the pairs of a file and of a function in another file that it
  calls, in the functions that can be reached from those of LOOP. A call is `path::name(…)`, or `.name(…)` if one file alone
  defines a function of that name (itself or by the macros of `Run`), and neither the standard library nor a tensor does (FOREIGN).
- Exceptions: the items that are private to the crate and that files below BUILT_IN name by a path, or call on `cx`, unless they
  are below BUILT_IN too. `--check` compares them with EXCEPTIONS.
- Places that ask for a world: the patterns in WORLD.
- Code lines: lines with code, in all packages that a program depends on.
- An import is a pair of files, one of which uses an item of the other in a path that starts with `crate`, `self` or `super`.
  An item that is re-exported counts as one of the file that defines it, and a re-export is not an import. Files that import
  each other, directly or through others, are a cycle.
- An import goes up if the table in ARCHITECTURE.md lists the item's door (its file or folder in `trainer/src`) in a row
  above that of the file. `lib.rs` has no door: an item that it defines counts as below all others.
"""

import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "trainer" / "src"
PACKAGES = ["trainer/src", "trainer-macros/src", *sorted(f"{path.parent.relative_to(ROOT)}/src" for path in (ROOT / "trainer").glob("*/Cargo.toml"))]
LOOP = [f"training/{name}.rs" for name in ("fit", "pass", "step", "train_step", "decide", "agreement", "out_of_step")]
BUILT_IN = ["hooks", "loggers"]
# The check-up records operators, which only C++ can do, and `TapeFile` writes what the tape's layer
# has recorded.
EXCEPTIONS = {
    ("Flow", "libtorch/graph.rs"),
    ("start", "libtorch/graph.rs"),
    ("requested", "training/tape/settings.rs"),
    ("tape", "training/tape/entries.rs"),
}
STATE = {"run", "progress", "log", "record", "settings"}
NOT_STATE = {"cancel", "context", "dispatch", "history", "profile", "recorder", "run_folder", "summary"}
WORLD = r"world(?:\(\))?\s*\.is_(?:some|none)\(\)|Some\((?:ref )?world\)\s*=|match [^{;]*\bworld\b(?:\(\))?\s*\{"
FOREIGN = set(
    """
    abs add all and and_then any append as_bytes as_deref as_deref_mut as_mut as_mut_slice as_ref as_slice as_str binary_search
    binary_search_by binary_search_by_key borrow borrow_mut bytes capacity ceil chain char_indices chars chunk_by chunks
    chunks_exact chunks_exact_mut clamp clear clone clone_from cloned cmp collect components concat contains contains_key copied
    copy_from_slice count cycle dedup dedup_by_key default deref difference display div_ceil drain ends_with entry enumerate eq
    err exists expect expect_err extend extend_from_slice extension fetch_add file_name fill filter filter_map find find_map first
    first_mut flat_map flatten floor flush fold for_each from fuse get get_mut get_or_insert get_or_insert_with hash insert
    inspect intersection into into_boxed_slice into_inner into_iter into_keys into_values is_char_boundary is_dir is_empty
    is_err is_err_and is_file is_finite is_infinite is_multiple_of is_nan is_none is_none_or is_ok is_ok_and is_some is_some_and
    iter iter_mut join keys last last_mut len lines load lock make_ascii_lowercase map map_err map_or map_or_else map_while
    matches max max_by max_by_key min min_by min_by_key mul_add ne next next_back nth ok ok_or ok_or_else or or_else or_insert
    or_insert_with parent parse partial_cmp partition peek peekable pop pop_back pop_first pop_front pop_last position powf powi
    product push push_back push_front push_str range rchunks read reduce remove repeat replace replacen reserve resize retain
    rev reverse rfind round rposition rsplit rsplit_once rsplitn saturating_add saturating_mul saturating_sub scan send set
    skip skip_while sort sort_by sort_by_key sort_unstable split split_at split_first split_last split_off split_once
    split_terminator split_whitespace splitn sqrt starts_with step_by store strip_prefix strip_suffix sub sum swap swap_remove
    take take_while then then_some to_bits to_lowercase to_owned to_string to_uppercase to_vec total_cmp transpose trim
    trim_end trim_end_matches trim_matches trim_start trim_start_matches truncate try_fold try_for_each try_from try_into
    union unwrap unwrap_err unwrap_or unwrap_or_default unwrap_or_else unzip update values values_mut windows with
    with_borrow with_borrow_mut wrapping_add wrapping_mul write write_str xor zip
    backward copy_ cuda data defined device detach flatten grad kind mean narrow numel requires_grad shallow_clone size
    to_device to_kind view zero_grad
    """.split()
)
IS_TEST = re.compile(r"(^|/)tests(\.rs|/)")


def strip(text):
    """Returns the code of a file: comments and the contents of strings become blanks, and newlines stay."""
    token = re.compile(
        r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.[^']*|[^'\\\n])'", re.DOTALL
    )

    def blank(found):
        text = found.group()
        lines = re.sub(r"[^\n]", " ", text)
        return lines if text.startswith("/") or len(text) < 2 else '"' + lines[2:] + '"'

    return token.sub(blank, text)


def end_of_block(code, start):
    """Returns the position behind the block, or behind the item that ends in a semicolon before any block begins."""
    depth = 0
    for position in range(start, len(code)):
        if code[position] in "{[(":
            depth += 1
        elif code[position] in "}])":
            depth -= 1
            if depth == 0 and code[position] == "}":
                return position + 1
        elif code[position] == ";" and depth == 0:
            return position + 1
    return len(code)


def without_tests(code):
    """Removes the items that are only compiled for tests or documentation."""
    while found := re.search(r"#\[cfg\((?:test|doc)\)\]\s*", code):
        code = code[: found.start()] + code[end_of_block(code, found.end()) :]
    return code


def sources(folder):
    """Returns the code of each file that is not a test, by its path below the folder."""
    paths = sorted(path for path in folder.rglob("*.rs"))
    names = [(path, path.relative_to(folder).as_posix()) for path in paths]
    return {name: without_tests(strip(path.read_text())) for path, name in names if not IS_TEST.search(name)}


def split(text):
    """Splits at the commas that are not within brackets."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "{[(<") - (character in "}])>")
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [part.strip() for part in [*parts, part] if part.strip()]


def leaves(tree):
    """Yields each path of a `use` tree, and the name that it gets."""
    tree = tree.strip()
    found = re.match(r"((?:\w+\s*::\s*)*)\{(.*)\}$", tree, re.DOTALL)
    if found:
        head = re.findall(r"\w+", found.group(1))
        for part in split(found.group(2)):
            for path, name in leaves(part):
                yield (head, head[-1]) if path == ["self"] else (head + path, name)
        return
    path, _, name = tree.partition(" as ")
    path = re.findall(r"\w+|\*", path)
    yield path, name.strip() or path[-1]


class Modules:
    """The modules of the library, and which file defines what a path names."""

    def __init__(self, files):
        self.files, self.file_of, self.names = files, {(): "lib.rs"}, {}
        for name in files:
            if name != "lib.rs":
                self.file_of[tuple(re.sub(r"(/mod)?\.rs$", "", name).split("/"))] = name
        self.module_of = {name: module for module, name in self.file_of.items()}
        self.uses = {name: self.read_uses(name) for name in files}
        for name, uses in self.uses.items():
            self.names[name] = [(path, alias) for path, alias, _ in uses]

    def read_uses(self, name):
        """Returns the `use` declarations of a file: the path from the root, the name, and whether it is a re-export."""
        code, uses = self.files[name], []
        for found in re.finditer(r"^([ \t]*)(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", code, re.MULTILINE):
            inner = self.inline_depth(code, found.start())
            if found.group(3).startswith("::"):
                continue  # another crate
            for path, alias in leaves(found.group(3)):
                if path := self.absolute(name, path, inner):
                    uses.append((path, alias, bool(found.group(2))))
        return uses

    @staticmethod
    def inline_depth(code, position):
        """Returns how many inline modules surround a position."""
        begins = [found.start() for found in re.finditer(r"\bmod \w+ \{", code[:position])]
        return sum(end_of_block(code, begin) > position for begin in begins)

    def absolute(self, name, path, inner=0):
        """Returns a path from the root of the crate; None for the path of another crate."""
        module = list(self.module_of[name])
        if path[0] in ("crate", "trainer"):
            return path[1:] or None
        if path[0] not in ("self", "super"):
            return module + path if tuple([*module, path[0]]) in self.file_of else None
        while path and path[0] in ("self", "super"):
            if path[0] == "super":
                if inner:
                    inner -= 1
                elif module:
                    module.pop()
            path = path[1:]
        return module + path or None

    def resolve(self, path, seen=()):
        """Returns the file that defines what a path names."""
        length = max(length for length in range(len(path) + 1) if tuple(path[:length]) in self.file_of)
        name, rest = self.file_of[tuple(path[:length])], path[length:]
        if not rest or rest[0] == "*" or (name, rest[0]) in seen:
            return name
        if re.search(rf"\b(?:fn|struct|enum|trait|type|const|static|union|mod|macro_rules!)\s+(?:mut\s+)?{rest[0]}\b", self.files[name]):
            return name
        globs = []
        for target, alias in self.names[name]:
            if alias == rest[0]:
                return self.resolve(target + rest[1:], (*seen, (name, rest[0])))
            if alias == "*":
                globs.append(target[:-1])
        for target in globs:
            found = self.resolve(target + rest, (*seen, (name, rest[0])))
            if re.search(rf"\b{rest[0]}\b", self.files[found]):
                return found
        return name

    def imports(self):
        """Returns the pairs of files, the first of which uses an item of the second."""
        pairs = set()
        for name, code in self.files.items():
            if name == "lib.rs":
                continue
            paths = [path for path, _, is_export in self.uses[name] if not is_export]
            body = re.sub(r"\buse\s+[^;]+;", lambda found: " " * len(found.group()), code)
            for found in re.finditer(r"(?<![\w$:])(?:crate|super|self)(?:\s*::\s*\w+)+", body):
                path = re.findall(r"\w+", found.group())
                if path := self.absolute(name, path, self.inline_depth(body, found.start())):
                    paths.append(path)
            for found in re.finditer(r"(?<![\w:])([a-z]\w*)\s*::\s*\w+", body):
                if path := self.absolute(name, re.findall(r"\w+", found.group())):
                    paths.append(path)
            pairs |= {(name, self.resolve(path)) for path in paths}
        return {(source, target) for source, target in pairs if source != target}


def door(name):
    """Returns the entry of `trainer/src` that holds a file."""
    return name.split("/")[0].removesuffix(".rs")


def layers():
    """Returns the number of the row in ARCHITECTURE.md that lists a door, counted from the top."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = re.search(r"### `trainer/src`\n(.*?)\n###? ", text, re.DOTALL).group(1)
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|") and "`" in line.split("|")[1]]
    found = {}
    for number, row in enumerate(rows):
        for name in re.findall(r"`([^`]+)`", row):
            found[door(name.removesuffix("/"))] = number
    return found


def going_up(imports):
    """Returns the imports that go up, and the doors that the table lacks."""
    rows = layers()
    doors = {door(name) for pair in imports for name in pair} - {"lib"}
    missing = sorted(doors - rows.keys())
    pairs = [(source, target) for source, target in imports if target != "lib.rs" and {door(source), door(target)} <= rows.keys()]
    return sorted((source, target) for source, target in pairs if rows[door(target)] < rows[door(source)]), missing


def cycles(imports):
    """Returns the groups of files that import each other, the largest first (Tarjan's algorithm)."""
    targets = collections.defaultdict(list)
    for source, target in sorted(imports):
        targets[source].append(target)
    index, low, stack, groups = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in targets[name]:
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            groups.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in list(targets):
        if name not in index:
            visit(name)
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def structs(files):
    """Returns the fields of each struct in the files that hold the state of a run, as names and types."""
    found = {}
    for name, code in files.items():
        place = set(name.removesuffix(".rs").split("/"))
        if not place & STATE or place & NOT_STATE:
            continue
        for struct in re.finditer(r"\bstruct (\w+)[^;{(]*([{(])", code):
            begin = struct.end() - 1
            body = code[struct.end() : closing(code, begin)]
            body = re.sub(r"#\[[^\]]*\]", "", body)
            fields = []
            for number, field in enumerate(split_fields(body)):
                field = re.sub(r"^pub(\([^)]*\))?\s+", "", field)
                named = struct.group(2) == "{"
                key, _, kind = field.partition(":") if named else (str(number), "", field)
                fields.append((key.strip(), kind.strip()))
            found.setdefault(struct.group(1), (name, fields))
    return found


def closing(code, begin):
    """Returns the position of the bracket that closes the one at `begin`."""
    depth = 0
    for position in range(begin, len(code)):
        depth += (code[position] in "{(") - (code[position] in "})")
        if depth == 0:
            return position
    return len(code)


def split_fields(body):
    """Splits the fields of a struct, in whose types `->` is no bracket."""
    return [field.replace("=>", "->") for field in split(body.replace("->", "=")) if field.strip()]


def run_and_parts(files):
    """Returns the structs that make up `Run`, each with its fields."""
    known, queue, parts = structs(files), ["Run"], {}
    while queue:
        name = queue.pop(0)
        if name in parts or name not in known:
            continue
        parts[name] = known[name][1]
        for _, kind in known[name][1]:
            owned = re.sub(r"&[^,>)]*|\bArc<[^<>]*(<[^<>]*>)?[^<>]*>|\bfn\s*\(.*|\bdyn [^,>]*", "", kind)
            queue += re.findall(r"\b[A-Z]\w*\b", owned)
    return parts


def methods_of_run(files):
    """Returns the methods of `Run` by file."""
    found = collections.defaultdict(list)
    for name, code in files.items():
        for block in re.finditer(r"^impl(?:<[^>{]*>)? (?:\w+::)*Run\b[^{;]*\{", code, re.MULTILINE):
            if " for " not in block.group():
                body = code[block.end() : closing(code, block.end() - 1)]
                found[name] += re.findall(r"^    (?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?fn (\w+)", body, re.MULTILINE)
    return found


def split_arguments(code, begin):
    """Returns the types of the arguments of a function whose bracket opens at `begin`."""
    arguments = split_fields(code[begin + 1 : closing(code, begin)])
    return [argument.partition(":")[2].strip() if ":" in argument else argument for argument in arguments]


def functions(code):
    """Yields each function with a body: its name, the types of its arguments, and the body."""
    for found in re.finditer(r"\bfn (\w+)", code):
        begin = found.end()
        if code[begin : begin + 1] == "<":
            depth = 0
            for begin in range(begin, len(code)):
                depth += (code[begin] == "<") - (code[begin] == ">" and code[begin - 1] != "-")
                if depth == 0:
                    break
        begin = code.find("(", begin)
        end = closing(code, begin)
        body = re.match(r"[^;{]*\{", code[end:])
        if body:
            start = end + body.end() - 1
            yield found.group(1), split_arguments(code, begin), code[start : closing(code, start) + 1]


def functions_of_run(files):
    """Returns the functions that take a run, or more than three of its parts, by file."""
    known = structs(files)
    owned = {re.sub(r"^(?:Option|RefCell|Box|Vec)<(?:Option<|Box<)*|>+$", "", kind).split("::")[-1] for _, kind in known["Run"][1]}
    owned -= {"bool", "u32", "Vec", "String"}

    def borrowed(text):
        return re.findall(r"&(?:'\w+ )?(?:mut )?(?:\w+::)*(\w+)", text)

    large = {"Run"}
    for code in files.values():
        for struct in re.finditer(r"\bstruct (\w+)[^;{(]*\{", code):
            if len(owned & set(borrowed(code[struct.end() : closing(code, struct.end() - 1)]))) > 3:
                large.add(struct.group(1))
    found = collections.defaultdict(list)
    for name, code in files.items():
        for function, arguments, _ in functions(code):
            taken = {kind for argument in arguments for kind in borrowed(argument)}
            by_value = {kind for argument in arguments for kind in re.findall(r"^(?:\w+::)*(\w+)", argument)} - {"Run"}
            if (taken | by_value) & large or len(taken & owned) > 3:
                found[name].append(function)
    for name, methods in methods_of_run(files).items():
        found[name] += [method for method in methods if method not in found[name]]
    return found


def fields_in_reach(files):
    """Returns the fields of `Run` that have a visibility."""
    code = next(code for code in files.values() if re.search(r"\bstruct Run \{", code))
    begin = re.search(r"\bstruct Run \{", code).end() - 1
    body = re.sub(r"#\[[^\]]*\]", "", code[begin : closing(code, begin)])
    return re.findall(r"\bpub(?:\([^)]*\))?\s+(\w+)\s*:", body)


def reached(imports, start):
    """Returns the files that a file imports, directly or through others."""
    targets = collections.defaultdict(set)
    for source, target in imports:
        targets[source].add(target)
    found, queue = set(), [start]
    while queue:
        for target in targets[queue.pop()] - found - {"lib.rs", start}:
            found.add(target)
            queue.append(target)
    return found


def calls_of_a_fit(files, modules):
    """Returns the calls from file to file in the functions that the loop reaches."""
    bodies, owners = {}, collections.defaultdict(set)
    for name, code in files.items():
        for function, _, body in functions(code):
            bodies[name, function] = bodies.get((name, function), "") + body
            owners[function].add(name)
        for block in re.finditer(r"^(?:lend|shared|value)! \{(.*?)^\}", code, re.MULTILINE | re.DOTALL):
            for names in re.findall(r"^    (\w+(?:, \w+)?):", block.group(1), re.MULTILINE):
                for function in names.split(", "):
                    owners[function].add(name)
    queue = [key for key in bodies if key[0] in LOOP]
    seen, calls = set(queue), set()
    while queue:
        name, function = queue.pop()
        targets = set()
        for found in re.finditer(r"(\.)?\b((?:\w+\s*::\s*)*)(\w+)(?:::<[^()]*?>)?\(", bodies[name, function]):
            if found.group(1):
                if len(owners[found.group(3)]) == 1 and found.group(3) not in FOREIGN:
                    targets.add((*owners[found.group(3)], found.group(3)))
                continue
            path = re.findall(r"\w+", found.group(2)) + [found.group(3)]
            used = {alias: use for use, alias, _ in modules.uses[name]}
            if path[0] in used:
                path = list(used[path[0]]) + path[1:]
            elif path[0] in ("crate", "self", "super") or len(path) > 1:
                path = modules.absolute(name, path) or []
            if path:
                targets.add((modules.resolve(path) if len(path) > 1 else name, path[-1]))
        for target in targets & bodies.keys():
            if target[0] != name:
                calls.add((name, *target))
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return calls


def exceptions(files, modules):
    """Returns what the built-in hooks use that is private to the crate."""
    private = re.compile(r"\bpub\((?:crate|super|in [^)]*)\) (?:const )?(?:unsafe )?(?:fn|struct|enum|trait|type|const|static) (\w+)")
    hidden = {name: set(private.findall(code)) for name, code in files.items()}
    # Functions of a type, which only paths through the type name.
    of_types = collections.defaultdict(set)
    for name, code in files.items():
        for block in re.finditer(r"^impl(?:<[^{]*?>)? (?:[\w:]+(?:<[^{]*?>)? for )?(?:\w+::)*(\w+)[^{;]*\{", code, re.MULTILINE):
            body = code[block.end() : closing(code, block.end() - 1)]
            of_types[name] |= {(block.group(1), function) for function in private.findall(body)}
    of_cx = {}
    for name, code in files.items():
        for block in re.finditer(r"^impl<[^>{]*> (?:\w+::)*Cx<[^{;]*\{", code, re.MULTILINE):
            body = code[block.end() : closing(code, block.end() - 1)]
            of_cx |= {method: name for method in private.findall(body)}
    found = set()
    for name, code in files.items():
        if door(name) not in BUILT_IN:
            continue
        used = {alias: path for path, alias, _ in modules.uses[name]}
        paths = list(used.values())
        for text in re.findall(r"(?<![\w:])(?:\w+::)+\w+", code):
            path = text.split("::")
            path = [*used[path[0]], *path[1:]] if path[0] in used else modules.absolute(name, path)
            paths += [path] if path else []
        for path in paths:
            target = modules.resolve(path)
            if door(target) not in BUILT_IN:
                functions = {function for _, function in of_types[target]}
                found |= {(item, target) for item in path if item in hidden[target] - functions}
                found |= {(item, target) for pair in zip(path, path[1:]) if pair in of_types[target] for item in pair[1:]}
        found |= {(item, of_cx[item]) for item in re.findall(r"\bcx\s*\.(\w+)(?:::<[^()]*?>)?\(", code) if item in of_cx}
    return sorted(found)


def thread_locals(files):
    """Returns the thread-local variables by file."""
    found = collections.defaultdict(list)
    for name, code in files.items():
        for block in re.finditer(r"thread_local!\s*([{(])", code):
            body = code[block.end() : closing(code, block.end() - 1)]
            found[name] += re.findall(r"\bstatic (?:mut )?(\w+)", body)
    return found


def matches(files, pattern):
    """Returns the number of matches by file."""
    found = {name: len(re.findall(pattern, code)) for name, code in files.items()}
    return {name: count for name, count in found.items() if count}


def measure():
    """Returns the numbers, and what was counted."""
    files = sources(SOURCE)
    modules = Modules(files)
    imports = modules.imports()
    parts, methods, statics = run_and_parts(files), methods_of_run(files), thread_locals(files)
    world = matches(files, WORLD)
    up, missing = going_up(imports)
    circles = cycles(imports)
    of_run, calls, private = functions_of_run(files), calls_of_a_fit(files, modules), exceptions(files, modules)
    reach = reached(imports, "hook/order.rs")
    size = {name: sum(bool(line.strip()) for line in files[name].splitlines()) for name in LOOP if name in files}
    lines = {}
    for package in PACKAGES:
        if (ROOT / package).exists():
            code = sources(ROOT / package)
            lines[package] = sum(bool(line.strip()) for text in code.values() for line in text.splitlines())
    doors = sorted(path.name for path in SOURCE.iterdir())
    fields = [(name, *field) for name, fields in parts.items() for field in fields]
    numbers = {
        "fields of Run and its parts": len(fields),
        "structs among Run and its parts": len(parts),
        "booleans among these fields": sum(kind == "bool" for _, _, kind in fields),
        "function pointers among these fields": sum(len(re.findall(r"\bfn\(", kind)) for _, _, kind in fields),
        "fields of Run that can be reached": len(fields_in_reach(files)),
        "functions and methods of Run": sum(map(len, of_run.values())),
        "methods of Run": sum(map(len, methods.values())),
        "files with impl Run": len(methods),
        "calls between files that a fit passes through": len(calls),
        "code lines of the loop": sum(size.values()),
        "private items that built-in hooks use": len(private),
        "files that hook/order.rs reaches": len(reach),
        "thread-local variables": sum(map(len, statics.values())),
        "places that ask for a world": sum(world.values()),
        "code lines": sum(lines.values()),
        "entries in trainer/src": len(doors),
        "imports that go up": len(up),
        "pairs of doors whose imports go up": len({(door(source), door(target)) for source, target in up}),
        "doors that ARCHITECTURE.md lacks": len(missing),
        "files in the largest cycle of imports": len(circles[0]) if circles else 0,
        "cycles of imports": len(circles),
    }
    counted = {
        "structs": {name: len(fields) for name, fields in parts.items()},
        "functions and methods of Run": {name: len(found) for name, found in sorted(of_run.items())},
        "methods of Run": {name: len(found) for name, found in methods.items()},
        "code lines of the loop": size,
        "private items that built-in hooks use": private,
        "files that hook/order.rs reaches": sorted(reach),
        "thread-local variables": statics,
        "places that ask for a world": world,
        "code lines": lines,
        "imports that go up": [f"{source} -> {target}" for source, target in up],
        "doors that ARCHITECTURE.md lacks": missing,
        "cycles of imports": circles,
    }
    return numbers, counted


def main():
    numbers, counted = measure()
    if "--check" in sys.argv:
        others = [f"{item} of {name}" for item, name in counted["private items that built-in hooks use"] if (item, name) not in EXCEPTIONS]
        sys.exit(f"built-in hooks use private items, make these public or do without: {', '.join(others)}" if others else 0)
    if "--json" in sys.argv:
        print(json.dumps({"numbers": numbers, "counted": counted} if "--list" in sys.argv else numbers, indent=2))
        return
    for name, number in numbers.items():
        print(f"{number:>7,}  {name}")
    if "--list" in sys.argv:
        for name, found in counted.items():
            print(f"\n{name}:")
            for line in found.items() if isinstance(found, dict) else found:
                print("  ", *line if isinstance(line, tuple) else [line])


if __name__ == "__main__":
    main()
