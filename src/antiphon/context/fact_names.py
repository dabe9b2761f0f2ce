"""The words by which facts are known: endings of files, usual folders, units, names of errors.

Plain data. Invariant: what only one programming language or one operating system knows is told as data, not as rule.
"""

from typing import Final

_FILE_EXTENSIONS: Final = """
adoc asm astro avi bak bash bat bazel bmp bz2 c cc cfg cjs clj cmake cmd conf config cpp cs csproj css csv cts
cu cxx dart db deb diff dll dockerfile docx dts ebnf ejs erl ex exe exs fish flac fs gguf gif go gql gradle
graphql groovy gz h hbs hcl hh hpp hs html http hxx ico inc ini ino ipynb iso jar java jinja jl jpeg jpg js
json json5 jsonc jsonl jsx kt kts less lock log lua m4 markdown md mdx mjs mk ml mm mod mov mp3 mp4 mpg msi
mts nim nix npy ogg onnx otf parquet patch pb pdf perl php pid pl plist pm png po pot pptx prisma proto ps1
psd pth pug py pyc pyd pyi pyx rar rb rego rkt rpm rs rst rtf safetensors sass scala scss sh sln so sol sql
sqlite sqlite3 srt sv svelte svg swift sys tar tcl tex tf tfvars tgz thrift tiff toml ts tsv tsx ttf txt v vb
vhd vhdl vim vue war wasm wat wav webm webp whl woff woff2 xls xlsx xml xsd xsl xz yaml yml zig zip zsh zst
"""

_FILE_NAMES: Final = """
.bashrc .dockerignore .editorconfig .env .eslintrc .flake8 .gitattributes .gitignore .gitmodules .npmrc .nvmrc
.prettierrc .profile .pylintrc .python-version .zshrc AUTHORS BUILD Brewfile CHANGELOG CODEOWNERS CONTRIBUTING
Cargo.lock Dockerfile Gemfile Jenkinsfile Justfile LICENSE Makefile NOTICE Pipfile Procfile README Rakefile
Vagrantfile WORKSPACE go.sum justfile
"""

_FOLDER_NAMES: Final = """
.. . .github .venv .vscode api app apps assets backend bench benchmarks bin bugfix build cmd chore client
components config configs core crates data deploy dist doc docs etc examples experimental feat feature
features fix fixtures frontend home hotfix include infra internal lib libs main migrations modules
node_modules opt origin packages pages pkg plugins public refactor release releases resources routes scripts
server services site-packages spec specs src static target templates test tests tmp tools upstream usr utils
var vendor web
"""

_NO_CODE_PREFIXES: Final = """
AES AMD ARM ASCII BASE BLAKE BM CP CRC CUDA DDR DSA ECMA FP GPT GTX HMAC HTTP IEEE INT IP ISO LATIN MD MPEG
PBKDF PEP RFC RSA RTX SHA SSE TLS UINT UTF WIN X
"""

_ERRNO_NAMES: Final = """
E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF EBUSY ECANCELED ECHILD ECONNABORTED
ECONNREFUSED ECONNRESET EDEADLK EDESTADDRREQ EDOM EDQUOT EEXIST EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EILSEQ
EINPROGRESS EINTR EINVAL EIO EISCONN EISDIR ELOOP EMFILE EMLINK EMSGSIZE ENAMETOOLONG ENETDOWN ENETRESET
ENETUNREACH ENFILE ENOBUFS ENODEV ENOENT ENOEXEC ENOLCK ENOMEM ENOPROTOOPT ENOSPC ENOSYS ENOTCONN ENOTDIR
ENOTEMPTY ENOTFOUND ENOTSOCK ENOTSUP ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM EPIPE EPROTO EPROTONOSUPPORT
EPROTOTYPE ERANGE ERESOLVE EROFS ESHUTDOWN ESPIPE ESRCH ESTALE ETIMEDOUT ETXTBSY EUSAGE EWOULDBLOCK EXDEV
"""

_UNITS: Final = """
ns µs μs us ms msec s sec secs second seconds min mins minute minutes h hr hrs hour hours day days week weeks
B bytes? kB KB MB GB TB PB KiB MiB GiB TiB bits? kbit Mbit Gbit kbps Mbps Gbps kB/s KB/s MB/s GB/s KiB/s MiB/s
GiB/s Mbit/s Gbit/s % percent ‰ px pt em rem vw vh dpi tokens? tok/s tokens/s rps qps req/s requests/s ops/s
iterations? Hz kHz MHz GHz fps V mV kV W mW kW mA Ah mAh °C °F nm mm cm m km kg mg g dB cores? threads?
workers? rows? lines? requests? retries retry attempts? connections? tests? passed failed errors? warnings?
"""

#: Endings by which a name without a folder is a file; those that are attributes in code as often are left out.
FILE_EXTENSIONS: Final = frozenset(_FILE_EXTENSIONS.split())
#: Files that are known by their whole name.
FILE_NAMES: Final = frozenset(_FILE_NAMES.split())
#: Where the first of only two parts is one of these, a slash joins a path and not two words.
FOLDER_NAMES: Final = frozenset(_FOLDER_NAMES.split())
#: Of codes and keys, beginnings that name a standard or a product: `SHA256`, `UTF-8`, `RFC-9110`.
NO_CODE_PREFIXES: Final = frozenset(_NO_CODE_PREFIXES.split())
#: What gives access is no fact to be told again.
SECRET_PREFIXES: Final = (
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xapp-",
    "hf_",
    "npm_",
    "pypi-",
    "dop_v1_",
    "whsec_",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
)
#: Names of system errors, the same on every system that we run on.
ERRNO_NAMES: Final = frozenset(_ERRNO_NAMES.split())
#: Units that a number may have behind a space; as a pattern.
UNITS: Final = "|".join(sorted(_UNITS.split(), key=lambda unit: (-len(unit), unit)))
#: Units of one letter that are words or names behind a space.
UNITS_ATTACHED: Final = "[dwKMGTkx]i?"
