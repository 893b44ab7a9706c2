# Spack recipe. Put it into a repository of your own:
#   spack repo create ~/dtrain-repo && mkdir -p ~/dtrain-repo/packages/dtrain && cp package.py ~/dtrain-repo/packages/dtrain && spack repo add ~/dtrain-repo
#   spack install dtrain        (a checkout that you work on: spack dev-build dtrain@main)
from spack.package import *  # noqa: F403


class Dtrain(MakefilePackage):  # noqa: F405
    """Trains and post-trains transformer language models on clusters: one MPI program in C, with ZeRO partitioning, HDF5 checkpoints
    and Hugging Face model directories."""

    license("Apache-2.0")  # noqa: F405

    version("main")  # noqa: F405

    depends_on("c", type="build")  # noqa: F405
    depends_on("gmake", type="build")  # noqa: F405
    depends_on("pkgconfig", type="build")  # noqa: F405
    depends_on("mpi@3:")  # noqa: F405
    depends_on("hdf5@1.10:+mpi")  # noqa: F405
    depends_on("jansson")  # noqa: F405
    depends_on("inih")  # noqa: F405
    depends_on("pcre2")  # noqa: F405
    depends_on("utf8proc")  # noqa: F405
    depends_on("libjpeg-turbo")  # noqa: F405
    depends_on("libpng")  # noqa: F405
    depends_on("libwebp")  # noqa: F405
    depends_on("libedit")  # noqa: F405
    depends_on("libmicrohttpd")  # noqa: F405
    depends_on("liburing")  # noqa: F405
    depends_on("onednn@2.6:")  # noqa: F405
    depends_on("gnuplot", type="run")  # noqa: F405

    conflicts("%gcc@:10", msg="x86-64-v4 needs GCC 11")  # noqa: F405

    def setup_build_environment(self, env):
        # Environment modules set these variables; the Makefile finds headers and libraries through
        # them.
        for name in ("hdf5", "jansson", "inih", "pcre2", "utf8proc", "onednn", "libjpeg-turbo", "libpng", "libwebp", "libedit", "libmicrohttpd", "liburing"):
            env.prepend_path("CPATH", self.spec[name].prefix.include)
            for folder in (self.spec[name].prefix.lib, self.spec[name].prefix.lib64):
                env.prepend_path("LIBRARY_PATH", folder)
        env.set("MPICC", self.spec["mpi"].mpicc)
        env.set("HDF5", "hdf5")

    def build(self, spec, prefix):
        make("programs")  # noqa: F405

    def install(self, spec, prefix):
        make("install", "PREFIX=" + prefix)  # noqa: F405
