# environment.sh - sourced by run.sh at the top of the tree: locates the CUDA libraries and, in a
# bundle of pack.sh, the launcher and everything else.
#
# Sets LD_LIBRARY_PATH, PATH, the variables of Open MPI, and PYTHON: a Python with torch, or empty.
# `plainly COMMAND` (tests/measure.sh) runs a command without the bundle's libraries, because Python
# and NVIDIA's tools bring their own.
export PLAIN_PATH=${PLAIN_PATH-${LD_LIBRARY_PATH:-}} # value before the first script changed it
. tests/measure.sh

for p in "${CUDA_HOME:-/usr/local/cuda}/bin"; do [ ! -d "$p" ] || PATH=$PATH:$p; done

PYTHON=${PYTHON-$(command -v python3 || true)}
[ -z "$PYTHON" ] || plainly "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null || PYTHON=

# Folders of CUDA libraries: the toolkit's, those of PyTorch's packages, and the system's. The first
# that has a library is used.
cuda_folders() {
    local p
    for p in ${CUDA_HOME:+"$CUDA_HOME"} ${CUDA_PATH:+"$CUDA_PATH"} /usr/local/cuda /usr/local/cuda-*; do echo "$p/lib64"; echo "$p/targets/x86_64-linux/lib"; done
    [ -z "$PYTHON" ] || plainly "$PYTHON" -c 'import nvidia
for p in nvidia.__path__: print(p)' 2>/dev/null | while read -r p; do ls -d "$p"/*/lib; done
    /sbin/ldconfig -p 2>/dev/null | awk '/libcublasLt|libnccl|libcudnn|libnvrtc|libcuda\.so/ { sub(/\/[^\/]*$/, "", $NF); print $NF }'
    echo /usr/local/nvidia/lib64
}
folder_of() { cuda_folders | while read -r p; do if [ -e "$p/$1" ]; then echo "$p"; break; fi; done; }
cuda_path=
for library in libcublasLt.so.13 libnccl.so.2 libcudnn.so.9 libnvrtc.so.13 libcuda.so.1; do
    at=$(folder_of $library)
    case ":$cuda_path:" in *":$at:"*) ;; *) cuda_path=$cuda_path${at:+:$at} ;; esac
done

runtime=$PWD/runtime
if [ -d "$runtime/lib" ]; then
    has_newer() { /sbin/ldconfig -p 2>/dev/null | grep -q "$1"; } # use gcc's libraries of the bundle only if the machine has none
    gcc_path=
    has_newer libstdc++.so.6 && has_newer libgomp.so.1 || gcc_path=:$runtime/lib-gcc
    export LD_LIBRARY_PATH=$runtime/lib$gcc_path$cuda_path${PLAIN_PATH:+:$PLAIN_PATH}
    export PATH=$runtime/bin:$PATH OPAL_PREFIX=$runtime MPIRUN=$runtime/bin/mpirun OMPI_MCA_plm=isolated PMIX_MCA_pcompress_base_silence_warning=1
else
    export LD_LIBRARY_PATH=${cuda_path#:}${PLAIN_PATH:+:$PLAIN_PATH}
fi
export PYTHON BUILD=${BUILD:-build/release}
. tests/environment.sh
