"""Compiles device code with NVRTC, request by request: the process that ``nvrtc`` starts, in the jail where that is
possible. A line of JSON in, a line of JSON out. Started by path, so it uses the standard library only.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOG_BYTES = 1 << 18

PCH_SINCE = [12, 8]
PCH_HEAP_BYTES = 1 << 30
"""Of addresses, for precompiled headers: CUDA's own take 300 MB and more, and a smaller heap gives none at all."""


class Library:
    """libnvrtc, as far as it is needed."""

    def __init__(self, path: str) -> None:
        self.api = ctypes.CDLL(path)
        self.api.nvrtcGetErrorString.restype = ctypes.c_char_p
        if hasattr(self.api, "nvrtcSetPCHHeapSize"):
            self.api.nvrtcSetPCHHeapSize(ctypes.c_size_t(PCH_HEAP_BYTES))

    def must(self, result: int, what: str) -> None:
        """RuntimeError unless a call went well."""
        if result:
            raise RuntimeError(f"{what}: {self.api.nvrtcGetErrorString(result).decode()}")

    def version(self) -> list[int]:
        """Of the library: major and minor."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.must(self.api.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        return [major.value, minor.value]

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        """One source to a cubin: its bytes in base64, the compiler's log, and mangled names by name expression."""
        began = time.monotonic()
        headers = list(request["headers"].items())
        contents = (ctypes.c_char_p * max(1, len(headers)))(*(text.encode() for _, text in headers))
        names = (ctypes.c_char_p * max(1, len(headers)))(*(name.encode() for name, _ in headers))
        program = ctypes.c_void_p()
        created = self.api.nvrtcCreateProgram(
            ctypes.byref(program),
            request["source"].encode(),
            request["name"].encode(),
            len(headers),
            contents,
            names,
        )
        self.must(created, "nvrtcCreateProgram")
        try:
            for name in request["kernels"]:
                self.must(self.api.nvrtcAddNameExpression(program, name.encode()), f"the kernel name {name!r}")
            # Earlier versions have no precompiled headers.
            known = [o for o in request["options"] if self.version() >= PCH_SINCE or not o.startswith("-pch")]
            options = [option.encode() for option in known]
            result = self.api.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            answer: dict[str, Any] = {"ok": result == 0, "log": self._text(program, "ProgramLog")}
            if result:
                answer["error"] = self.api.nvrtcGetErrorString(result).decode()
            else:
                answer["cubin"] = base64.b64encode(self._bytes(program, "CUBIN")).decode()
                answer["names"] = {name: self._lowered(program, name) for name in request["kernels"]}
            return answer | {"seconds": time.monotonic() - began}
        finally:
            self.api.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.must(getattr(self.api, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        buffer = ctypes.create_string_buffer(size.value)
        self.must(getattr(self.api, f"nvrtcGet{what}")(program, buffer), what)
        return buffer.raw

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        text = self._bytes(program, what).rstrip(b"\0").decode("utf-8", "replace")[:LOG_BYTES]
        return "\n".join(line for line in text.splitlines() if "precompiled header file" not in line)

    def _lowered(self, program: ctypes.c_void_p, name: str) -> str:
        lowered = ctypes.c_char_p()
        self.must(self.api.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)), f"the kernel {name!r}")
        return (lowered.value or b"").decode()


def main() -> None:
    """Answer requests until the other end closes."""
    out = sys.stdout
    try:
        library = Library(sys.argv[1])
        print(json.dumps({"version": library.version()}), file=out, flush=True)
    except (OSError, RuntimeError, AttributeError) as error:
        print(json.dumps({"error": f"{sys.argv[1]} cannot be used: {error}"}), file=out, flush=True)
        return
    for line in sys.stdin:
        try:
            answer = library.compile(json.loads(line))
        except RuntimeError as error:
            answer = {"ok": False, "log": "", "error": str(error), "seconds": 0.0}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
