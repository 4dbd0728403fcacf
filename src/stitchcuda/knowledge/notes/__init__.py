"""The project's own expert notes, one Markdown file each, shipped with the package.

Format (checked by ``tests/knowledge/test_notes.py``):

- The file's name is the note's id: lower case, words joined by underscores, ``.md``. One subject a note.
- It starts with TOML front matter between two lines ``+++``::

      +++
      title = "Coalesced and vectorised access to global memory"
      arch = []                       # empty: holds everywhere; else ["sm_90"], ["sm_80+"], ["hopper"]
      libraries = []                  # lower case: cublas, cublaslt, cudnn, cutlass, cute, cub, cuda_runtime, ptx
      sources = ["CUDA C++ Programming Guide, 'Device Memory Accesses'"]
      +++

- 150 to 600 words of prose outside code, under ``##`` headings: each section is retrieved alone, so it must say by
  itself what it is about. Write the words that someone with the problem would use: profiler metrics
  (``l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum``), rule names, error texts.
- A fact that is not common knowledge names where it comes from, in the text or in ``sources``.
- Code fences say how they are checked. ``cuda compile`` must compile as a file of its own with
  ``nvcc -arch=sm_90a -std=c++17 -c``; options after it: ``arch=sm_100a`` for another architecture,
  ``requires=cublasLt.h`` to be skipped where a header is missing. ``cuda fragment`` is not compiled (a few lines out
  of context). ``python compile`` must parse. Fences of other languages (``text``, ``sh``) are free.
"""
