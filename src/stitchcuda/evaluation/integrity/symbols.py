"""Functions of the system and of CUDA that say something about a program which asks for them. Data only.

Used on source tokens (``static_native``) and on what an object imports (``binary``).
"""

from __future__ import annotations

from stitchcuda.evaluation.integrity.words import by_name, words

IMPORTS: dict[str, str] = by_name(
    controls_process="""
    ptrace process_vm_readv process_vm_writev fork vfork clone clone3 execl execle execlp execv execve execvp
    execvpe fexecve system popen posix_spawn posix_spawnp socket connect bind listen accept sendto sendmsg kill
    tgkill tkill killpg prctl personality unshare setns mount bpf seccomp pidfd_open pidfd_getfd pidfd_send_signal
    kcmp userfaultfd perf_event_open io_uring_setup syscall pthread_kill
    """,
    patches_code="""
    mprotect pkey_mprotect mremap dl_iterate_phdr dladdr1 _dl_find_object
    """,
    writes_descriptors="""
    dup2 dup3
    """,
    ends_process="""
    _exit _Exit quick_exit
    """,
    shares_memory="""
    shm_open shm_unlink shmget shmat mq_open memfd_create cudaIpcGetMemHandle cudaIpcOpenMemHandle
    cudaIpcGetEventHandle cudaIpcOpenEventHandle cuIpcGetMemHandle cuIpcOpenMemHandle_v2 cuIpcOpenMemHandle
    cuMemExportToShareableHandle cuMemImportFromShareableHandle cudaMemPoolExportToShareableHandle
    cudaMemPoolImportFromShareableHandle
    """,
    file_access="""
    open open64 openat creat fopen fopen64 freopen fdopen read pread pread64 write pwrite pwrite64 writev readv
    sendfile splice mmap mmap64 opendir readdir stat fstat lstat access unlink rename mkdir readlink getenv
    secure_getenv fcntl fcntl64 lseek lseek64 ftruncate getcwd getppid gethostname environ __environ
    program_invocation_name _ZNSt14basic_ifstreamIcSt11char_traitsIcEEC1Ev
    _ZNSt13basic_filebufIcSt11char_traitsIcEEC1Ev _ZNSt14basic_ofstreamIcSt11char_traitsIcEEC1Ev
    """,
    runtime_loading="""
    dlopen dlmopen dlsym dlvsym dladdr dlinfo
    """,
    background_work="""
    pthread_create thrd_create _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE
    """,
    runs_later="""
    atexit on_exit signal sigaction timer_create setitimer alarm
    """,
    host_callback="""
    cudaLaunchHostFunc cudaLaunchHostFunc_v2 cudaStreamAddCallback cuLaunchHostFunc cuStreamAddCallback
    """,
    reads_clock="""
    clock_gettime gettimeofday clock times ftime timespec_get omp_get_wtime cudaEventElapsedTime
    cudaEventElapsedTime_v2 cuEventElapsedTime _ZNSt6chrono3_V212system_clock3nowEv
    _ZNSt6chrono3_V212steady_clock3nowEv nanosleep usleep clock_nanosleep sleep
    """,
    changes_environment="""
    setenv putenv unsetenv clearenv cudaDeviceReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset
    cudaSetDeviceFlags sched_setaffinity pthread_setaffinity_np setpriority nice
    omp_set_num_threads mallopt setrlimit prlimit cuCtxDestroy_v2 cuCtxDestroy cuCtxCreate_v2 cuCtxCreate_v4
    cuCtxCreate
    """,
    persisting_l2="""
    cudaCtxResetPersistingL2Cache cuCtxResetPersistingL2Cache cudaStreamSetAttribute cuStreamSetAttribute
    cuCtxSetLimit cudaDeviceSetLimit
    """,
    profiles_itself="""
    cudaProfilerStop cudaProfilerStart cuProfilerStop cuProfilerStart
    """,
)
"""Function to the rule that a call or an import of it fires."""

INTERPOSED = words(
    """
    _exit  aligned_alloc calloc  clock_gettime close cuCtxSynchronize cuEventElapsedTime cuEventRecord
    cuEventSynchronize cuGetProcAddress cuGetProcAddress_v2 cuGraphLaunch cuLaunchKernel cuLaunchKernelEx
    cuMemAlloc_v2 cuMemFree_v2 cuMemcpyDtoH_v2 cuStreamSynchronize cudaDeviceSynchronize cudaEventCreate
    cudaEventCreateWithFlags cudaEventElapsedTime cudaEventElapsedTime_v2 cudaEventQuery cudaEventRecord
    cudaEventRecordWithFlags cudaEventSynchronize cudaFree cudaFreeAsync cudaGetLastError cudaGraphLaunch
    cudaIpcOpenMemHandle cudaLaunchKernel cudaLaunchKernelExC cudaMalloc cudaMallocAsync cudaMemcpy cudaMemcpyAsync
    cudaMemset cudaMemsetAsync cudaPeekAtLastError cudaStreamQuery cudaStreamSynchronize cudaStreamWaitEvent
    cuptiActivityEnable dlclose dlopen dlsym dlvsym   exit fopen fork  free  fwrite
    getpid gettimeofday ioctl malloc memcmp memcpy memmove memset mmap munmap nanosleep open  posix_memalign
    pread  pthread_create pwrite read realloc         write
    """
)
"""Names that no Program may define with C linkage, since other code could come to call them."""

INTERPOSED_PREFIXES = (
    "cublas",
    "cudnn",
    "cupti",
    "nvrtc",
    "Py",
    "_Py",
    "_ZN2at",
    "_ZN3c10",
    "_ZN5torch",
    "omp_",
    "GOMP_",
    "__cuda",
    "pthread_",
    "_dl_",
    "__libc_",
)
"""Beginnings of such names, as an object exports them."""
