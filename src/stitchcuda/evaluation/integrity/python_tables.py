"""Which dotted names of Python's and torch's libraries each static rule is about. Data only."""

from __future__ import annotations

from stitchcuda.evaluation.integrity.words import by_name, words

REFERENCES: dict[str, str] = by_name(
    walks_frames="""
    sys._getframe sys._current_frames sys._current_exceptions sys.settrace sys.setprofile threading.settrace
    threading.setprofile threading.settrace_all_threads inspect.currentframe inspect.stack inspect.trace
    inspect.getouterframes inspect.getinnerframes traceback.walk_stack traceback.walk_tb gc.get_objects
    gc.get_referrers gc.get_referents
    """,
    ends_process="""
    os._exit os.abort os.kill os.killpg signal.pthread_kill signal.raise_signal signal.pidfd_send_signal
    """,
    enters_harness="""
    __main__ stitchcuda stitchcuda_runner
    """,
    dynamic_code="""
    builtins.exec builtins.eval runpy.run_path runpy.run_module code.InteractiveInterpreter marshal.loads
    types.CodeType types.FunctionType pickle.loads cloudpickle.loads dill.loads
    """,
    inspects_process="""
    sys.modules.values sys.modules.items sys.modules.copy
    sys.argv sys.orig_argv os.getppid os.environb psutil inspect.getsource inspect.getsourcefile resource.getrusage
    """,
    writes_files="""
    torch.save numpy.save numpy.savez numpy.memmap pickle.dump shelve.open sqlite3.connect joblib.dump mmap.mmap
    """,
    reads_files="""
    torch.load numpy.load numpy.fromfile torch.from_file pickle.load
    """,
    shares_memory="""
    multiprocessing.shared_memory torch.multiprocessing.reductions os.memfd_create posix_ipc sysv_ipc
    """,
    background_work="""
    threading.Thread threading.Timer _thread.start_new_thread multiprocessing.Process multiprocessing.Pool
    torch.multiprocessing.Process torch.multiprocessing.spawn concurrent.futures.ThreadPoolExecutor
    concurrent.futures.ProcessPoolExecutor multiprocessing.pool.ThreadPool asyncio.run asyncio.create_task os.fork
    os.forkpty os.posix_spawn os.system os.popen os.execv os.execve os.execvp torch.jit.fork
    torch.jit._fork torch.futures.Future subprocess.Popen subprocess.run subprocess.call subprocess.check_call
    subprocess.check_output
    """,
    runs_later="""
    atexit.register atexit._run_exitfuncs weakref.finalize signal.signal signal.setitimer signal.alarm
    threading._register_atexit sys.addaudithook sys.unraisablehook
    """,
    intercepts_operators="""
    torch.overrides.TorchFunctionMode torch.utils._python_dispatch.TorchDispatchMode
    torch._C._push_on_torch_dispatch_stack torch._C._push_on_torch_function_stack
    torch.utils._python_dispatch._push_mode
    """,
    uses_network="""
    urllib.request http.client ftplib requests httpx aiohttp socket.create_connection socket.create_server
    torch.hub huggingface_hub wget telnetlib smtplib xmlrpc.client
    """,
    compiler_wrap="""
    torch.compile torch.jit.script torch.jit.trace torch.jit.freeze torch.jit.optimize_for_inference
    torch._dynamo.optimize torch._inductor.compile torch._inductor.compile_fx.compile_fx
    torch._inductor.aoti_compile_and_package torch.fx.experimental.optimization.fuse torch_tensorrt.compile
    functorch.compile.memory_efficient_fusion functorch.compile.aot_function functorch.compile.aot_module
    torch._functorch.aot_autograd.aot_function torch._functorch.aot_autograd.aot_module
    torch.fx.experimental.optimization.optimize_for_inference torch.nn.Module.compile
    """,
    fixed_seed="""
    torch.manual_seed torch.seed torch.random.manual_seed torch.cuda.manual_seed torch.cuda.manual_seed_all
    random.seed numpy.random.seed numpy.random.default_rng torch.random.fork_rng torch.set_rng_state
    """,
    precision_switch="""
    torch.autocast torch.cuda.amp.autocast torch.amp.autocast torch.set_default_dtype
    """,
    raw_memory="""
    ctypes.string_at ctypes.memmove ctypes.memset ctypes.from_address ctypes.cast ctypes.pythonapi ctypes.py_object
    """,
    tensor_subclass="""
    torch.Tensor._make_subclass torch.Tensor._make_wrapper_subclass torch.Tensor.as_subclass

    torch.nn.parameter.UninitializedParameter
    """,
    changes_environment="""
    torch.set_num_threads torch.set_num_interop_threads sys.setswitchinterval os.sched_setaffinity os.nice
    os.setpriority gc.freeze torch.cuda.set_per_process_memory_fraction
    torch.cuda.memory.set_per_process_memory_fraction torch.use_deterministic_algorithms
    torch.cuda.memory.change_current_allocator torch.cuda.memory.CUDAPluggableAllocator torch.set_flush_denormal
    """,
    reads_clock="""
    time.time time.time_ns time.perf_counter time.perf_counter_ns time.monotonic time.monotonic_ns time.process_time
    time.thread_time time.clock_gettime time.sleep
    """,
    replaces_measuring="""
    torch.autograd._profiler_enabled torch._C._autograd._profiler_enabled torch.autograd._profiler_type
    torch._C._autograd._profiler_type torch.autograd.profiler._is_profiler_enabled
    torch.autograd.profiler._run_on_profiler_start bindings.PROFILE
    """,
    profiles_itself="""
    torch.profiler.profile torch.autograd.profiler.profile torch.cuda.profiler.start torch.cuda.profiler.stop
    torch.cuda.cudart().cudaProfilerStop torch.autograd._disable_profiler
    """,
)
"""A name that is used, called or imported, and the rule that it fires."""

FOREIGN = words(
    """
    apex bitsandbytes causal_conv1d cuda_tile cupy cupyx cutlass cutlass_library deep_gemm fbgemm_gpu flash_attn
    flash_attn_interface flashinfer intel_extension_for_pytorch jax liger_kernel mamba_ssm natten numba onnxruntime
    openvino sgl_kernel tensorrt tensorrt_llm thunderkittens torch_scatter torch_sparse torch_tensorrt torchao
    transformer_engine vllm xformers
    """
)
"""Packages that bring kernels of their own."""

PATCHED_ROOTS = words(
    """
    __main__ builtins ctypes gc hashlib inspect io math multiprocessing numpy os random select signal socket
    stitchcuda struct subprocess sys threading time torch torchvision triton
    """
)
"""Packages whose attributes a Program has no business to replace."""

SETTINGS_PREFIXES = (
    "torch.backends.",
    "torch._dynamo.config",
    "torch._inductor.config",
    "torch._functorch.config",
    "torch.ops.",
    "torch.classes.",
    "torch.fx.",
    "torch.utils.cpp_extension.",
    "torch._C._jit",
)
"""Attributes of torch that are meant to be set."""

REDIRECTS = words(
    """
    sys.dont_write_bytecode sys.excepthook sys.path sys.stderr sys.stdin sys.stdout
    """
)

TIMER_PREFIXES = (
    "torch.cuda.Event",
    "torch.Event",
    "torch.cuda.synchronize",
    "torch.cuda.current_stream",
    "torch.cuda.streams",
    "torch.cuda.Stream",
    "torch.utils.benchmark",
    "torch.profiler",
    "torch.autograd.profiler",
    "torch.cuda.cudart",
    "torch._C._cuda",
    "torch._C._Cuda",
    "torch.cuda.nvtx",
    "triton.testing",
    "time.",
)
TIMER_METHODS = words(
    """
    do_bench elapsed_time monotonic monotonic_ns perf_counter perf_counter_ns
    """
)

HEAVY = words(
    """
    addbmm addmm baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d convolution einsum gru linear lstm matmul mm multi_head_attention_forward mv rnn_relu rnn_tanh
    scaled_dot_product_attention tensordot
    """
)
"""torch functions whose work is a product, a convolution, attention or a recurrence."""

COMPUTE = HEAVY | words(
    """
    adaptive_avg_pool2d add amax amin avg_pool2d batch_norm clamp cross_entropy cumprod cumsum div dropout elu
    embedding exp gelu group_norm hardswish hardtanh instance_norm layer_norm leaky_relu log log_softmax logsumexp
    max max_pool2d mean min mish mse_loss mul norm normalize pow relu rms_norm rsqrt sigmoid silu softmax softplus
    sqrt std sub sum tanh var
    """
)

HEAVY_MODULES = words(
    """
    Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d GRU GRUCell LSTM LSTMCell Linear
    MultiheadAttention RNN RNNCell Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
    TransformerEncoderLayer
    """
)

KERNEL_LANGUAGES = words(
    """
    triton cuda pycuda tilelang cupy numba cutlass warp taichi helion tvm mojo
    """
)
"""Packages that kernels are written in."""

HIDDEN_RUNNERS = words(
    """
    builtins.compile builtins.eval builtins.exec cloudpickle.loads dill.loads marshal.loads pickle.loads
    types.CodeType
    """
)
"""Functions that run what they are given."""

FRAME_ATTRIBUTES = words(
    """
    ag_frame cr_frame f_back f_builtins f_globals f_locals gi_frame tb_frame tb_next
    """
)
NEST_ATTRIBUTES = words(
    """
    __closure__ __globals__ __subclasses__ cell_contents
    """
)

OPENERS = words(
    """
    os.open os.pipe tempfile.mkstemp os.memfd_create socket.socket os.openpty os.dup
    """
)
"""Functions that give descriptors of the caller's own."""

TENSOR_METHODS = words(
    """
    ? detach cpu cuda clone contiguous data_ptr untyped_storage numpy to view item tolist copy_ __class__ is_contiguous
    element_size numel size stride double float half
    """
)
"""What others call on a tensor that they are given."""

FLAG_ARGUMENTS = frozenset(
    {"extra_cuda_cflags", "extra_cflags", "extra_ldflags", "options", "nvcc_options", "extra_include_paths"}
)
"""Arguments by which a Program that compiles at run time gives flags to its compiler."""
