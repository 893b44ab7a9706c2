# dtrain - see README.md; `make help` lists the targets
-include config.mk
CC       ?= cc
MPICC    ?= mpicc
HDF5     ?= $(firstword $(foreach p,hdf5-openmpi hdf5-mpich hdf5,$(shell pkg-config --exists $(p) 2>/dev/null && echo $(p))))
BUILD    ?= build/$(if $(SAN),san,release)
PKGS      = $(HDF5) jansson
CPPFLAGS += -Iinclude -D_GNU_SOURCE $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
CFLAGS   ?= -O2 -g
CFLAGS   += -std=c11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter -fopenmp -fno-math-errno \
            $(if $(SAN),-fsanitize=address$(,)undefined -fno-omit-frame-pointer)
LDLIBS   += $(shell pkg-config --libs $(PKGS) 2>/dev/null) -linih -ldnnl -lm -lpthread -ldl
,        := ,

ROOMS     = core device comm io zero model data checkpoint report task train
LIB_SRC   = $(foreach r,$(ROOMS),$(wildcard src/$(r)/*.c))
LIB_OBJ   = $(LIB_SRC:%.c=$(BUILD)/%.o)
LIB       = $(BUILD)/libdtrain.a
PROGRAMS  = $(patsubst src/main/%.c,%,$(wildcard src/main/*.c))
TESTS     = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c tests/mpi_*.c))
TEST_SUP  = $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/ref_*.c))

all: $(PROGRAMS)  ## the programs, at the top of the tree
$(PROGRAMS): %: $(BUILD)/src/main/%.o $(LIB)
	$(MPICC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(LIB) $(LDLIBS)
$(LIB): $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(MPICC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
tests-build: $(TESTS)
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_SUP) $(LIB)
	$(MPICC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(TEST_SUP) $(LIB) -lcmocka $(LDLIBS)
clean:
	rm -rf build $(PROGRAMS)
.PHONY: all tests-build clean
.SECONDARY:
-include $(LIB_OBJ:.o=.d)
